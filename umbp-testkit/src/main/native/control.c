/* What io.umbp.testkit.FakeCudaDriver calls, in its order and with its numbers. */
#define _GNU_SOURCE
#include "fake.h"

#include <dlfcn.h>
#include <jni.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONTROL(type, name) \
  JNIEXPORT type JNICALL Java_io_umbp_testkit_FakeCudaDriver_##name

CONTROL(void, set0)(JNIEnv *env, jclass type, jint setting, jlong value) {
  (void)env, (void)type;
  switch (setting) {
    case 0: __atomic_store_n(&device_count, (int)value, __ATOMIC_RELAXED); break;
    case 1: __atomic_store_n(&driver_version, (int)value, __ATOMIC_RELAXED); break;
    case 2: __atomic_store_n(&device_limit, (size_t)value, __ATOMIC_RELAXED); break;
    case 3: __atomic_store_n(&pinned_limit, (size_t)value, __ATOMIC_RELAXED); break;
    case 4: __atomic_store_n(&noop, (int)value, __ATOMIC_RELAXED); break;
    default: __atomic_store_n(&copy_nanos, value, __ATOMIC_RELAXED);
  }
}

/* Whether there is a function of a name, which may lack its version. */
CONTROL(jboolean, isFunction0)(JNIEnv *env, jclass type, jstring function) {
  (void)type;
  void *self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  const char *name = (*env)->GetStringUTFChars(env, function, 0);
  char versioned[64];
  snprintf(versioned, sizeof versioned, "%s_v2", name);
  int is_known = self && !strncmp(name, "cu", 2) && (dlsym(self, name) || dlsym(self, versioned));
  (*env)->ReleaseStringUTFChars(env, function, name);
  if (self) {
    dlclose(self);
  }
  return (jboolean)is_known;
}

CONTROL(jlong, calls0)(JNIEnv *env, jclass type, jstring function) {
  (void)type;
  const char *name = (*env)->GetStringUTFChars(env, function, 0);
  jlong calls = calls_of(name);
  (*env)->ReleaseStringUTFChars(env, function, name);
  return calls;
}

CONTROL(void, resetCalls0)(JNIEnv *env, jclass type) {
  (void)env, (void)type;
  reset_calls();
}

CONTROL(void, live0)(JNIEnv *env, jclass type, jlongArray into) {
  (void)type;
  int64_t live[8];
  count_allocs(live);
  live[3] = count_handles(STREAM_HANDLE);
  live[4] = count_handles(EVENT_HANDLE);
  live[5] = count_handles(MODULE_HANDLE);
  live[6] = 0;
  for (int device = 0; device < MAX_DEVICES; device++) {
    live[6] += primary_retains(device);
  }
  live[7] = live_contexts();
  (*env)->SetLongArrayRegion(env, into, 0, 8, (const jlong *)live);
}

CONTROL(jlong, violations0)(JNIEnv *env, jclass type) {
  (void)env, (void)type;
  return violation_count();
}

CONTROL(jstring, violation0)(JNIEnv *env, jclass type, jlong index) {
  (void)type;
  char text[VIOLATION_LENGTH];
  return violation_text(index, text) ? (*env)->NewStringUTF(env, text) : 0;
}

CONTROL(void, clear0)(JNIEnv *env, jclass type, jint what) {
  (void)env, (void)type;
  switch (what) {
    case 0: clear_faults(); break;
    case 1: clear_sticky(); break;
    case 2: release_all(); break;
    default: clear_violations();
  }
}

CONTROL(void, holdCopies0)(JNIEnv *env, jclass type, jboolean hold) {
  (void)env, (void)type;
  hold_copies(hold);
}

CONTROL(jboolean, releaseOneCopy0)(JNIEnv *env, jclass type) {
  (void)env, (void)type;
  return (jboolean)release_one_copy();
}

CONTROL(jboolean, holdStream0)(JNIEnv *env, jclass type, jlong handle, jboolean hold) {
  (void)env, (void)type;
  Stream *stream = use_stream(0, (void *)handle);
  if (!stream) {
    return 0;
  }
  hold_stream(stream, hold);
  drop_stream(stream);
  return 1;
}

/* False when there are too many faults. */
CONTROL(jboolean, failCall0)(JNIEnv *env, jclass type, jstring function, jint code, jlong after,
                             jlong times, jboolean at_completion) {
  (void)type;
  const char *name = (*env)->GetStringUTFChars(env, function, 0);
  int is_added = add_call_fault(name, code, after, times, at_completion);
  (*env)->ReleaseStringUTFChars(env, function, name);
  return (jboolean)is_added;
}

CONTROL(jboolean, failAddress0)(JNIEnv *env, jclass type, jlong address, jint code, jlong times) {
  (void)env, (void)type;
  return (jboolean)add_address_fault((uint64_t)address, code, times);
}

/* Enqueues work of the program on the stream of a handle; false when it is refused. */
static int enqueue_work(jlong handle, Work work) {
  Alloc *alloc = work.to_alloc ? work.to_alloc : work.from_alloc;
  Stream *stream = alloc ? use_stream(0, (void *)handle) : 0;
  if (!stream) {
    drop_use(alloc);
    free(work.bytes);
    return 0;
  }
  CUresult result = enqueue(stream, work);
  drop_stream(stream);
  return result == SUCCESS;
}

CONTROL(jboolean, enqueueWrite0)(JNIEnv *env, jclass type, jlong handle, jlong address,
                                 jbyteArray bytes) {
  (void)type;
  size_t length = (size_t)(*env)->GetArrayLength(env, bytes);
  Work work = {.kind = PROGRAM_WRITE, .function = "a kernel of the program",
               .to = (uint64_t)address, .to_alloc = use_range((uint64_t)address, length, ON_DEVICE),
               .width = length, .bytes = malloc(length)};
  (*env)->GetByteArrayRegion(env, bytes, 0, (jsize)length, (jbyte *)work.bytes);
  return (jboolean)enqueue_work(handle, work);
}

CONTROL(jlong, enqueueRead0)(JNIEnv *env, jclass type, jlong handle, jlong address, jint length) {
  (void)env, (void)type;
  PendingRead *read = calloc(1, sizeof *read);
  read->bytes = malloc((size_t)length);
  read->length = (size_t)length;
  Work work = {.kind = PROGRAM_READ, .function = "a kernel of the program",
               .from = (uint64_t)address,
               .from_alloc = use_range((uint64_t)address, (size_t)length, ON_DEVICE),
               .width = (size_t)length, .read = read};
  if (enqueue_work(handle, work)) {
    return (jlong)read;
  }
  free(read->bytes);
  free(read);
  return 0;
}

/* Waits for a read and frees it; null when it was refused. */
CONTROL(jbyteArray, awaitRead0)(JNIEnv *env, jclass type, jlong handle) {
  (void)type;
  PendingRead *read = (PendingRead *)handle;
  pthread_mutex_lock(&state_lock);
  while (!read->done) {
    await_change();
  }
  pthread_mutex_unlock(&state_lock);
  jbyteArray bytes = read->done == 1 ? (*env)->NewByteArray(env, (jsize)read->length) : 0;
  if (bytes) {
    (*env)->SetByteArrayRegion(env, bytes, 0, (jsize)read->length, (const jbyte *)read->bytes);
  }
  free(read->bytes);
  free(read);
  return bytes;
}

/* Reads or writes behind every stream's back; false when the range is in no live allocation. */
CONTROL(jboolean, peek0)(JNIEnv *env, jclass type, jlong address, jbyteArray into) {
  (void)type;
  jsize length = (*env)->GetArrayLength(env, into);
  Alloc *alloc = use_range((uint64_t)address, (size_t)length, ANY_MEMORY);
  int is_there = alloc && begin_touch(alloc);
  if (is_there) {
    (*env)->SetByteArrayRegion(env, into, 0, length,
                               (const jbyte *)(alloc->bytes + ((uint64_t)address - alloc->base)));
    end_touch(alloc);
  }
  drop_use(alloc);
  return (jboolean)is_there;
}

CONTROL(jboolean, poke0)(JNIEnv *env, jclass type, jlong address, jbyteArray from) {
  (void)type;
  jsize length = (*env)->GetArrayLength(env, from);
  Alloc *alloc = use_range((uint64_t)address, (size_t)length, ANY_MEMORY);
  int is_there = alloc && begin_touch(alloc);
  if (is_there) {
    (*env)->GetByteArrayRegion(env, from, 0, length,
                               (jbyte *)(alloc->bytes + ((uint64_t)address - alloc->base)));
    end_touch(alloc);
  }
  drop_use(alloc);
  return (jboolean)is_there;
}

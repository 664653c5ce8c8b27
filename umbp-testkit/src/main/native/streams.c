#define _GNU_SOURCE
#include "fake.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { KEPT_VIOLATIONS = 100 };

pthread_mutex_t state_lock = PTHREAD_MUTEX_INITIALIZER;
int64_t copy_nanos;
Stream *streams;

static Context *contexts;
static uint64_t next_number;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int waiting_for_change;
static uint64_t copies_held_from; /* copies from this number on are held; 0 for none */

static pthread_mutex_t violation_lock = PTHREAD_MUTEX_INITIALIZER;
static char violations[KEPT_VIOLATIONS][VIOLATION_LENGTH];
static int64_t violations_seen;

/* ---- waking; under state_lock ---- */

void await_change(void) {
  waiting_for_change++;
  pthread_cond_wait(&changed, &state_lock);
  waiting_for_change--;
}

/* Lets everyone look again who waits for what others do. */
static void tell_change(void) {
  for (Stream *stream = streams; stream; stream = stream->next) {
    if (stream->waits) {
      pthread_cond_signal(&stream->wake);
    }
  }
  if (waiting_for_change) {
    pthread_cond_broadcast(&changed);
  }
}

/* ---- violations ---- */

void violation(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  pthread_mutex_lock(&violation_lock);
  if (violations_seen < KEPT_VIOLATIONS) {
    vsnprintf(violations[violations_seen], VIOLATION_LENGTH, format, arguments);
  }
  violations_seen++;
  pthread_mutex_unlock(&violation_lock);
  va_end(arguments);
}

int64_t violation_count(void) {
  pthread_mutex_lock(&violation_lock);
  int64_t seen = violations_seen;
  pthread_mutex_unlock(&violation_lock);
  return seen;
}

int violation_text(int64_t index, char text[VIOLATION_LENGTH]) {
  pthread_mutex_lock(&violation_lock);
  int is_kept = index < violations_seen && index < KEPT_VIOLATIONS;
  if (is_kept) {
    memcpy(text, violations[index], VIOLATION_LENGTH);
  }
  pthread_mutex_unlock(&violation_lock);
  return is_kept;
}

void clear_violations(void) {
  pthread_mutex_lock(&violation_lock);
  violations_seen = 0;
  pthread_mutex_unlock(&violation_lock);
}

/* ---- contexts ---- */

uint64_t thread_number(void) {
  static uint64_t last;
  static __thread uint64_t own;
  if (!own) {
    own = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
  }
  return own;
}

static Stream *add_stream(Context *context, unsigned flags, int priority);
static void end_stream(Stream *stream);

Context *new_context(int device) {
  Context *context = calloc(1, sizeof *context);
  context->device = device;
  context->alive = 1;
  pthread_mutex_lock(&state_lock);
  context->legacy = add_stream(context, 0, 0);
  __atomic_add_fetch(&context->legacy->users, 1, __ATOMIC_RELAXED);
  context->next = contexts;
  contexts = context;
  pthread_mutex_unlock(&state_lock);
  return context;
}

/* A primary context is the same object for the life of the process. */
Context *primary_context(int device) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static Context *primaries[MAX_DEVICES];
  pthread_mutex_lock(&lock);
  Context *context = primaries[device];
  if (!context) {
    context = primaries[device] = new_context(device);
    pthread_mutex_lock(&state_lock);
    context->is_primary = 1;
    __atomic_store_n(&context->alive, 0, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&state_lock);
  }
  pthread_mutex_unlock(&lock);
  return context;
}

int is_context(const Context *context) {
  pthread_mutex_lock(&state_lock);
  const Context *known = contexts;
  while (known && known != context) {
    known = known->next;
  }
  pthread_mutex_unlock(&state_lock);
  return known != 0;
}

static void tell_change(void);

/* Lets the work of a stream that has not begun end without running. */
static int drop_work(Stream *stream) {
  int dropped = 0;
  for (Work *work = stream->first; work; work = work->next) {
    work->dropped = 1;
    dropped++;
  }
  pthread_cond_signal(&stream->wake);
  return dropped + (stream->running != 0);
}

/* The object stays, and its default stream, for handles that are stale. */
int destroy_context(Context *context) {
  int unfinished = 0;
  pthread_mutex_lock(&state_lock);
  int was_alive = context->alive;
  __atomic_store_n(&context->alive, 0, __ATOMIC_RELEASE);
  for (Stream *stream = was_alive ? streams : 0, *next; stream; stream = next) {
    next = stream->next;
    if (stream->context != context) {
      continue;
    }
    unfinished += drop_work(stream);
    if (!stream->ended && !(context->is_primary && stream == context->legacy)) {
      end_stream(stream);
    }
  }
  uint32_t number = 0;
  for (Event *event; was_alive && (event = next_object(EVENT_HANDLE, &number));) {
    if (event->context == context) {
      end_handle(event->handle);
      drop_event(event);
    }
  }
  tell_change();
  pthread_mutex_unlock(&state_lock);
  if (unfinished) {
    violation("a context of device %d was destroyed while %d pieces of work were enqueued",
              context->device, unfinished);
  }
  if (was_alive) {
    remove_allocs_of(context);
  }
  return was_alive;
}

int64_t live_contexts(void) {
  int64_t alive = 0;
  pthread_mutex_lock(&state_lock);
  for (Context *context = contexts; context; context = context->next) {
    alive += context->alive && !context->is_primary;
  }
  pthread_mutex_unlock(&state_lock);
  return alive;
}

void clear_sticky(void) {
  pthread_mutex_lock(&state_lock);
  for (Context *context = contexts; context; context = context->next) {
    __atomic_store_n(&context->sticky, 0, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&state_lock);
}

/* ---- the work itself, outside all locks ---- */

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

/* Where a range really is, to be left with end_touch; 0, and a violation, when it is nowhere. */
static char *touch(const Work *work, Alloc *alloc, uint64_t address) {
  if (!alloc || !begin_touch(alloc)) {
    violation("%s, enqueued as number %" PRIu64 ", touches 0x%" PRIx64
              ", which is not, or no longer, there",
              work->function, work->number, address);
    return 0;
  }
  return alloc->bytes + (address - alloc->base);
}

/* Copies rows between two allocations, either of which may be gone. */
static int copy_rows(const Work *work, Alloc *target, uint64_t to, size_t to_pitch, Alloc *source,
                     uint64_t from, size_t from_pitch, size_t width, size_t height) {
  char *to_bytes = touch(work, target, to);
  char *from_bytes = touch(work, source, from);
  if (to_bytes && from_bytes) {
    if (height == 1 && to < from + width && from < to + width) {
      violation("%s, enqueued as number %" PRIu64 ", copies between ranges that overlap, at 0x%"
                PRIx64 " and 0x%" PRIx64,
                work->function, work->number, from, to);
    }
    for (size_t row = 0; row < height; row++) {
      memmove(to_bytes + row * to_pitch, from_bytes + row * from_pitch, width);
    }
  }
  if (to_bytes) {
    end_touch(target);
  }
  if (from_bytes) {
    end_touch(source);
  }
  return to_bytes && from_bytes ? SUCCESS : ILLEGAL_ADDRESS;
}

/* Whether a kernel of a context can use an allocation. */
static int is_for_kernels(const Context *context, const Alloc *alloc) {
  return alloc->kind == DEVICE_MEMORY
             ? alloc->context == context
             : (alloc->flags & HOST_MAPPED) &&
                   ((alloc->flags & HOST_PORTABLE) || alloc->context == context);
}

static int copy_kernel_row(const Work *work, const uint64_t row[3]) {
  uint64_t from = row[0], to = row[1], length = row[2];
  if (!length) {
    return SUCCESS;
  }
  Alloc *target = use_range(to, length, ANY_MEMORY);
  Alloc *source = use_range(from, length, ANY_MEMORY);
  int result = ILLEGAL_ADDRESS;
  if (target && source &&
      !(is_for_kernels(work->context, target) && is_for_kernels(work->context, source))) {
    violation("%s, enqueued as number %" PRIu64 ", touches memory of another context, or host "
              "memory that is not mapped for devices, at 0x%" PRIx64 " or 0x%" PRIx64,
              work->function, work->number, from, to);
  } else {
    result = copy_rows(work, target, to, 0, source, from, 0, length, 1);
  }
  drop_use(target);
  drop_use(source);
  return result;
}

/*
 * The C twin of umbp_copy_ranges: rows of {from, to, length}, read when the kernel runs. Block by
 * block: block x copies rows x, x + grid_x, and so on, which is not the order of the table.
 */
static int run_kernel(const Work *work) {
  const char *table = touch(work, work->from_alloc, work->from);
  if (!table) {
    return ILLEGAL_ADDRESS;
  }
  int result = SUCCESS;
  for (uint32_t block = 0; block < work->grid_x && block < work->rows; block++) {
    for (uint64_t i = block; i < work->rows && result == SUCCESS; i += work->grid_x) {
      uint64_t row[3];
      memcpy(row, table + i * sizeof row, sizeof row);
      result = copy_kernel_row(work, row);
    }
  }
  end_touch(work->from_alloc);
  return result;
}

static void pause_copy(void) {
  int64_t nanos = __atomic_load_n(&copy_nanos, __ATOMIC_RELAXED);
  if (nanos > 0) {
    struct timespec time = {nanos / 1000000000, nanos % 1000000000};
    nanosleep(&time, 0);
  }
}

/* Writes, fills or reads one range. */
static int run_on_bytes(const Work *work) {
  Alloc *alloc = work->kind == PROGRAM_READ ? work->from_alloc : work->to_alloc;
  char *bytes = touch(work, alloc, work->kind == PROGRAM_READ ? work->from : work->to);
  if (!bytes) {
    return ILLEGAL_ADDRESS;
  }
  if (work->kind == FILL) {
    memset(bytes, work->fill, work->width);
  } else if (work->kind == PROGRAM_WRITE) {
    memcpy(bytes, work->bytes, work->width);
  } else {
    memcpy(work->read->bytes, bytes, work->width);
  }
  end_touch(alloc);
  return SUCCESS;
}

static int run(const Work *work) {
  if (work->injected) {
    return work->injected;
  }
  switch (work->kind) {
    case COPY:
    case COPY_ROWS:
      pause_copy();
      return copy_rows(work, work->to_alloc, work->to, work->to_pitch, work->from_alloc, work->from,
                       work->from_pitch, work->width, work->height);
    case KERNEL:
      pause_copy();
      return run_kernel(work);
    case FILL:
    case PROGRAM_WRITE:
    case PROGRAM_READ:
      return run_on_bytes(work);
    case CALL:
      work->call(work->argument);
      return SUCCESS;
    default:
      return SUCCESS;
  }
}

/* ---- streams; all that follows but the workers' run() is under state_lock ---- */

static int is_copy(const Work *work) { return work->kind <= KERNEL; }

/* Whether a stream still has work that was enqueued up to a number. */
static int has_work_up_to(const Stream *stream, uint64_t number) {
  return (stream->running && stream->running <= number) ||
         (stream->first && stream->first->number <= number);
}

/* Whether the default stream's order lets a stream's next work start. */
static int is_its_turn(const Stream *stream, const Work *work) {
  const Stream *legacy = stream->context->legacy;
  if (stream->flags & NON_BLOCKING) {
    return 1;
  }
  if (stream != legacy) {
    return !has_work_up_to(legacy, work->number - 1);
  }
  for (const Stream *other = streams; other; other = other->next) {
    if (other != legacy && other->context == stream->context && !(other->flags & NON_BLOCKING) &&
        has_work_up_to(other, work->number - 1)) {
      return 0;
    }
  }
  return 1;
}

static int is_from(uint64_t start, const Work *work) { return start && work->number >= start; }

static int is_held(const Stream *stream, const Work *work) {
  return is_from(stream->held_from, work) ||
         (is_copy(work) && !work->go && is_from(copies_held_from, work));
}

static int may_start(const Stream *stream, const Work *work) {
  if (work->dropped) {
    return 1;
  }
  return !is_held(stream, work) &&
         (work->kind != WAIT || work->event->done >= work->generation) &&
         is_its_turn(stream, work);
}

static void finish(Stream *stream, Work *work, int result) {
  Context *context = stream->context;
  if (result != SUCCESS && !context->sticky && !work->dropped) {
    __atomic_store_n(&context->sticky, result, __ATOMIC_RELEASE);
  }
  if (work->kind == RECORD && work->generation > work->event->done) {
    work->event->done = work->generation;
    work->event->nanos = now();
  }
  if (work->read) {
    work->read->done = result == SUCCESS ? 1 : 2;
  }
  if (work->event) {
    drop_event(work->event);
  }
  stream->running = 0;
  tell_change();
}

/* Takes a stream that has ended and has no work out of the list. */
static void unlink_stream(Stream *stream) {
  Stream **link = &streams;
  while (*link != stream) {
    link = &(*link)->next;
  }
  *link = stream->next;
}

/* Gives back what work names. */
static void release_parts(Work *work) {
  drop_use(work->to_alloc);
  drop_use(work->from_alloc);
  if (work->module) {
    drop_module(work->module, 1);
  }
  free(work->bytes);
}

static void *work_off(void *argument) {
  Stream *stream = argument;
  pthread_mutex_lock(&state_lock);
  for (;;) {
    Work *work = stream->first;
    if (!work && stream->ended) {
      break;
    }
    if (!work || !may_start(stream, work)) {
      stream->waits = work != 0;
      pthread_cond_wait(&stream->wake, &state_lock);
      stream->waits = 0;
      continue;
    }
    stream->first = work->next;
    if (!stream->first) {
      stream->last = 0;
    }
    stream->running = work->number;
    int error = work->dropped ? CONTEXT_IS_DESTROYED
                              : work->kind == CALL ? SUCCESS : stream->context->sticky;
    pthread_mutex_unlock(&state_lock);
    int result = error ? error : run(work);
    release_parts(work);
    pthread_mutex_lock(&state_lock);
    finish(stream, work, result);
    free(work);
  }
  unlink_stream(stream);
  pthread_mutex_unlock(&state_lock);
  drop_stream(stream);
  return 0;
}

static Stream *add_stream(Context *context, unsigned flags, int priority) {
  Stream *stream = calloc(1, sizeof *stream);
  stream->context = context;
  stream->flags = flags;
  stream->priority = priority;
  stream->users = 1; /* of the worker, or of who ends it before it has one */
  pthread_cond_init(&stream->wake, 0);
  stream->next = streams;
  streams = stream;
  return stream;
}

/* Streams get a thread with their first work: many never have any. */
static CUresult start_worker(Stream *stream) {
  if (stream->has_worker) {
    return SUCCESS;
  }
  /* Detached, so that the process can end while work is held; large enough to call Java. */
  pthread_attr_t detached;
  pthread_t thread;
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&detached, 1 << 20);
  stream->has_worker = !pthread_create(&thread, &detached, work_off, stream);
  pthread_attr_destroy(&detached);
  return stream->has_worker ? SUCCESS : OUT_OF_MEMORY;
}

static void end_stream(Stream *stream) {
  stream->ended = 1;
  forget_capture(stream);
  if (stream->handle) {
    end_handle(stream->handle);
  }
  if (stream->has_worker) {
    pthread_cond_signal(&stream->wake);
  } else {
    unlink_stream(stream);
    drop_stream(stream);
  }
}

void drop_stream(Stream *stream) {
  if (__atomic_sub_fetch(&stream->users, 1, __ATOMIC_ACQ_REL) == 0) {
    pthread_cond_destroy(&stream->wake);
    free(stream);
  }
}

void *new_stream(Context *context, unsigned flags, int priority) {
  pthread_mutex_lock(&state_lock);
  Stream *stream = add_stream(context, flags, priority);
  void *handle = stream->handle = make_handle(STREAM_HANDLE, stream);
  pthread_mutex_unlock(&state_lock);
  return handle;
}

/* ---- default streams of threads, which end with them ---- */

static pthread_key_t thread_end;

static void end_streams_of_thread(void *number) {
  pthread_mutex_lock(&state_lock);
  for (Stream *stream = streams, *next; stream; stream = next) {
    next = stream->next;
    if (stream->owner == (uint64_t)number && !stream->ended) {
      end_stream(stream);
    }
  }
  pthread_mutex_unlock(&state_lock);
}

static void make_thread_end(void) { pthread_key_create(&thread_end, end_streams_of_thread); }

static Stream *stream_of_thread(Context *context) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, make_thread_end);
  uint64_t own = thread_number();
  Stream *stream = streams;
  while (stream && (stream->owner != own || stream->context != context || stream->ended)) {
    stream = stream->next;
  }
  if (!stream) {
    stream = add_stream(context, 0, 0);
    stream->owner = own;
    pthread_setspecific(thread_end, (void *)own);
  }
  return stream;
}

Stream *use_stream(Context *context, void *handle) {
  enum { LEGACY = 1, PER_THREAD = 2 };
  pthread_mutex_lock(&state_lock);
  Stream *stream;
  if (context && (uintptr_t)handle <= LEGACY) {
    stream = context->legacy;
  } else if (context && (uintptr_t)handle == PER_THREAD) {
    stream = stream_of_thread(context);
  } else {
    stream = object_of(STREAM_HANDLE, handle);
  }
  if (stream && context && stream->context != context) {
    stream = 0;
  }
  if (stream) {
    __atomic_add_fetch(&stream->users, 1, __ATOMIC_RELAXED);
  }
  pthread_mutex_unlock(&state_lock);
  return stream;
}

CUresult destroy_stream(Stream *stream) {
  pthread_mutex_lock(&state_lock);
  CUresult result = stream->handle && !stream->ended ? SUCCESS : INVALID_HANDLE;
  if (result == SUCCESS) {
    end_stream(stream);
  }
  pthread_mutex_unlock(&state_lock);
  return result;
}

int stream_is_idle(Stream *stream) {
  pthread_mutex_lock(&state_lock);
  int is_idle = !stream->first && !stream->running;
  pthread_mutex_unlock(&state_lock);
  return is_idle;
}

void await_stream(Stream *stream) {
  pthread_mutex_lock(&state_lock);
  uint64_t number = next_number;
  while (has_work_up_to(stream, number)) {
    await_change();
  }
  pthread_mutex_unlock(&state_lock);
}

void await_context(const Context *context) {
  pthread_mutex_lock(&state_lock);
  uint64_t number = next_number;
  for (Stream *stream = streams; stream;) {
    if (stream->context == context && has_work_up_to(stream, number)) {
      await_change();
      stream = streams;
    } else {
      stream = stream->next;
    }
  }
  pthread_mutex_unlock(&state_lock);
}

static void append(Stream *stream, const Work *work) {
  Work *own = malloc(sizeof *own);
  *own = *work;
  own->next = 0;
  own->number = ++next_number;
  own->context = stream->context;
  if (own->kind == RECORD) {
    own->event->capture_number = 0;
    own->generation = ++own->event->issued;
  } else if (own->kind == WAIT) {
    own->generation = own->event->issued;
  }
  if (own->event) {
    __atomic_add_fetch(&own->event->users, 1, __ATOMIC_RELAXED);
  }
  if (stream->last) {
    stream->last->next = own;
  } else {
    stream->first = own;
    pthread_cond_signal(&stream->wake);
  }
  stream->last = own;
}

CUresult enqueue(Stream *stream, Work work) {
  CUresult result = check_default_stream(stream);
  int is_appended = 0;
  pthread_mutex_lock(&state_lock);
  if (result != SUCCESS) {
    /* Refused. */
  } else if (stream->ended) {
    result = INVALID_HANDLE;
  } else if (stream->capture) {
    result = capture_work(stream, &work);
  } else if (work.kind == WAIT && work.event->capture_number) {
    /* CUDA would let this stream join the capture. */
    result = CAPTURE_ISOLATION;
  } else {
    result = start_worker(stream);
    if (result == SUCCESS) {
      append(stream, &work);
      is_appended = 1;
    }
  }
  pthread_mutex_unlock(&state_lock);
  if (!is_appended) {
    release_parts(&work);
  }
  return result;
}

/* ---- events ---- */

void *new_event(Context *context, unsigned flags) {
  Event *event = calloc(1, sizeof *event);
  event->flags = flags;
  event->context = context;
  event->users = 1;
  pthread_mutex_lock(&state_lock);
  void *handle = event->handle = make_handle(EVENT_HANDLE, event);
  pthread_mutex_unlock(&state_lock);
  return handle;
}

Event *use_event(const void *handle) {
  pthread_mutex_lock(&state_lock);
  Event *event = object_of(EVENT_HANDLE, handle);
  if (event) {
    __atomic_add_fetch(&event->users, 1, __ATOMIC_RELAXED);
  }
  pthread_mutex_unlock(&state_lock);
  return event;
}

void drop_event(Event *event) {
  if (__atomic_sub_fetch(&event->users, 1, __ATOMIC_ACQ_REL) == 0) {
    free(event);
  }
}

void destroy_event(Event *event) {
  pthread_mutex_lock(&state_lock);
  int is_live = object_of(EVENT_HANDLE, event->handle) == event;
  if (is_live) {
    end_handle(event->handle);
  }
  pthread_mutex_unlock(&state_lock);
  if (is_live) {
    drop_event(event);
  }
}

/* ---- control ---- */

void hold_copies(int hold) {
  pthread_mutex_lock(&state_lock);
  if (!hold) {
    copies_held_from = 0;
  } else if (!copies_held_from) {
    copies_held_from = next_number + 1;
  }
  tell_change();
  pthread_mutex_unlock(&state_lock);
}

int release_one_copy(void) {
  Work *earliest = 0;
  pthread_mutex_lock(&state_lock);
  for (Stream *stream = streams; stream; stream = stream->next) {
    for (Work *work = stream->first; work; work = work->next) {
      if (is_copy(work) && !work->go && !work->dropped && is_from(copies_held_from, work) &&
          (!earliest || work->number < earliest->number)) {
        earliest = work;
      }
    }
  }
  if (earliest) {
    earliest->go = 1;
    tell_change();
  }
  pthread_mutex_unlock(&state_lock);
  return earliest != 0;
}

void hold_stream(Stream *stream, int hold) {
  pthread_mutex_lock(&state_lock);
  if (!hold) {
    stream->held_from = 0;
  } else if (!stream->held_from) {
    stream->held_from = next_number + 1;
  }
  tell_change();
  pthread_mutex_unlock(&state_lock);
}

void release_all(void) {
  pthread_mutex_lock(&state_lock);
  copies_held_from = 0;
  for (Stream *stream = streams; stream; stream = stream->next) {
    stream->held_from = 0;
    forget_capture(stream);
  }
  tell_change();
  pthread_mutex_unlock(&state_lock);
}

static int64_t count_of(HandleKind kind) {
  int64_t live = 0;
  uint32_t number = 0;
  while (next_object(kind, &number)) {
    live++;
  }
  return live;
}

void count_handles(int64_t *live_streams, int64_t *live_events) {
  pthread_mutex_lock(&state_lock);
  *live_streams = count_of(STREAM_HANDLE);
  *live_events = count_of(EVENT_HANDLE);
  pthread_mutex_unlock(&state_lock);
}

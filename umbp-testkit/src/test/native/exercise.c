/*
 * Uses the fake driver from several threads and by cases, to be built with a sanitizer. Ends with
 * the number of things that were not as they should be.
 */
#include "../../main/native/fake.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

CUresult cuInit(unsigned flags);
CUresult cuDevicePrimaryCtxRetain(Context **context, int device);
CUresult cuDevicePrimaryCtxRelease_v2(int device);
CUresult cuCtxCreate_v2(Context **context, unsigned flags, int device);
CUresult cuCtxDestroy_v2(Context *context);
CUresult cuCtxPushCurrent_v2(Context *context);
CUresult cuCtxPopCurrent_v2(Context **context);
CUresult cuCtxSynchronize(void);
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
CUresult cuMemFree_v2(CUdeviceptr address);
CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned flags);
CUresult cuMemFreeHost(void *address);
CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags);
CUresult cuMemHostUnregister(void *address);
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, void *stream);
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, void *stream);
CUresult cuStreamQuery(void *stream);
CUresult cuStreamCreate(Stream **stream, unsigned flags);
CUresult cuStreamDestroy_v2(void *stream);
CUresult cuStreamSynchronize(void *stream);
CUresult cuStreamWaitEvent(void *stream, Event *event, unsigned flags);
CUresult cuStreamBeginCapture_v2(void *stream, int mode);
CUresult cuStreamEndCapture(void *stream, void **graph);
CUresult cuThreadExchangeStreamCaptureMode(int *mode);
CUresult cuEventCreate(Event **event, unsigned flags);
CUresult cuEventDestroy_v2(Event *event);
CUresult cuEventRecord(Event *event, void *stream);
CUresult cuEventQuery(Event *event);
CUresult cuEventSynchronize(Event *event);
CUresult cuModuleLoadData(void **module, const char *image);
CUresult cuModuleUnload(void *module);
CUresult cuModuleGetFunction(void **function, void *module, const char *name);
CUresult cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, void *stream,
                        void **parameters, void **extra);
CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr address);

enum { THREADS = 4, ROUNDS = 60, BYTES = 1 << 16, ROWS = 16, RELAXED = 2 };

static const char PTX[] = ".version 7.0\n.target sm_70\n.address_size 64\n.entry umbp_copy_ranges(";
static int wrong;

static void expect(int holds, const char *what) {
  if (!holds) {
    __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
    fprintf(stderr, "wrong: %s\n", what);
  }
}

#define OK(call) expect((call) == SUCCESS, #call)

/* Captures of other threads forbid nothing. */
static void relax(void) {
  int mode = RELAXED;
  OK(cuThreadExchangeStreamCaptureMode(&mode));
}

/* Memory, streams and events of one round, made and thrown away. */
static void round_trip(int thread, int round) {
  static __thread char registered[BYTES];
  Stream *there, *back;
  Event *event;
  CUdeviceptr device;
  void *pinned, *module, *function;
  OK(cuStreamCreate(&there, NON_BLOCKING));
  OK(cuStreamCreate(&back, round % 2));
  OK(cuEventCreate(&event, 2));
  OK(cuMemAlloc_v2(&device, BYTES));
  OK(cuMemHostAlloc(&pinned, BYTES, HOST_PORTABLE | HOST_MAPPED));
  OK(cuMemHostRegister_v2(registered, BYTES, HOST_PORTABLE | HOST_MAPPED));
  OK(cuModuleLoadData(&module, PTX));
  OK(cuModuleGetFunction(&function, module, "umbp_copy_ranges"));

  memset(registered, thread * ROUNDS + round, BYTES);
  OK(cuMemsetD8Async(device, 0xEE, BYTES, there));
  OK(cuMemcpyAsync(device, (CUdeviceptr)registered, BYTES, there));
  OK(cuEventRecord(event, there));
  OK(cuStreamWaitEvent(back, event, 0));
  uint64_t *table;
  OK(cuMemHostAlloc((void **)&table, ROWS * 24, HOST_MAPPED));
  for (int i = 0; i < ROWS; i++) {
    table[3 * i] = device + (uint64_t)i * (BYTES / ROWS);
    table[3 * i + 1] = (uint64_t)pinned + (uint64_t)i * (BYTES / ROWS);
    table[3 * i + 2] = BYTES / ROWS;
  }
  uint64_t address = (uint64_t)table;
  uint32_t rows = ROWS;
  void *parameters[] = {&address, &rows};
  OK(cuLaunchKernel(function, 4, 1, 1, 256, 1, 1, 0, back, parameters, 0));
  OK(cuEventRecord(event, back));
  while (cuEventQuery(event) == NOT_READY) {
    usleep(10);
  }
  expect(!memcmp(pinned, registered, BYTES), "bytes");
  unsigned type;
  OK(cuPointerGetAttribute(&type, 2, device));
  expect(type == 2, "memory type");

  OK(cuMemcpyAsync(device, device + BYTES, 0, there));
  expect(cuMemcpyAsync(device, (CUdeviceptr)pinned, BYTES + 1, there) != SUCCESS, "bounds");
  OK(cuEventRecord(event, there));
  OK(cuEventSynchronize(event));
  OK(cuStreamSynchronize(back));
  OK(cuModuleUnload(module));
  OK(cuMemFreeHost(table));
  OK(cuMemHostUnregister(registered));
  OK(cuMemFreeHost(pinned));
  OK(cuMemFree_v2(device));
  OK(cuEventDestroy_v2(event));
  OK(cuStreamDestroy_v2(back));
  OK(cuStreamDestroy_v2(there));
}

static void *use_primary(void *argument) {
  int thread = (int)(intptr_t)argument;
  Context *context;
  OK(cuDevicePrimaryCtxRetain(&context, thread % 2));
  OK(cuCtxPushCurrent_v2(context));
  relax();
  for (int round = 0; round < ROUNDS; round++) {
    round_trip(thread, round);
    expect(calls_of("cuMemAlloc") > 0, "calls are counted");
    hold_copies(round % 7 == 0);
    hold_copies(0);
  }
  OK(cuCtxSynchronize());
  OK(cuCtxPopCurrent_v2(0));
  return 0;
}

/* A context of its own, destroyed while work is enqueued, and captures beside everybody else. */
static void *use_own(void *argument) {
  (void)argument;
  for (int round = 0; round < ROUNDS; round++) {
    Context *context;
    Stream *stream;
    CUdeviceptr device;
    void *graph;
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuStreamCreate(&stream, NON_BLOCKING));
    OK(cuMemAlloc_v2(&device, BYTES));
    OK(cuStreamBeginCapture_v2(stream, 0));
    OK(cuMemsetD8Async(device, 1, BYTES, stream));
    OK(cuStreamEndCapture(stream, &graph));
    for (int i = 0; i < 4; i++) {
      OK(cuMemsetD8Async(device, i, BYTES, stream));
    }
    if (round % 2) {
      OK(cuStreamSynchronize(stream));
      OK(cuStreamDestroy_v2(stream));
    }
    OK(cuCtxDestroy_v2(context));
  }
  return 0;
}

/* A primary context that goes with work enqueued and comes back, and the default streams. */
static void *use_defaults(void *argument) {
  void *legacy = 0, *own = (void *)2;
  (void)argument;
  relax();
  for (int round = 0; round < ROUNDS; round++) {
    Context *context;
    Event *event;
    CUdeviceptr device;
    OK(cuDevicePrimaryCtxRetain(&context, 2));
    OK(cuCtxPushCurrent_v2(context));
    OK(cuEventCreate(&event, 2));
    OK(cuMemAlloc_v2(&device, BYTES));
    OK(cuMemsetD8Async(device, 1, BYTES, own));
    OK(cuMemsetD8Async(device, 2, BYTES, legacy));
    OK(cuEventRecord(event, own));
    if (round % 2) {
      OK(cuEventSynchronize(event));
    }
    OK(cuDevicePrimaryCtxRelease_v2(2));
    expect(cuStreamQuery(own) == CONTEXT_IS_DESTROYED, "the context has gone");
    expect(cuEventDestroy_v2(event) == CONTEXT_IS_DESTROYED, "and its events");
    OK(cuCtxPopCurrent_v2(0));
  }
  return 0;
}

static Event *shared;

/* An event that another thread destroys: what looks at it may go on or be refused. */
static void *use_shared(void *argument) {
  (void)argument;
  Context *context;
  OK(cuDevicePrimaryCtxRetain(&context, 1));
  OK(cuCtxPushCurrent_v2(context));
  relax();
  for (int round = 0; round < ROUNDS; round++) {
    Event *event, *old = __atomic_load_n(&shared, __ATOMIC_ACQUIRE);
    CUresult seen = old ? cuEventSynchronize(old) : SUCCESS;
    expect(seen == SUCCESS || seen == INVALID_HANDLE, "an event of another thread");
    OK(cuEventCreate(&event, 2));
    OK(cuEventRecord(event, 0));
    old = __atomic_exchange_n(&shared, event, __ATOMIC_ACQ_REL);
    if (old) {
      OK(cuEventDestroy_v2(old));
      expect(cuEventQuery(old) == INVALID_HANDLE, "a stale handle");
    }
  }
  OK(cuCtxSynchronize());
  OK(cuCtxPopCurrent_v2(0));
  OK(cuDevicePrimaryCtxRelease_v2(1));
  return 0;
}

int main(void) {
  void *(*const others[])(void *) = {use_own, use_defaults, use_shared, use_shared};
  enum { OTHERS = sizeof others / sizeof *others };
  device_count = 3;
  OK(cuInit(0));
  pthread_t threads[THREADS + OTHERS];
  for (int i = 0; i < THREADS + OTHERS; i++) {
    pthread_create(&threads[i], 0, i < THREADS ? use_primary : others[i - THREADS],
                   (void *)(intptr_t)i);
  }
  for (int i = 0; i < THREADS + OTHERS; i++) {
    pthread_join(threads[i], 0);
  }
  for (int i = 0; i < THREADS; i++) {
    OK(cuDevicePrimaryCtxRelease_v2(i % 2));
  }
  int64_t allocs[3];
  count_allocs(allocs);
  expect(!allocs[0] && !allocs[1] && !allocs[2], "all memory is given back");
  expect(!count_handles(STREAM_HANDLE) && !count_handles(EVENT_HANDLE) &&
             !count_handles(MODULE_HANDLE) && !live_contexts(),
         "all is given back");
  expect(!primary_retains(0) && !primary_retains(1) && !primary_retains(2), "all is released");
  printf("%d wrong, %lld violations\n", wrong, (long long)violation_count());
  return wrong;
}

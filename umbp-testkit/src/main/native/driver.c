/* The functions of the driver, but for those of modules. */
#include "api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STACK_DEPTH = 64 };
enum { FIRST_BUS = 0x10 }; /* of PCI, of device 0 */

static const size_t MAX_PITCH = INT32_MAX;
static const int LEAST_PRIORITY = 0, GREATEST_PRIORITY = -5;

int device_count = 1, driver_version = 12060, noop;

static int is_initialised;

/* The contexts that a thread has pushed; the last is current. */
static __thread Context *stack[STACK_DEPTH];
static __thread int depth;

/* ---- what functions need ---- */

Context *current(void) { return depth ? stack[depth - 1] : 0; }

CUresult check_initialised(void) {
  return __atomic_load_n(&is_initialised, __ATOMIC_ACQUIRE) ? SUCCESS : NOT_INITIALIZED;
}

CUresult check_alive(const Context *context) {
  if (!__atomic_load_n(&context->alive, __ATOMIC_ACQUIRE)) {
    return CONTEXT_IS_DESTROYED;
  }
  return __atomic_load_n(&context->sticky, __ATOMIC_ACQUIRE);
}

CUresult check_context(void) {
  CUresult result = check_initialised();
  if (result != SUCCESS) {
    return result;
  }
  return current() ? check_alive(current()) : INVALID_CONTEXT;
}

CUresult check_device(int device) {
  CUresult result = check_initialised();
  if (result != SUCCESS) {
    return result;
  }
  int count = __atomic_load_n(&device_count, __ATOMIC_RELAXED);
  return device >= 0 && device < count ? SUCCESS : INVALID_DEVICE;
}

/* ---- initialisation, devices ---- */

API CUresult cuInit(unsigned flags) {
  COUNT(0);
  REQUIRE(!flags, INVALID_VALUE);
  REQUIRE(__atomic_load_n(&device_count, __ATOMIC_RELAXED) > 0, NO_DEVICE);
  __atomic_store_n(&is_initialised, 1, __ATOMIC_RELEASE);
  return SUCCESS;
}

API CUresult cuDriverGetVersion(int *version) {
  COUNT(0);
  *version = __atomic_load_n(&driver_version, __ATOMIC_RELAXED);
  return SUCCESS;
}

API CUresult cuDeviceGetCount(int *count) {
  BEGIN_INITIALISED();
  *count = __atomic_load_n(&device_count, __ATOMIC_RELAXED);
  return SUCCESS;
}

API CUresult cuDeviceGet(int *device, int ordinal) {
  BEGIN_DEVICE(ordinal);
  *device = ordinal;
  return SUCCESS;
}

API CUresult cuDeviceGetName(char *name, int length, int device) {
  BEGIN_DEVICE(device);
  snprintf(name, (size_t)length, "Fake CUDA device %d", device);
  return SUCCESS;
}

API CUresult cuDeviceGetPCIBusId(char *id, int length, int device) {
  BEGIN_DEVICE(device);
  snprintf(id, (size_t)length, "0000:%02X:00.0", FIRST_BUS + device);
  return SUCCESS;
}

API CUresult cuDeviceGetUuid(char *uuid, int device) {
  BEGIN_DEVICE(device);
  memset(uuid, 0xFA, 16);
  uuid[15] = (char)device;
  return SUCCESS;
}

API CUresult cuDeviceTotalMem_v2(size_t *bytes, int device) {
  BEGIN_DEVICE(device);
  *bytes = __atomic_load_n(&device_limit, __ATOMIC_RELAXED);
  return SUCCESS;
}

/* Those that a copy library asks for. */
API CUresult cuDeviceGetAttribute(int *value, int attribute, int device) {
  enum {
    MAX_THREADS = 1, MAX_PITCH_BYTES = 11, MULTIPROCESSORS = 16, CAN_MAP_HOST = 19,
    ASYNC_ENGINES = 40, UNIFIED_ADDRESSING = 41, CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76,
    PRIORITIES = 78, HOST_POINTER_FOR_REGISTERED = 91, HOST_REGISTER = 99
  };
  BEGIN_DEVICE(device);
  switch (attribute) {
    case MAX_THREADS: *value = 1024; break;
    case MAX_PITCH_BYTES: *value = INT32_MAX; break;
    case MULTIPROCESSORS: *value = 132; break;
    case ASYNC_ENGINES: *value = 3; break;
    case CAPABILITY_MAJOR: *value = 9; break;
    case CAPABILITY_MINOR: *value = 0; break;
    case CAN_MAP_HOST:
    case UNIFIED_ADDRESSING:
    case PRIORITIES:
    case HOST_POINTER_FOR_REGISTERED:
    case HOST_REGISTER: *value = 1; break;
    default: return NOT_SUPPORTED;
  }
  return SUCCESS;
}

/* ---- contexts ---- */

API CUresult cuDevicePrimaryCtxRetain(Context **context, int device) {
  BEGIN_DEVICE(device);
  *context = retain_primary(device);
  return SUCCESS;
}

API CUresult cuDevicePrimaryCtxRelease_v2(int device) {
  BEGIN_DEVICE(device);
  return release_primary(device);
}

API CUresult cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  BEGIN_DEVICE(device);
  *flags = 0;
  *active = primary_retains(device) > 0;
  return SUCCESS;
}

API CUresult cuCtxCreate_v2(Context **context, unsigned flags, int device) {
  BEGIN_DEVICE(device);
  (void)flags;
  REQUIRE(depth < STACK_DEPTH, INVALID_CONTEXT);
  *context = new_context(device);
  stack[depth++] = *context;
  return SUCCESS;
}

API CUresult cuCtxDestroy_v2(Context *context) {
  BEGIN_INITIALISED();
  REQUIRE(context && is_context(context) && !context->is_primary, INVALID_CONTEXT);
  REQUIRE(destroy_context(context), CONTEXT_IS_DESTROYED);
  if (current() == context) {
    depth--;
  }
  return SUCCESS;
}

static CUresult check_settable(const Context *context) {
  if (!context || !is_context(context)) {
    return INVALID_CONTEXT;
  }
  return __atomic_load_n(&context->alive, __ATOMIC_ACQUIRE) ? SUCCESS : CONTEXT_IS_DESTROYED;
}

API CUresult cuCtxSetCurrent(Context *context) {
  BEGIN_INITIALISED();
  if (!context) {
    depth -= depth > 0;
    return SUCCESS;
  }
  RETURN_IF(check_settable(context));
  depth += depth == 0;
  stack[depth - 1] = context;
  return SUCCESS;
}

API CUresult cuCtxGetCurrent(Context **context) {
  BEGIN_INITIALISED();
  *context = current();
  return SUCCESS;
}

API CUresult cuCtxPushCurrent_v2(Context *context) {
  BEGIN_INITIALISED();
  RETURN_IF(check_settable(context));
  REQUIRE(depth < STACK_DEPTH, INVALID_CONTEXT);
  stack[depth++] = context;
  return SUCCESS;
}

API CUresult cuCtxPopCurrent_v2(Context **context) {
  BEGIN_INITIALISED();
  REQUIRE(depth, INVALID_CONTEXT);
  depth--;
  if (context) {
    *context = stack[depth];
  }
  return SUCCESS;
}

API CUresult cuCtxGetDevice(int *device) {
  BEGIN();
  *device = current()->device;
  return SUCCESS;
}

API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  BEGIN();
  *least = LEAST_PRIORITY;
  *greatest = GREATEST_PRIORITY;
  return SUCCESS;
}

API CUresult cuCtxSynchronize(void) {
  BEGIN_UNSAFE();
  RETURN_IF(check_context_not_captured(current()));
  await_context(current());
  return check_context();
}

API CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
  BEGIN_INITIALISED();
  return exchange_capture_mode(mode);
}

/* ---- memory ---- */

API CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
  BEGIN_UNSAFE();
  REQUIRE(bytes, INVALID_VALUE);
  return allocate_device(current(), bytes, address);
}

API CUresult cuMemFree_v2(CUdeviceptr address) {
  BEGIN_UNSAFE();
  return address ? remove_alloc(address, DEVICE_MEMORY, INVALID_VALUE) : SUCCESS;
}

API CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
  BEGIN();
  size_t used = device_bytes_in_use(current()->device);
  *total = __atomic_load_n(&device_limit, __ATOMIC_RELAXED);
  *free = *total - (used < *total ? used : *total);
  return SUCCESS;
}

API CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned flags) {
  enum { WRITE_COMBINED = 4 };
  BEGIN_UNSAFE();
  REQUIRE(bytes && !(flags & ~(HOST_PORTABLE | HOST_MAPPED | WRITE_COMBINED)), INVALID_VALUE);
  return allocate_host(current(), bytes, flags, address);
}

API CUresult cuMemAllocHost_v2(void **address, size_t bytes) {
  BEGIN_UNSAFE();
  REQUIRE(bytes, INVALID_VALUE);
  return allocate_host(current(), bytes, HOST_MAPPED, address);
}

API CUresult cuMemFreeHost(void *address) {
  BEGIN_UNSAFE();
  return remove_alloc((uint64_t)address, PINNED_MEMORY, INVALID_VALUE);
}

API CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags) {
  enum { READ_ONLY = 8 };
  BEGIN_UNSAFE();
  REQUIRE(address && bytes && !(flags & ~(HOST_PORTABLE | HOST_MAPPED | READ_ONLY)),
          INVALID_VALUE);
  return register_host(current(), address, bytes, flags);
}

API CUresult cuMemHostUnregister(void *address) {
  BEGIN_UNSAFE();
  return remove_alloc((uint64_t)address, REGISTERED_MEMORY, NOT_REGISTERED);
}

/* Host memory is its own context's, unless it was made for all. */
static int is_reachable(AllocKind kind, unsigned flags, const Context *context) {
  return kind == DEVICE_MEMORY || (flags & HOST_PORTABLE) || context == current();
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *mapped, void *address, unsigned flags) {
  BEGIN();
  AllocInfo info;
  REQUIRE(!flags && find_alloc((uint64_t)address, &info), INVALID_VALUE);
  REQUIRE(info.kind != DEVICE_MEMORY && (info.flags & HOST_MAPPED), INVALID_VALUE);
  REQUIRE(is_reachable(info.kind, info.flags, info.context), INVALID_VALUE);
  *mapped = (uint64_t)address;
  return SUCCESS;
}

API CUresult cuMemHostGetFlags(unsigned *flags, void *address) {
  BEGIN();
  AllocInfo info;
  REQUIRE(find_alloc((uint64_t)address, &info) && info.kind != DEVICE_MEMORY, INVALID_VALUE);
  *flags = info.flags;
  return SUCCESS;
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
  BEGIN();
  AllocInfo info;
  REQUIRE(find_alloc(address, &info), NOT_FOUND);
  if (base) {
    *base = info.base;
  }
  if (bytes) {
    *bytes = info.size;
  }
  return SUCCESS;
}

static CUresult pointer_attribute(void *value, int attribute, uint64_t address,
                                  const AllocInfo *info) {
  enum {
    CONTEXT = 1, MEMORY_TYPE, DEVICE_POINTER, HOST_POINTER, BUFFER_ID = 7, IS_MANAGED,
    DEVICE_ORDINAL, RANGE_START = 11, RANGE_SIZE
  };
  enum { TYPE_HOST = 1, TYPE_DEVICE };
  REQUIRE(value, INVALID_VALUE);
  switch (attribute) {
    case CONTEXT: *(Context **)value = info->context; return SUCCESS;
    case MEMORY_TYPE:
      *(unsigned *)value = info->kind == DEVICE_MEMORY ? TYPE_DEVICE : TYPE_HOST;
      return SUCCESS;
    case DEVICE_POINTER:
      REQUIRE(info->kind == DEVICE_MEMORY || (info->flags & HOST_MAPPED), INVALID_VALUE);
      *(uint64_t *)value = address;
      return SUCCESS;
    case HOST_POINTER:
      REQUIRE(info->kind != DEVICE_MEMORY, INVALID_VALUE);
      *(uint64_t *)value = address;
      return SUCCESS;
    case BUFFER_ID: *(uint64_t *)value = info->id; return SUCCESS;
    case IS_MANAGED: *(unsigned char *)value = 0; return SUCCESS;
    case DEVICE_ORDINAL: *(int *)value = info->context->device; return SUCCESS;
    case RANGE_START: *(uint64_t *)value = info->base; return SUCCESS;
    case RANGE_SIZE: *(uint64_t *)value = info->size; return SUCCESS;
    default: return NOT_SUPPORTED;
  }
}

API CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr address) {
  BEGIN();
  AllocInfo info;
  REQUIRE(find_alloc(address, &info), INVALID_VALUE);
  return pointer_attribute(value, attribute, address, &info);
}

/* ---- copies ---- */

/* The bytes from the start of the first row to the end of the last; 0 when they are too many. */
static size_t extent(size_t pitch, size_t width, size_t height) {
  size_t bytes;
  int is_too_long = __builtin_mul_overflow(pitch, height - 1, &bytes) ||
                    __builtin_add_overflow(bytes, width, &bytes);
  return is_too_long ? 0 : bytes;
}

static CUresult fault_in_copy(const Work *work) {
  if (!has_address_faults()) {
    return SUCCESS;
  }
  for (size_t row = 0; row < work->height; row++) {
    RETURN_IF(fault_in(work->to + row * work->to_pitch, work->width));
    RETURN_IF(fault_in(work->from + row * work->from_pitch, work->width));
  }
  return SUCCESS;
}

static int can_reach(const Alloc *alloc) {
  return alloc && is_reachable(alloc->kind, alloc->flags, alloc->context);
}

/*
 * Both sides of an asynchronous copy have to be memory that the driver knows: the copy from
 * pageable memory, which CUDA turns into a blocking one, is refused.
 */
static CUresult enqueue_rows(Stream *stream, const char *function, Work work, Side to, Side from) {
  size_t to_bytes = extent(work.to_pitch, work.width, work.height);
  size_t from_bytes = extent(work.from_pitch, work.width, work.height);
  REQUIRE(to_bytes && from_bytes, INVALID_VALUE);
  work.function = function;
  work.to_alloc = use_range(work.to, to_bytes, to);
  work.from_alloc = use_range(work.from, from_bytes, from);
  CUresult result = can_reach(work.to_alloc) && can_reach(work.from_alloc) ? fault_in_copy(&work)
                                                                          : INVALID_VALUE;
  if (result != SUCCESS) {
    drop_use(work.to_alloc);
    drop_use(work.from_alloc);
    return result;
  }
  return enqueue(stream, work);
}

#define ENQUEUE_COPY(to_side, from_side)                                                         \
  (bytes ? enqueue_rows(stream_, __func__,                                                       \
                        (Work){.kind = COPY, .to = (uint64_t)to, .from = (uint64_t)from,         \
                               .width = bytes, .height = 1, .injected = at_completion_},         \
                        to_side, from_side)                                                      \
         : SUCCESS)

API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, void *stream) {
  BEGIN_WORK(stream);
  return ENQUEUE_COPY(ANY_MEMORY, ANY_MEMORY);
}

API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, void *stream) {
  BEGIN_WORK(stream);
  return ENQUEUE_COPY(ON_HOST, ON_DEVICE);
}

API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, void *stream) {
  BEGIN_WORK(stream);
  return ENQUEUE_COPY(ON_DEVICE, ON_HOST);
}

API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, void *stream) {
  BEGIN_WORK(stream);
  return ENQUEUE_COPY(ON_DEVICE, ON_DEVICE);
}

/* Synchronous copies take any host memory; a copy of the program's own stands between. */
static CUresult copy_now(const char *function, uint64_t device, void *host, size_t bytes,
                         int to_host) {
  RETURN_IF(check_captures());
  if (!bytes) {
    return SUCCESS;
  }
  AllocInfo info;
  REQUIRE(host && !(find_alloc((uint64_t)host, &info) && info.kind == DEVICE_MEMORY),
          INVALID_VALUE);
  RETURN_IF(fault_in(device, bytes));
  RETURN_IF(fault_in((uint64_t)host, bytes));
  STREAM(stream, 0);
  Alloc *alloc = use_range(device, bytes, ON_DEVICE);
  REQUIRE(alloc, INVALID_VALUE);
  PendingRead read = {.bytes = host, .length = bytes};
  Work work = {.kind = to_host ? PROGRAM_READ : PROGRAM_WRITE, .function = function,
               .width = bytes};
  if (to_host) {
    work.from = device;
    work.from_alloc = alloc;
    work.read = &read;
  } else {
    work.to = device;
    work.to_alloc = alloc;
    work.bytes = malloc(bytes);
    memcpy(work.bytes, host, bytes);
  }
  RETURN_IF(enqueue(stream, work));
  await_stream(stream);
  return check_context();
}

API CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
  BEGIN();
  return copy_now(__func__, from, to, bytes, 1);
}

API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
  BEGIN();
  return copy_now(__func__, to, (void *)from, bytes, 0);
}

typedef struct Copy2D {
  size_t from_x, from_y;
  int from_type;
  const void *from_host;
  CUdeviceptr from_device;
  void *from_array;
  size_t from_pitch, to_x, to_y;
  int to_type;
  void *to_host;
  CUdeviceptr to_device;
  void *to_array;
  size_t to_pitch, width, height;
} Copy2D;

typedef struct Side2D {
  int type;
  const void *host;
  CUdeviceptr device;
  size_t pitch, x, y;
} Side2D;

/* Where the first row of a side starts. */
static CUresult first_row(const Side2D *side, size_t width, Side *kind, uint64_t *address) {
  enum { TYPE_HOST = 1, TYPE_DEVICE = 2, TYPE_UNIFIED = 4 };
  size_t row, offset;
  REQUIRE(!__builtin_add_overflow(side->x, width, &row) && row <= side->pitch &&
              side->pitch <= MAX_PITCH,
          INVALID_VALUE);
  REQUIRE(side->type == TYPE_HOST || side->type == TYPE_DEVICE || side->type == TYPE_UNIFIED,
          INVALID_VALUE);
  uint64_t base = side->type == TYPE_HOST ? (uint64_t)side->host : side->device;
  REQUIRE(!__builtin_mul_overflow(side->y, side->pitch, &offset) &&
              !__builtin_add_overflow(offset, side->x, &offset) &&
              !__builtin_add_overflow(base, offset, address),
          INVALID_VALUE);
  *kind = side->type == TYPE_HOST ? ON_HOST : side->type == TYPE_DEVICE ? ON_DEVICE : ANY_MEMORY;
  return SUCCESS;
}

API CUresult cuMemcpy2DAsync_v2(const Copy2D *copy, void *stream) {
  BEGIN_WORK(stream);
  REQUIRE(copy, INVALID_VALUE);
  if (!copy->width || !copy->height) {
    return SUCCESS;
  }
  Side2D to = {copy->to_type, copy->to_host, copy->to_device, copy->to_pitch, copy->to_x,
               copy->to_y};
  Side2D from = {copy->from_type, copy->from_host, copy->from_device, copy->from_pitch,
                 copy->from_x, copy->from_y};
  Work work = {.kind = COPY_ROWS,
               .width = copy->width,
               .height = copy->height,
               .to_pitch = to.pitch,
               .from_pitch = from.pitch,
               .injected = at_completion_};
  Side to_kind, from_kind;
  RETURN_IF(first_row(&to, copy->width, &to_kind, &work.to));
  RETURN_IF(first_row(&from, copy->width, &from_kind, &work.from));
  return enqueue_rows(stream_, __func__, work, to_kind, from_kind);
}

API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, void *stream) {
  BEGIN_WORK(stream);
  if (!bytes) {
    return SUCCESS;
  }
  RETURN_IF(fault_in(to, bytes));
  Alloc *alloc = use_range(to, bytes, ON_DEVICE);
  REQUIRE(alloc, INVALID_VALUE);
  return enqueue(stream_, (Work){.kind = FILL, .function = __func__, .to = to, .to_alloc = alloc,
                                 .width = bytes, .fill = value, .injected = at_completion_});
}

/* ---- streams ---- */

API CUresult cuStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
  BEGIN();
  REQUIRE(flags <= NON_BLOCKING, INVALID_VALUE);
  priority = priority > LEAST_PRIORITY ? LEAST_PRIORITY : priority;
  priority = priority < GREATEST_PRIORITY ? GREATEST_PRIORITY : priority;
  *stream = new_stream(current(), flags, priority);
  return SUCCESS;
}

API CUresult cuStreamCreate(void **stream, unsigned flags) {
  BEGIN();
  REQUIRE(flags <= NON_BLOCKING, INVALID_VALUE);
  *stream = new_stream(current(), flags, LEAST_PRIORITY);
  return SUCCESS;
}

API CUresult cuStreamDestroy_v2(void *handle) {
  BEGIN();
  STREAM(stream, handle);
  return destroy_stream(stream);
}

API CUresult cuStreamQuery(void *handle) {
  BEGIN_UNSAFE();
  STREAM(stream, handle);
  RETURN_IF(check_not_captured(stream));
  RETURN_IF(check_default_stream(stream));
  int is_idle = stream_is_idle(stream);
  RETURN_IF(check_context());
  return is_idle ? SUCCESS : NOT_READY;
}

API CUresult cuStreamSynchronize(void *handle) {
  BEGIN_UNSAFE();
  STREAM(stream, handle);
  RETURN_IF(check_not_captured(stream));
  RETURN_IF(check_default_stream(stream));
  await_stream(stream);
  return check_context();
}

API CUresult cuStreamGetPriority(void *handle, int *priority) {
  BEGIN();
  STREAM(stream, handle);
  *priority = stream->priority;
  return SUCCESS;
}

API CUresult cuStreamGetFlags(void *handle, unsigned *flags) {
  BEGIN();
  STREAM(stream, handle);
  *flags = stream->flags;
  return SUCCESS;
}

API CUresult cuStreamGetCtx(void *handle, Context **context) {
  BEGIN();
  STREAM(stream, handle);
  *context = stream->context;
  return SUCCESS;
}

/* ---- captures ---- */

static char empty_graph;

API CUresult cuStreamBeginCapture_v2(void *handle, int mode) {
  BEGIN();
  STREAM(stream, handle);
  return begin_capture(stream, mode);
}

API CUresult cuStreamIsCapturing(void *handle, int *status) {
  BEGIN();
  STREAM(stream, handle);
  return capture_status(stream, status);
}

API CUresult cuStreamEndCapture(void *handle, void **graph) {
  BEGIN();
  STREAM(stream, handle);
  CUresult result = end_capture(stream);
  *graph = result == SUCCESS ? &empty_graph : 0;
  return result;
}

API CUresult cuGraphDestroy(void *graph) {
  BEGIN_INITIALISED();
  return graph == &empty_graph ? SUCCESS : INVALID_VALUE;
}

/* ---- events ---- */

API CUresult cuEventCreate(void **event, unsigned flags) {
  enum { DISABLE_TIMING = 2, INTERPROCESS = 4, ALL = 7 };
  BEGIN();
  REQUIRE(flags <= ALL && (!(flags & INTERPROCESS) || (flags & DISABLE_TIMING)), INVALID_VALUE);
  *event = new_event(current(), flags);
  return SUCCESS;
}

API CUresult cuEventDestroy_v2(void *handle) {
  BEGIN();
  EVENT(event, handle);
  destroy_event(event);
  return SUCCESS;
}

API CUresult cuEventRecord(void *handle, void *stream) {
  BEGIN_WORK(stream);
  EVENT(event, handle);
  REQUIRE(event->context == current(), INVALID_HANDLE);
  return enqueue(stream_, (Work){.kind = RECORD, .function = __func__, .event = event,
                                 .injected = at_completion_});
}

API CUresult cuEventQuery(void *handle) {
  BEGIN_UNSAFE();
  if (__atomic_load_n(&noop, __ATOMIC_RELAXED)) {
    return SUCCESS;
  }
  EVENT(event, handle);
  pthread_mutex_lock(&state_lock);
  int is_done = event->done >= event->issued;
  int is_captured = event->capture_number != 0;
  pthread_mutex_unlock(&state_lock);
  REQUIRE(!is_captured, CAPTURED_EVENT);
  RETURN_IF(check_alive(event->context));
  return is_done ? SUCCESS : NOT_READY;
}

API CUresult cuEventSynchronize(void *handle) {
  BEGIN_UNSAFE();
  EVENT(event, handle);
  pthread_mutex_lock(&state_lock);
  int is_captured = event->capture_number != 0;
  uint64_t generation = event->issued;
  while (!is_captured && event->done < generation) {
    await_change();
  }
  pthread_mutex_unlock(&state_lock);
  REQUIRE(!is_captured, CAPTURED_EVENT);
  return check_alive(event->context);
}

API CUresult cuEventElapsedTime(float *millis, void *start_handle, void *end_handle) {
  enum { DISABLE_TIMING = 2 };
  BEGIN();
  EVENT(start, start_handle);
  EVENT(end, end_handle);
  REQUIRE(start->context == end->context, INVALID_HANDLE);
  CUresult result = SUCCESS;
  pthread_mutex_lock(&state_lock);
  if (start->capture_number || end->capture_number) {
    result = CAPTURED_EVENT;
  } else if (((start->flags | end->flags) & DISABLE_TIMING) || !start->issued || !end->issued) {
    result = INVALID_HANDLE;
  } else if (start->done < start->issued || end->done < end->issued) {
    result = NOT_READY;
  } else {
    *millis = (float)((double)(end->nanos - start->nanos) / 1e6);
  }
  pthread_mutex_unlock(&state_lock);
  return result;
}

API CUresult cuStreamWaitEvent(void *stream, void *handle, unsigned flags) {
  BEGIN_WORK(stream);
  REQUIRE(!flags, INVALID_VALUE);
  EVENT(event, handle);
  return enqueue(stream_, (Work){.kind = WAIT, .function = __func__, .event = event,
                                 .injected = at_completion_});
}

API CUresult cuLaunchHostFunc(void *handle, void (*call)(void *), void *argument) {
  BEGIN_WORK(handle);
  REQUIRE(call, INVALID_VALUE);
  return enqueue(stream_, (Work){.kind = CALL, .function = __func__, .call = call,
                                 .argument = argument, .injected = at_completion_});
}


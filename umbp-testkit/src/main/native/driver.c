#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

enum { MAX_FUNCTIONS = 512, MAX_FAULTS = 64, STACK_DEPTH = 64 };
enum { MODE_GLOBAL, MODE_THREAD_LOCAL, MODE_RELAXED };

static const size_t MAX_PITCH = INT32_MAX;
static const int LEAST_PRIORITY = 0, GREATEST_PRIORITY = -5;

typedef struct Module {
  Context *context;
  char *ptx;
  struct Module *next;
} Module;

typedef struct Function {
  Module *module;
} Function;

int device_count = 1, driver_version = 12060, noop;

static int is_initialised;
static Module *modules;
static struct { const char *name; int64_t calls; } functions[MAX_FUNCTIONS];
static int function_count;
static struct {
  char name[64];
  int code, at_completion;
  int64_t after, times;
} call_faults[MAX_FAULTS];
static int call_fault_count;
static struct { uint64_t address; int code; int64_t times; } address_faults[MAX_FAULTS * 16];
static int address_fault_count;

/* The contexts that a thread has pushed; the last is current. */
static __thread Context *stack[STACK_DEPTH];
static __thread int depth;
static __thread int capture_mode;
static __thread int own_captures;
static int global_captures;

/* ---- counting and faults ---- */

/* Compares names without the version that the driver's symbols end with. */
static int is_same(const char *a, const char *b) {
  size_t length_a = strlen(a), length_b = strlen(b);
  if (length_a > 3 && !strcmp(a + length_a - 3, "_v2")) {
    length_a -= 3;
  }
  if (length_b > 3 && !strcmp(b + length_b - 3, "_v2")) {
    length_b -= 3;
  }
  return length_a == length_b && !strncmp(a, b, length_a);
}

int64_t calls_of(const char *function) {
  int64_t calls = 0;
  pthread_mutex_lock(&state_lock);
  for (int i = 1; i <= function_count; i++) {
    if (is_same(functions[i].name, function)) {
      calls += __atomic_load_n(&functions[i].calls, __ATOMIC_RELAXED);
    }
  }
  pthread_mutex_unlock(&state_lock);
  return calls;
}

void reset_calls(void) {
  pthread_mutex_lock(&state_lock);
  for (int i = 1; i <= function_count; i++) {
    __atomic_store_n(&functions[i].calls, 0, __ATOMIC_RELAXED);
  }
  pthread_mutex_unlock(&state_lock);
}

void add_call_fault(const char *function, int code, int64_t after, int64_t times,
                    int at_completion) {
  pthread_mutex_lock(&state_lock);
  if (call_fault_count < MAX_FAULTS) {
    int i = call_fault_count;
    snprintf(call_faults[i].name, sizeof call_faults[i].name, "%s", function);
    call_faults[i].code = code;
    call_faults[i].after = after;
    call_faults[i].times = times;
    call_faults[i].at_completion = at_completion;
    __atomic_store_n(&call_fault_count, i + 1, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&state_lock);
}

void add_address_fault(uint64_t address, int code, int64_t times) {
  pthread_mutex_lock(&state_lock);
  if (address_fault_count < MAX_FAULTS * 16) {
    int i = address_fault_count;
    address_faults[i].address = address;
    address_faults[i].code = code;
    address_faults[i].times = times;
    __atomic_store_n(&address_fault_count, i + 1, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&state_lock);
}

void clear_faults(void) {
  pthread_mutex_lock(&state_lock);
  __atomic_store_n(&call_fault_count, 0, __ATOMIC_RELEASE);
  __atomic_store_n(&address_fault_count, 0, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&state_lock);
}

/* Counts a call; returns the fault that is due for it, or leaves it for the work's completion. */
static CUresult count_call(const char *function, int *slot, int *at_completion) {
  if (!__atomic_load_n(slot, __ATOMIC_ACQUIRE)) {
    pthread_mutex_lock(&state_lock);
    if (!*slot && function_count < MAX_FUNCTIONS - 1) {
      functions[++function_count].name = function;
      __atomic_store_n(slot, function_count, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&state_lock);
  }
  __atomic_add_fetch(&functions[*slot].calls, 1, __ATOMIC_RELAXED);
  if (!__atomic_load_n(&call_fault_count, __ATOMIC_ACQUIRE)) {
    return SUCCESS;
  }
  CUresult due = SUCCESS;
  pthread_mutex_lock(&state_lock);
  for (int i = 0; i < call_fault_count && due == SUCCESS; i++) {
    if (call_faults[i].times <= 0 || !is_same(call_faults[i].name, function)) {
      continue;
    }
    if (call_faults[i].after-- > 0) {
      continue;
    }
    call_faults[i].times--;
    if (call_faults[i].at_completion && at_completion) {
      *at_completion = call_faults[i].code;
      break;
    }
    due = call_faults[i].code;
  }
  pthread_mutex_unlock(&state_lock);
  return due;
}

CUresult not_written(const char *function, int *slot) {
  CUresult due = count_call(function, slot, 0);
  return due != SUCCESS ? due : NOT_SUPPORTED;
}

/* The fault that is due for a range, if any. */
static CUresult fault_in(uint64_t address, size_t length) {
  if (!__atomic_load_n(&address_fault_count, __ATOMIC_ACQUIRE)) {
    return SUCCESS;
  }
  CUresult due = SUCCESS;
  pthread_mutex_lock(&state_lock);
  for (int i = 0; i < address_fault_count && due == SUCCESS; i++) {
    if (address_faults[i].times > 0 && address_faults[i].address >= address &&
        address_faults[i].address - address < length) {
      address_faults[i].times--;
      due = address_faults[i].code;
    }
  }
  pthread_mutex_unlock(&state_lock);
  return due;
}

/* ---- what every function begins with ---- */

static Context *current(void) { return depth ? stack[depth - 1] : 0; }

static CUresult check_context(void) {
  Context *context = current();
  if (!__atomic_load_n(&is_initialised, __ATOMIC_ACQUIRE)) {
    return NOT_INITIALIZED;
  }
  if (!context) {
    return INVALID_CONTEXT;
  }
  if (!__atomic_load_n(&context->alive, __ATOMIC_ACQUIRE)) {
    return CONTEXT_IS_DESTROYED;
  }
  return __atomic_load_n(&context->sticky, __ATOMIC_ACQUIRE);
}

/* Calls that a capture of any thread may forbid; a forbidden one spoils its own thread's. */
static CUresult check_capture(void) {
  int is_forbidden = capture_mode == MODE_GLOBAL
                         ? __atomic_load_n(&global_captures, __ATOMIC_ACQUIRE) > 0 || own_captures
                         : capture_mode == MODE_THREAD_LOCAL && own_captures;
  return is_forbidden ? CAPTURE_UNSUPPORTED : SUCCESS;
}

#define RETURN_IF(expression)      \
  do {                             \
    CUresult result_ = (expression); \
    if (result_ != SUCCESS) {      \
      return result_;              \
    }                              \
  } while (0)

#define COUNT(at_completion)                                  \
  do {                                                        \
    static int slot_;                                         \
    RETURN_IF(count_call(__func__, &slot_, (at_completion))); \
  } while (0)

#define BEGIN()               \
  do {                        \
    COUNT(0);                 \
    RETURN_IF(check_context()); \
  } while (0)

#define BEGIN_UNSAFE()        \
  do {                        \
    BEGIN();                  \
    RETURN_IF(check_capture()); \
  } while (0)

#define BEGIN_DEVICE(device)                                   \
  do {                                                         \
    COUNT(0);                                                  \
    RETURN_IF(is_initialised ? SUCCESS : NOT_INITIALIZED);     \
    RETURN_IF((device) < 0 || (device) >= device_count ? INVALID_DEVICE : SUCCESS); \
  } while (0)

/* ---- initialisation, devices ---- */

API CUresult cuInit(unsigned flags) {
  COUNT(0);
  RETURN_IF(flags ? INVALID_VALUE : SUCCESS);
  RETURN_IF(device_count == 0 ? NO_DEVICE : SUCCESS);
  __atomic_store_n(&is_initialised, 1, __ATOMIC_RELEASE);
  return SUCCESS;
}

API CUresult cuDriverGetVersion(int *version) {
  COUNT(0);
  *version = driver_version;
  return SUCCESS;
}

API CUresult cuDeviceGetCount(int *count) {
  COUNT(0);
  RETURN_IF(is_initialised ? SUCCESS : NOT_INITIALIZED);
  *count = device_count;
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
  snprintf(id, (size_t)length, "0000:%02X:00.0", 0x10 + device);
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
  *bytes = device_limit;
  return SUCCESS;
}

API CUresult cuDeviceGetAttribute(int *value, int attribute, int device) {
  enum {
    MAX_THREADS = 1, MAX_PITCH_BYTES = 11, MULTIPROCESSORS = 16, CAN_MAP_HOST = 19,
    ASYNC_ENGINES = 40, UNIFIED_ADDRESSING = 41, PRIORITIES = 78, CAPABILITY_MAJOR = 75,
    HOST_POINTER_FOR_REGISTERED = 91, HOST_REGISTER = 99
  };
  BEGIN_DEVICE(device);
  switch (attribute) {
    case MAX_THREADS: *value = 1024; break;
    case MAX_PITCH_BYTES: *value = INT32_MAX; break;
    case MULTIPROCESSORS: *value = 132; break;
    case ASYNC_ENGINES: *value = 3; break;
    case CAPABILITY_MAJOR: *value = 9; break;
    case CAN_MAP_HOST:
    case UNIFIED_ADDRESSING:
    case PRIORITIES:
    case HOST_POINTER_FOR_REGISTERED:
    case HOST_REGISTER: *value = 1; break;
    default: *value = 0;
  }
  return SUCCESS;
}

/* ---- contexts ---- */

API CUresult cuDevicePrimaryCtxRetain(Context **context, int device) {
  BEGIN_DEVICE(device);
  Context *primary = primary_context(device);
  pthread_mutex_lock(&state_lock);
  primary->primary_retains++;
  __atomic_store_n(&primary->alive, 1, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&state_lock);
  *context = primary;
  return SUCCESS;
}

API CUresult cuDevicePrimaryCtxRelease_v2(int device) {
  BEGIN_DEVICE(device);
  Context *primary = primary_context(device);
  pthread_mutex_lock(&state_lock);
  int left = --primary->primary_retains;
  if (left < 0) {
    primary->primary_retains = 0;
  }
  pthread_mutex_unlock(&state_lock);
  RETURN_IF(left < 0 ? INVALID_CONTEXT : SUCCESS);
  if (left == 0) {
    destroy_context(primary);
    __atomic_store_n(&primary->sticky, 0, __ATOMIC_RELEASE);
  }
  return SUCCESS;
}

API CUresult cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  BEGIN_DEVICE(device);
  *flags = 0;
  *active = primary_context(device)->alive;
  return SUCCESS;
}

API CUresult cuCtxCreate_v2(Context **context, unsigned flags, int device) {
  BEGIN_DEVICE(device);
  (void)flags;
  RETURN_IF(depth == STACK_DEPTH ? INVALID_CONTEXT : SUCCESS);
  *context = new_context(device);
  stack[depth++] = *context;
  return SUCCESS;
}

API CUresult cuCtxDestroy_v2(Context *context) {
  COUNT(0);
  RETURN_IF(is_context(context) && context->alive && context != primary_context(context->device)
                ? SUCCESS : INVALID_CONTEXT);
  if (current() == context) {
    depth--;
  }
  destroy_context(context);
  return SUCCESS;
}

API CUresult cuCtxSetCurrent(Context *context) {
  COUNT(0);
  RETURN_IF(is_initialised ? SUCCESS : NOT_INITIALIZED);
  RETURN_IF(!context || is_context(context) ? SUCCESS : INVALID_CONTEXT);
  if (!context) {
    depth -= depth > 0;
  } else if (depth) {
    stack[depth - 1] = context;
  } else {
    stack[depth++] = context;
  }
  return SUCCESS;
}

API CUresult cuCtxGetCurrent(Context **context) {
  COUNT(0);
  RETURN_IF(is_initialised ? SUCCESS : NOT_INITIALIZED);
  *context = current();
  return SUCCESS;
}

API CUresult cuCtxPushCurrent_v2(Context *context) {
  COUNT(0);
  RETURN_IF(is_initialised ? SUCCESS : NOT_INITIALIZED);
  RETURN_IF(context && is_context(context) && depth < STACK_DEPTH ? SUCCESS : INVALID_CONTEXT);
  RETURN_IF(__atomic_load_n(&context->alive, __ATOMIC_ACQUIRE) ? SUCCESS : CONTEXT_IS_DESTROYED);
  stack[depth++] = context;
  return SUCCESS;
}

API CUresult cuCtxPopCurrent_v2(Context **context) {
  COUNT(0);
  RETURN_IF(is_initialised ? SUCCESS : NOT_INITIALIZED);
  RETURN_IF(depth ? SUCCESS : INVALID_CONTEXT);
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
  await_context(current());
  return check_context();
}

API CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
  COUNT(0);
  RETURN_IF(*mode >= MODE_GLOBAL && *mode <= MODE_RELAXED ? SUCCESS : INVALID_VALUE);
  int old = capture_mode;
  capture_mode = *mode;
  *mode = old;
  return SUCCESS;
}

/* ---- memory ---- */

API CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
  BEGIN_UNSAFE();
  RETURN_IF(bytes ? SUCCESS : INVALID_VALUE);
  return allocate_device(current(), bytes, address);
}

API CUresult cuMemFree_v2(CUdeviceptr address) {
  BEGIN_UNSAFE();
  return address ? remove_alloc(address, DEVICE_MEMORY, INVALID_VALUE) : SUCCESS;
}

API CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
  BEGIN();
  *total = device_limit;
  *free = device_limit - device_bytes_in_use(current()->device);
  return SUCCESS;
}

API CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned flags) {
  BEGIN_UNSAFE();
  RETURN_IF(bytes ? SUCCESS : INVALID_VALUE);
  return allocate_host(current(), bytes, flags, address);
}

API CUresult cuMemAllocHost_v2(void **address, size_t bytes) {
  BEGIN_UNSAFE();
  RETURN_IF(bytes ? SUCCESS : INVALID_VALUE);
  return allocate_host(current(), bytes, HOST_MAPPED, address);
}

API CUresult cuMemFreeHost(void *address) {
  BEGIN_UNSAFE();
  return remove_alloc((uint64_t)address, PINNED_MEMORY, INVALID_VALUE);
}

API CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags) {
  BEGIN_UNSAFE();
  RETURN_IF(address && bytes ? SUCCESS : INVALID_VALUE);
  return register_host(current(), address, bytes, flags);
}

API CUresult cuMemHostUnregister(void *address) {
  BEGIN_UNSAFE();
  return remove_alloc((uint64_t)address, REGISTERED_MEMORY, NOT_REGISTERED);
}

static int is_reachable(const Alloc *alloc) {
  return alloc->kind == DEVICE_MEMORY || (alloc->flags & HOST_PORTABLE) ||
         alloc->context == current();
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *mapped, void *address, unsigned flags) {
  BEGIN();
  Alloc alloc;
  RETURN_IF(!flags && find_alloc((uint64_t)address, &alloc) && alloc.kind != DEVICE_MEMORY &&
                    (alloc.flags & HOST_MAPPED) && is_reachable(&alloc)
                ? SUCCESS : INVALID_VALUE);
  *mapped = (uint64_t)address;
  return SUCCESS;
}

API CUresult cuMemHostGetFlags(unsigned *flags, void *address) {
  BEGIN();
  Alloc alloc;
  RETURN_IF(find_alloc((uint64_t)address, &alloc) && alloc.kind != DEVICE_MEMORY
                ? SUCCESS : INVALID_VALUE);
  *flags = alloc.flags;
  return SUCCESS;
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
  BEGIN();
  Alloc alloc;
  RETURN_IF(find_alloc(address, &alloc) ? SUCCESS : NOT_FOUND);
  if (base) {
    *base = alloc.base;
  }
  if (bytes) {
    *bytes = alloc.size;
  }
  return SUCCESS;
}

API CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr address) {
  enum {
    CONTEXT = 1, MEMORY_TYPE, DEVICE_POINTER, HOST_POINTER, BUFFER_ID = 7, IS_MANAGED,
    DEVICE_ORDINAL, RANGE_START = 11, RANGE_SIZE
  };
  enum { TYPE_HOST = 1, TYPE_DEVICE };
  BEGIN();
  Alloc alloc;
  RETURN_IF(find_alloc(address, &alloc) ? SUCCESS : INVALID_VALUE);
  switch (attribute) {
    case CONTEXT: *(Context **)value = alloc.context; return SUCCESS;
    case MEMORY_TYPE:
      *(unsigned *)value = alloc.kind == DEVICE_MEMORY ? TYPE_DEVICE : TYPE_HOST;
      return SUCCESS;
    case DEVICE_POINTER: *(uint64_t *)value = address; return SUCCESS;
    case HOST_POINTER:
      RETURN_IF(alloc.kind == DEVICE_MEMORY ? INVALID_VALUE : SUCCESS);
      *(uint64_t *)value = address;
      return SUCCESS;
    case BUFFER_ID: *(uint64_t *)value = alloc.id; return SUCCESS;
    case IS_MANAGED: *(int *)value = 0; return SUCCESS;
    case DEVICE_ORDINAL: *(int *)value = alloc.context->device; return SUCCESS;
    case RANGE_START: *(uint64_t *)value = alloc.base; return SUCCESS;
    case RANGE_SIZE: *(uint64_t *)value = alloc.size; return SUCCESS;
    default: return NOT_SUPPORTED;
  }
}

/* ---- copies ---- */

#define BEGIN_COPY(stream)                        \
  int at_completion_ = 0;                         \
  COUNT(&at_completion_);                         \
  RETURN_IF(check_context());                     \
  if (__atomic_load_n(&noop, __ATOMIC_RELAXED)) { \
    return SUCCESS;                               \
  }                                               \
  Stream *stream_ = stream_of(current(), stream); \
  RETURN_IF(stream_ ? SUCCESS : INVALID_HANDLE);  \
  RETURN_IF(check_default_stream(stream_))

/* The default stream can't be used while a stream that orders with it is being captured. */
static CUresult check_default_stream(Stream *stream) {
  return stream->internal && any_capture(stream->context) ? CAPTURE_IMPLICIT : SUCCESS;
}

/* Both sides of an asynchronous copy have to be memory that the driver knows: the copy from
 * pageable memory, which CUDA turns into a blocking one, is refused. */
static CUresult enqueue_rows(Stream *stream, const char *function, Work work, Side to, Side from) {
  size_t to_extent = work.to_pitch * (work.height - 1) + work.width;
  size_t from_extent = work.from_pitch * (work.height - 1) + work.width;
  for (size_t row = 0; row < work.height; row++) {
    RETURN_IF(fault_in(work.to + row * work.to_pitch, work.width));
    RETURN_IF(fault_in(work.from + row * work.from_pitch, work.width));
  }
  work.function = function;
  work.to_alloc = use_range(work.to, to_extent, to);
  work.from_alloc = use_range(work.from, from_extent, from);
  if (!work.to_alloc || !work.from_alloc || !is_reachable(work.to_alloc) ||
      !is_reachable(work.from_alloc)) {
    drop_use(work.to_alloc);
    drop_use(work.from_alloc);
    return INVALID_VALUE;
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
  BEGIN_COPY(stream);
  return ENQUEUE_COPY(ANY_MEMORY, ANY_MEMORY);
}

API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, void *stream) {
  BEGIN_COPY(stream);
  return ENQUEUE_COPY(ON_HOST, ON_DEVICE);
}

API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, void *stream) {
  BEGIN_COPY(stream);
  return ENQUEUE_COPY(ON_DEVICE, ON_HOST);
}

API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, void *stream) {
  BEGIN_COPY(stream);
  return ENQUEUE_COPY(ON_DEVICE, ON_DEVICE);
}

/* Synchronous copies take any host memory; a copy of the program's own stands between. */
static CUresult copy_now(const char *function, uint64_t device, void *host, size_t bytes, int to_host) {
  RETURN_IF(check_capture());
  if (!bytes) {
    return SUCCESS;
  }
  RETURN_IF(fault_in(device, bytes));
  Alloc *alloc = use_range(device, bytes, ON_DEVICE);
  RETURN_IF(alloc ? SUCCESS : INVALID_VALUE);
  Stream *stream = current()->legacy;
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

API CUresult cuMemcpy2DAsync_v2(const Copy2D *copy, void *stream) {
  enum { TYPE_HOST = 1, TYPE_DEVICE = 2, TYPE_UNIFIED = 4 };
  static const Side sides[] = {
    [TYPE_HOST] = ON_HOST, [TYPE_DEVICE] = ON_DEVICE, [TYPE_UNIFIED] = ANY_MEMORY};
  BEGIN_COPY(stream);
  if (!copy->width || !copy->height) {
    return SUCCESS;
  }
  size_t from_pitch = copy->from_pitch ? copy->from_pitch : copy->width;
  size_t to_pitch = copy->to_pitch ? copy->to_pitch : copy->width;
  RETURN_IF(from_pitch < copy->width || to_pitch < copy->width || from_pitch > MAX_PITCH ||
                    to_pitch > MAX_PITCH || copy->from_type > TYPE_UNIFIED ||
                    copy->to_type > TYPE_UNIFIED || !((1 << copy->from_type) & 0x16) ||
                    !((1 << copy->to_type) & 0x16)
                ? INVALID_VALUE : SUCCESS);
  uint64_t from = copy->from_type == TYPE_HOST ? (uint64_t)copy->from_host : copy->from_device;
  uint64_t to = copy->to_type == TYPE_HOST ? (uint64_t)copy->to_host : copy->to_device;
  return enqueue_rows(stream_, __func__,
                      (Work){.kind = COPY_ROWS,
                             .to = to + copy->to_y * to_pitch + copy->to_x,
                             .from = from + copy->from_y * from_pitch + copy->from_x,
                             .width = copy->width,
                             .height = copy->height,
                             .to_pitch = to_pitch,
                             .from_pitch = from_pitch,
                             .injected = at_completion_},
                      sides[copy->to_type], sides[copy->from_type]);
}

API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, void *stream) {
  BEGIN_COPY(stream);
  RETURN_IF(fault_in(to, bytes));
  Alloc *alloc = use_range(to, bytes, ON_DEVICE);
  RETURN_IF(alloc ? SUCCESS : INVALID_VALUE);
  return enqueue(stream_, (Work){.kind = FILL, .function = __func__, .to = to, .to_alloc = alloc,
                                 .width = bytes, .fill = value, .injected = at_completion_});
}

/* ---- streams ---- */

API CUresult cuStreamCreateWithPriority(Stream **stream, unsigned flags, int priority) {
  BEGIN();
  RETURN_IF(flags > 1 ? INVALID_VALUE : SUCCESS);
  priority = priority > LEAST_PRIORITY ? LEAST_PRIORITY : priority;
  priority = priority < GREATEST_PRIORITY ? GREATEST_PRIORITY : priority;
  *stream = new_stream(current(), flags, priority, 0);
  return SUCCESS;
}

API CUresult cuStreamCreate(Stream **stream, unsigned flags) {
  BEGIN();
  RETURN_IF(flags > 1 ? INVALID_VALUE : SUCCESS);
  *stream = new_stream(current(), flags, LEAST_PRIORITY, 0);
  return SUCCESS;
}

#define STREAM(handle)                                \
  Stream *stream_ = stream_of(current(), (handle)); \
  RETURN_IF(stream_ ? SUCCESS : INVALID_HANDLE)

API CUresult cuStreamDestroy_v2(void *handle) {
  BEGIN();
  STREAM(handle);
  return destroy_stream(stream_);
}

API CUresult cuStreamQuery(void *handle) {
  BEGIN_UNSAFE();
  STREAM(handle);
  RETURN_IF(stream_->capturing ? CAPTURE_UNSUPPORTED : SUCCESS);
  int is_idle = stream_is_idle(stream_);
  RETURN_IF(check_context());
  return is_idle ? SUCCESS : NOT_READY;
}

API CUresult cuStreamSynchronize(void *handle) {
  BEGIN_UNSAFE();
  STREAM(handle);
  RETURN_IF(stream_->capturing ? CAPTURE_UNSUPPORTED : SUCCESS);
  await_stream(stream_);
  return check_context();
}

API CUresult cuStreamGetPriority(void *handle, int *priority) {
  BEGIN();
  STREAM(handle);
  *priority = stream_->priority;
  return SUCCESS;
}

API CUresult cuStreamGetFlags(void *handle, unsigned *flags) {
  BEGIN();
  STREAM(handle);
  *flags = stream_->flags;
  return SUCCESS;
}

API CUresult cuStreamGetCtx(void *handle, Context **context) {
  BEGIN();
  STREAM(handle);
  *context = stream_->context;
  return SUCCESS;
}

API CUresult cuStreamBeginCapture_v2(void *handle, int mode) {
  BEGIN();
  STREAM(handle);
  RETURN_IF(stream_->internal || stream_->capturing ? CAPTURE_UNSUPPORTED : SUCCESS);
  pthread_mutex_lock(&state_lock);
  stream_->capturing = 1;
  stream_->capture_mode = mode;
  pthread_mutex_unlock(&state_lock);
  own_captures += mode != MODE_RELAXED;
  __atomic_add_fetch(&global_captures, mode == MODE_GLOBAL, __ATOMIC_ACQ_REL);
  return SUCCESS;
}

API CUresult cuStreamIsCapturing(void *handle, int *status) {
  BEGIN();
  STREAM(handle);
  RETURN_IF(check_default_stream(stream_));
  *status = stream_->capturing;
  return SUCCESS;
}

API CUresult cuStreamEndCapture(void *handle, void **graph) {
  BEGIN();
  STREAM(handle);
  RETURN_IF(stream_->capturing ? SUCCESS : CAPTURE_UNMATCHED);
  pthread_mutex_lock(&state_lock);
  int status = stream_->capturing;
  int mode = stream_->capture_mode;
  stream_->capturing = 0;
  pthread_mutex_unlock(&state_lock);
  own_captures -= mode != MODE_RELAXED;
  __atomic_sub_fetch(&global_captures, mode == MODE_GLOBAL, __ATOMIC_ACQ_REL);
  static char empty_graph;
  *graph = status == 1 ? &empty_graph : 0;
  return status == 1 ? SUCCESS : CAPTURE_INVALIDATED;
}

/* ---- events ---- */

#define EVENT(event) RETURN_IF((event) && is_event(event) ? SUCCESS : INVALID_HANDLE)

API CUresult cuEventCreate(Event **event, unsigned flags) {
  BEGIN();
  *event = new_event(current(), flags);
  return SUCCESS;
}

API CUresult cuEventDestroy_v2(Event *event) {
  BEGIN();
  EVENT(event);
  return destroy_event(event);
}

API CUresult cuEventRecord(Event *event, void *handle) {
  BEGIN_COPY(handle);
  EVENT(event);
  RETURN_IF(event->context == current() ? SUCCESS : INVALID_HANDLE);
  return enqueue(stream_, (Work){.kind = RECORD, .function = __func__, .event = event,
                                 .injected = at_completion_});
}

API CUresult cuEventQuery(Event *event) {
  BEGIN_UNSAFE();
  if (__atomic_load_n(&noop, __ATOMIC_RELAXED)) {
    return SUCCESS;
  }
  EVENT(event);
  pthread_mutex_lock(&state_lock);
  int is_done = event->done >= event->issued;
  int is_captured = event->captured;
  pthread_mutex_unlock(&state_lock);
  RETURN_IF(is_captured ? CAPTURED_EVENT : SUCCESS);
  RETURN_IF(check_context());
  return is_done ? SUCCESS : NOT_READY;
}

API CUresult cuEventSynchronize(Event *event) {
  BEGIN_UNSAFE();
  EVENT(event);
  pthread_mutex_lock(&state_lock);
  uint64_t generation = event->issued;
  event->users++;
  while (event->done < generation) {
    await_change();
  }
  drop_event(event);
  pthread_mutex_unlock(&state_lock);
  return check_context();
}

API CUresult cuEventElapsedTime(float *millis, Event *start, Event *end) {
  enum { DISABLE_TIMING = 2 };
  BEGIN();
  EVENT(start);
  EVENT(end);
  CUresult result = SUCCESS;
  pthread_mutex_lock(&state_lock);
  if (((start->flags | end->flags) & DISABLE_TIMING) || !start->issued || !end->issued) {
    result = INVALID_HANDLE;
  } else if (start->done < start->issued || end->done < end->issued) {
    result = NOT_READY;
  } else {
    *millis = (float)((double)(end->nanos - start->nanos) / 1e6);
  }
  pthread_mutex_unlock(&state_lock);
  return result;
}

API CUresult cuStreamWaitEvent(void *handle, Event *event, unsigned flags) {
  BEGIN_COPY(handle);
  (void)flags;
  EVENT(event);
  RETURN_IF(event->captured ? CAPTURE_ISOLATION : SUCCESS);
  return enqueue(stream_, (Work){.kind = WAIT, .function = __func__, .event = event,
                                 .injected = at_completion_});
}

API CUresult cuLaunchHostFunc(void *handle, void (*call)(void *), void *argument) {
  BEGIN_COPY(handle);
  return enqueue(stream_, (Work){.kind = CALL, .function = __func__, .call = call,
                                 .argument = argument, .injected = at_completion_});
}

/* ---- modules and kernels ---- */

API CUresult cuModuleLoadData(Module **module, const char *image) {
  BEGIN_UNSAFE();
  RETURN_IF(strstr(image, ".version") && strstr(image, ".target") && strstr(image, ".address_size 64")
                ? SUCCESS : INVALID_PTX);
  Module *loaded = calloc(1, sizeof *loaded);
  loaded->context = current();
  loaded->ptx = strdup(image);
  pthread_mutex_lock(&state_lock);
  loaded->next = modules;
  modules = loaded;
  pthread_mutex_unlock(&state_lock);
  *module = loaded;
  return SUCCESS;
}

static Module *find_module(const Module *module) {
  pthread_mutex_lock(&state_lock);
  Module *known = modules;
  while (known && known != module) {
    known = known->next;
  }
  pthread_mutex_unlock(&state_lock);
  return known;
}

API CUresult cuModuleUnload(Module *module) {
  BEGIN();
  RETURN_IF(find_module(module) ? SUCCESS : INVALID_HANDLE);
  pthread_mutex_lock(&state_lock);
  Module **link = &modules;
  while (*link != module) {
    link = &(*link)->next;
  }
  *link = module->next;
  pthread_mutex_unlock(&state_lock);
  free(module->ptx);
  free(module);
  return SUCCESS;
}

/* A function is its module: there is one kernel that the fake can run. */
API CUresult cuModuleGetFunction(Module **function, Module *module, const char *name) {
  BEGIN();
  RETURN_IF(find_module(module) ? SUCCESS : INVALID_HANDLE);
  char entry[128];
  snprintf(entry, sizeof entry, ".entry %s(", name);
  RETURN_IF(strstr(module->ptx, entry) ? SUCCESS : NOT_FOUND);
  RETURN_IF(strcmp(name, "umbp_copy_ranges") ? NOT_SUPPORTED : SUCCESS);
  *function = module;
  return SUCCESS;
}

/* The fault that is due for a row of a table which the host can read now, if any. */
static CUresult fault_in_rows(uint64_t table, uint32_t rows) {
  if (!__atomic_load_n(&address_fault_count, __ATOMIC_ACQUIRE)) {
    return SUCCESS;
  }
  for (uint32_t i = 0; i < rows; i++) {
    uint64_t row[3];
    memcpy(row, (char *)table + (size_t)i * sizeof row, sizeof row);
    RETURN_IF(fault_in(row[0], row[2]));
    RETURN_IF(fault_in(row[1], row[2]));
  }
  return SUCCESS;
}

API CUresult cuLaunchKernel(Module *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                            void *handle, void **parameters, void **extra) {
  enum { MAX_GRID_X = INT32_MAX, MAX_GRID_YZ = 65535, MAX_THREADS = 1024, ROW = 24 };
  BEGIN_COPY(handle);
  (void)shared;
  RETURN_IF(find_module(function) ? SUCCESS : INVALID_HANDLE);
  RETURN_IF(function->context == current() ? SUCCESS : INVALID_HANDLE);
  uint64_t threads = (uint64_t)block_x * block_y * block_z;
  RETURN_IF(grid_x && grid_y && grid_z && grid_x <= MAX_GRID_X && grid_y <= MAX_GRID_YZ &&
                    grid_z <= MAX_GRID_YZ && threads && threads <= MAX_THREADS && !extra
                ? SUCCESS : INVALID_VALUE);
  uint64_t table;
  uint32_t rows;
  memcpy(&table, parameters[0], sizeof table);
  memcpy(&rows, parameters[1], sizeof rows);
  Alloc *alloc = use_range(table, (size_t)rows * ROW, ANY_MEMORY);
  if (!alloc) {
    violation("cuLaunchKernel was given a table at 0x%llx of %u rows that is in no live memory",
              (unsigned long long)table, rows);
    return ILLEGAL_ADDRESS;
  }
  CUresult due = alloc->kind == DEVICE_MEMORY ? SUCCESS : fault_in_rows(table, rows);
  if (due != SUCCESS) {
    drop_use(alloc);
    return due;
  }
  return enqueue(stream_, (Work){.kind = KERNEL, .function = __func__, .from = table,
                                 .from_alloc = alloc, .rows = rows, .injected = at_completion_});
}

int64_t live_modules(void) {
  int64_t live = 0;
  pthread_mutex_lock(&state_lock);
  for (Module *module = modules; module; module = module->next) {
    live++;
  }
  pthread_mutex_unlock(&state_lock);
  return live;
}

int64_t primary_retains(void) {
  int64_t retains = 0;
  for (int device = 0; device < MAX_DEVICES; device++) {
    retains += primary_context(device)->primary_retains;
  }
  return retains;
}

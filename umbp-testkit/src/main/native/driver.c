#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

enum { MAX_FUNCTIONS = 512, MAX_FAULTS = 64, MAX_ADDRESS_FAULTS = 1024, STACK_DEPTH = 64 };

enum { FIRST_BUS = 0x10 }; /* of PCI, of device 0 */

static const size_t MAX_PITCH = INT32_MAX;
static const int LEAST_PRIORITY = 0, GREATEST_PRIORITY = -5;

struct Module {
  void *handle;
  Context *context;
  char *ptx;
  unsigned max_threads; /* of a block, as the module says */
  int users;            /* launches and calls that name it, and the handle */
  int launches;         /* enqueued or running */
};

int device_count = 1, driver_version = 12060, noop;

static int is_initialised;
static struct { const char *name; int64_t calls; } functions[MAX_FUNCTIONS];
static int function_count;
static struct {
  char name[64];
  int code, at_completion;
  int64_t after, times;
} call_faults[MAX_FAULTS];
static int call_fault_count;
static struct { uint64_t address; int code; int64_t times; } address_faults[MAX_ADDRESS_FAULTS];
static int address_fault_count;

/* The contexts that a thread has pushed; the last is current. */
static __thread Context *stack[STACK_DEPTH];
static __thread int depth;

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

int add_call_fault(const char *function, int code, int64_t after, int64_t times,
                   int at_completion) {
  pthread_mutex_lock(&state_lock);
  int i = 0;
  while (i < call_fault_count && call_faults[i].times > 0) {
    i++;
  }
  if (i < MAX_FAULTS) {
    snprintf(call_faults[i].name, sizeof call_faults[i].name, "%s", function);
    call_faults[i].code = code;
    call_faults[i].after = after;
    call_faults[i].times = times;
    call_faults[i].at_completion = at_completion;
    if (i == call_fault_count) {
      __atomic_store_n(&call_fault_count, i + 1, __ATOMIC_RELEASE);
    }
  }
  pthread_mutex_unlock(&state_lock);
  return i < MAX_FAULTS;
}

int add_address_fault(uint64_t address, int code, int64_t times) {
  pthread_mutex_lock(&state_lock);
  int i = 0;
  while (i < address_fault_count && address_faults[i].times > 0) {
    i++;
  }
  if (i < MAX_ADDRESS_FAULTS) {
    address_faults[i].address = address;
    address_faults[i].code = code;
    address_faults[i].times = times;
    if (i == address_fault_count) {
      __atomic_store_n(&address_fault_count, i + 1, __ATOMIC_RELEASE);
    }
  }
  pthread_mutex_unlock(&state_lock);
  return i < MAX_ADDRESS_FAULTS;
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

static CUresult check_initialised(void) {
  return __atomic_load_n(&is_initialised, __ATOMIC_ACQUIRE) ? SUCCESS : NOT_INITIALIZED;
}

static CUresult check_alive(const Context *context) {
  if (!__atomic_load_n(&context->alive, __ATOMIC_ACQUIRE)) {
    return CONTEXT_IS_DESTROYED;
  }
  return __atomic_load_n(&context->sticky, __ATOMIC_ACQUIRE);
}

static CUresult check_context(void) {
  CUresult result = check_initialised();
  if (result != SUCCESS) {
    return result;
  }
  return current() ? check_alive(current()) : INVALID_CONTEXT;
}

static CUresult check_device(int device) {
  CUresult result = check_initialised();
  if (result != SUCCESS) {
    return result;
  }
  int count = __atomic_load_n(&device_count, __ATOMIC_RELAXED);
  return device >= 0 && device < count ? SUCCESS : INVALID_DEVICE;
}

#define RETURN_IF(expression)        \
  do {                               \
    CUresult result_ = (expression); \
    if (result_ != SUCCESS) {        \
      return result_;                \
    }                                \
  } while (0)

#define REQUIRE(condition, otherwise) RETURN_IF((condition) ? SUCCESS : (otherwise))

#define COUNT(at_completion)                                  \
  do {                                                        \
    static int slot_;                                         \
    RETURN_IF(count_call(__func__, &slot_, (at_completion))); \
  } while (0)

#define BEGIN()                 \
  do {                          \
    COUNT(0);                   \
    RETURN_IF(check_context()); \
  } while (0)

#define BEGIN_UNSAFE()           \
  do {                           \
    BEGIN();                     \
    RETURN_IF(check_captures()); \
  } while (0)

#define BEGIN_INITIALISED()         \
  do {                              \
    COUNT(0);                       \
    RETURN_IF(check_initialised()); \
  } while (0)

#define BEGIN_DEVICE(device)         \
  do {                               \
    COUNT(0);                        \
    RETURN_IF(check_device(device)); \
  } while (0)

/* What a handle names is kept until the function returns. */
#define STREAM(handle)                               \
  __attribute__((cleanup(leave_stream))) Stream *stream_ = use_stream(current(), (handle)); \
  REQUIRE(stream_, INVALID_HANDLE)

#define EVENT(name, handle)                                                   \
  __attribute__((cleanup(leave_event))) Event *name = use_event(handle); \
  REQUIRE(name, INVALID_HANDLE)

static void leave_stream(Stream **stream) {
  if (*stream) {
    drop_stream(*stream);
  }
}

static void leave_event(Event **event) {
  if (*event) {
    drop_event(*event);
  }
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

static const struct { CUresult code; const char *name, *text; } errors[] = {
  {SUCCESS, "CUDA_SUCCESS", "no error"},
  {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
  {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
  {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
  {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
  {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
  {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
  {INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
  {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
  {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
  {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
  {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
  {CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
  {ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
   "part or all of the requested memory range is already mapped"},
  {NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
   "pointer does not correspond to a registered memory region"},
  {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
  {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
  {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
   "operation not permitted when stream is capturing"},
  {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
   "operation failed due to a previous error during capture"},
  {CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
   "capture was not initiated in this stream"},
  {CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
   "dependency created on uncaptured work in another stream"},
  {CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
   "operation would make the legacy stream depend on a capturing blocking stream"},
  {CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT",
   "operation not permitted on an event last recorded in a capturing stream"},
  {CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
   "attempt to terminate a thread-local capture sequence from another thread"},
  {UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static CUresult describe_error(CUresult code, const char **name, const char **text) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
    if (errors[i].code == code) {
      *(name ? name : text) = name ? errors[i].name : errors[i].text;
      return SUCCESS;
    }
  }
  *(name ? name : text) = 0;
  return INVALID_VALUE;
}

API CUresult cuGetErrorName(CUresult code, const char **name) {
  COUNT(0);
  return describe_error(code, name, 0);
}

API CUresult cuGetErrorString(CUresult code, const char **text) {
  COUNT(0);
  return describe_error(code, 0, text);
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

/* Those of an H200 that a copy library asks for; 0 for the others. */
API CUresult cuDeviceGetAttribute(int *value, int attribute, int device) {
  enum {
    MAX_THREADS = 1, MAX_BLOCK_X, MAX_BLOCK_Y, MAX_BLOCK_Z, MAX_GRID_X, MAX_GRID_Y, MAX_GRID_Z,
    SHARED_PER_BLOCK, WARP = 10, MAX_PITCH_BYTES, MULTIPROCESSORS = 16, CAN_MAP_HOST = 19,
    PCI_BUS = 33, ASYNC_ENGINES = 40, UNIFIED_ADDRESSING = 41, CAPABILITY_MAJOR = 75,
    PRIORITIES = 78, HOST_POINTER_FOR_REGISTERED = 91, HOST_REGISTER = 99, LAST = 150
  };
  BEGIN_DEVICE(device);
  REQUIRE(attribute > 0 && attribute < LAST, INVALID_VALUE);
  switch (attribute) {
    case MAX_THREADS:
    case MAX_BLOCK_X:
    case MAX_BLOCK_Y: *value = 1024; break;
    case MAX_BLOCK_Z: *value = 64; break;
    case MAX_GRID_X:
    case MAX_PITCH_BYTES: *value = INT32_MAX; break;
    case MAX_GRID_Y:
    case MAX_GRID_Z: *value = 65535; break;
    case SHARED_PER_BLOCK: *value = 48 << 10; break;
    case WARP: *value = 32; break;
    case MULTIPROCESSORS: *value = 132; break;
    case PCI_BUS: *value = FIRST_BUS + device; break;
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

/* A retain does not meet the release that ends the context. */
static pthread_mutex_t primary_lock = PTHREAD_MUTEX_INITIALIZER;

static void unload_modules_of(const Context *context);

static int end_context(Context *context) {
  int was_alive = destroy_context(context);
  if (was_alive) {
    unload_modules_of(context);
  }
  return was_alive;
}

API CUresult cuDevicePrimaryCtxRetain(Context **context, int device) {
  BEGIN_DEVICE(device);
  Context *primary = primary_context(device);
  pthread_mutex_lock(&primary_lock);
  if (primary->primary_retains++ == 0) {
    __atomic_store_n(&primary->sticky, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&primary->alive, 1, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&primary_lock);
  *context = primary;
  return SUCCESS;
}

API CUresult cuDevicePrimaryCtxRelease_v2(int device) {
  BEGIN_DEVICE(device);
  Context *primary = primary_context(device);
  pthread_mutex_lock(&primary_lock);
  int is_retained = primary->primary_retains > 0;
  primary->primary_retains -= is_retained;
  if (is_retained && primary->primary_retains == 0) {
    end_context(primary);
  }
  pthread_mutex_unlock(&primary_lock);
  return is_retained ? SUCCESS : INVALID_CONTEXT;
}

API CUresult cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  BEGIN_DEVICE(device);
  *flags = 0;
  *active = __atomic_load_n(&primary_context(device)->alive, __ATOMIC_ACQUIRE);
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
  REQUIRE(end_context(context), CONTEXT_IS_DESTROYED);
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

/* Unlike for one attribute, what there is no answer to is 0, and no error. */
API CUresult cuPointerGetAttributes(unsigned count, const int *attributes, void **values,
                                    CUdeviceptr address) {
  enum { MEMORY_TYPE = 2, IS_MANAGED = 8, DEVICE_ORDINAL = 9 };
  BEGIN();
  REQUIRE(count && attributes && values, INVALID_VALUE);
  AllocInfo info;
  int is_known = find_alloc(address, &info);
  for (unsigned i = 0; i < count; i++) {
    int attribute = attributes[i];
    REQUIRE(values[i], INVALID_VALUE);
    CUresult result =
        is_known ? pointer_attribute(values[i], attribute, address, &info) : INVALID_VALUE;
    RETURN_IF(result == NOT_SUPPORTED ? result : SUCCESS);
    if (result != SUCCESS) {
      int is_int = attribute == MEMORY_TYPE || attribute == DEVICE_ORDINAL;
      memset(values[i], 0, attribute == IS_MANAGED ? 1 : is_int ? sizeof(int) : sizeof(uint64_t));
    }
  }
  return SUCCESS;
}

/* ---- copies ---- */

#define BEGIN_COPY(handle)                        \
  int at_completion_ = 0;                         \
  COUNT(&at_completion_);                         \
  RETURN_IF(check_context());                     \
  if (__atomic_load_n(&noop, __ATOMIC_RELAXED)) { \
    return SUCCESS;                               \
  }                                               \
  STREAM(handle)

/* The bytes from the start of the first row to the end of the last; 0 when they are too many. */
static size_t extent(size_t pitch, size_t width, size_t height) {
  size_t bytes;
  int is_too_long = __builtin_mul_overflow(pitch, height - 1, &bytes) ||
                    __builtin_add_overflow(bytes, width, &bytes);
  return is_too_long ? 0 : bytes;
}

static CUresult fault_in_copy(const Work *work) {
  if (!__atomic_load_n(&address_fault_count, __ATOMIC_ACQUIRE)) {
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

/* Both sides of an asynchronous copy have to be memory that the driver knows: the copy from
 * pageable memory, which CUDA turns into a blocking one, is refused. */
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
  STREAM(0);
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
  RETURN_IF(enqueue(stream_, work));
  await_stream(stream_);
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
  BEGIN_COPY(stream);
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
  BEGIN_COPY(stream);
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
  STREAM(handle);
  return destroy_stream(stream_);
}

API CUresult cuStreamQuery(void *handle) {
  BEGIN_UNSAFE();
  STREAM(handle);
  RETURN_IF(check_not_captured(stream_));
  RETURN_IF(check_default_stream(stream_));
  int is_idle = stream_is_idle(stream_);
  RETURN_IF(check_context());
  return is_idle ? SUCCESS : NOT_READY;
}

API CUresult cuStreamSynchronize(void *handle) {
  BEGIN_UNSAFE();
  STREAM(handle);
  RETURN_IF(check_not_captured(stream_));
  RETURN_IF(check_default_stream(stream_));
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

/* ---- captures ---- */

static char empty_graph;

API CUresult cuStreamBeginCapture_v2(void *handle, int mode) {
  BEGIN();
  STREAM(handle);
  return begin_capture(stream_, mode);
}

API CUresult cuStreamIsCapturing(void *handle, int *status) {
  BEGIN();
  STREAM(handle);
  RETURN_IF(check_default_stream(stream_));
  *status = capture_status(stream_);
  return SUCCESS;
}

API CUresult cuStreamEndCapture(void *handle, void **graph) {
  BEGIN();
  STREAM(handle);
  CUresult result = end_capture(stream_);
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
  BEGIN_COPY(stream);
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
  BEGIN_COPY(stream);
  REQUIRE(!flags, INVALID_VALUE);
  EVENT(event, handle);
  return enqueue(stream_, (Work){.kind = WAIT, .function = __func__, .event = event,
                                 .injected = at_completion_});
}

API CUresult cuLaunchHostFunc(void *handle, void (*call)(void *), void *argument) {
  BEGIN_COPY(handle);
  REQUIRE(call, INVALID_VALUE);
  return enqueue(stream_, (Work){.kind = CALL, .function = __func__, .call = call,
                                 .argument = argument, .injected = at_completion_});
}

/* ---- modules and kernels ---- */

/* Counts a user in. */
static Module *use_module(const void *handle) {
  pthread_mutex_lock(&state_lock);
  Module *module = object_of(MODULE_HANDLE, handle);
  if (module) {
    __atomic_add_fetch(&module->users, 1, __ATOMIC_RELAXED);
  }
  pthread_mutex_unlock(&state_lock);
  return module;
}

void drop_module(Module *module, int launches) {
  __atomic_sub_fetch(&module->launches, launches, __ATOMIC_ACQ_REL);
  if (__atomic_sub_fetch(&module->users, 1, __ATOMIC_ACQ_REL) == 0) {
    free(module->ptx);
    free(module);
  }
}

static void leave_module(Module **module) {
  if (*module) {
    drop_module(*module, 0);
  }
}

#define MODULE(handle)                                                            \
  __attribute__((cleanup(leave_module))) Module *module = use_module(handle); \
  REQUIRE(module, INVALID_HANDLE)

API CUresult cuModuleLoadData(void **handle, const char *image) {
  enum { MAX_THREADS = 1024 };
  BEGIN_UNSAFE();
  REQUIRE(image, INVALID_VALUE);
  REQUIRE(strstr(image, ".version") && strstr(image, ".target") &&
              strstr(image, ".address_size 64"),
          INVALID_PTX);
  Module *module = calloc(1, sizeof *module);
  module->context = current();
  module->ptx = strdup(image);
  module->users = 1;
  const char *most = strstr(image, ".maxntid ");
  if (!most || sscanf(most, ".maxntid %u", &module->max_threads) != 1) {
    module->max_threads = MAX_THREADS;
  }
  pthread_mutex_lock(&state_lock);
  *handle = module->handle = make_handle(MODULE_HANDLE, module);
  pthread_mutex_unlock(&state_lock);
  return SUCCESS;
}

/* Options are for a compiler that is not here. */
API CUresult cuModuleLoadDataEx(void **handle, const char *image, unsigned count, int *options,
                                void **values) {
  BEGIN();
  (void)count, (void)options, (void)values;
  return cuModuleLoadData(handle, image);
}

/* Takes a module out; 0 when it was out before. */
static int unload(Module *module) {
  pthread_mutex_lock(&state_lock);
  int is_loaded = object_of(MODULE_HANDLE, module->handle) == module;
  if (is_loaded) {
    end_handle(module->handle);
  }
  pthread_mutex_unlock(&state_lock);
  if (is_loaded) {
    drop_module(module, 0);
  }
  return is_loaded;
}

static void unload_modules_of(const Context *context) {
  uint32_t number = 0;
  pthread_mutex_lock(&state_lock);
  for (Module *module; (module = next_object(MODULE_HANDLE, &number));) {
    if (module->context == context) {
      end_handle(module->handle);
      drop_module(module, 0);
    }
  }
  pthread_mutex_unlock(&state_lock);
}

API CUresult cuModuleUnload(void *handle) {
  BEGIN_UNSAFE();
  MODULE(handle);
  REQUIRE(module->context == current(), INVALID_HANDLE);
  int launches = __atomic_load_n(&module->launches, __ATOMIC_ACQUIRE);
  if (launches) {
    violation("a module was unloaded while %d launches of its kernel were enqueued", launches);
  }
  return unload(module) ? SUCCESS : INVALID_HANDLE;
}

/* A function is its module: there is one kernel that the fake can run. */
API CUresult cuModuleGetFunction(void **function, void *handle, const char *name) {
  BEGIN();
  MODULE(handle);
  char entry[128];
  snprintf(entry, sizeof entry, ".entry %s(", name);
  REQUIRE(strstr(module->ptx, entry), NOT_FOUND);
  REQUIRE(!strcmp(name, "umbp_copy_ranges"), NOT_SUPPORTED);
  *function = handle;
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

API CUresult cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                            void *handle, void **parameters, void **extra) {
  enum {
    MAX_GRID_X = INT32_MAX, MAX_GRID_YZ = 65535, MAX_BLOCK_XY = 1024, MAX_BLOCK_Z = 64,
    MAX_SHARED = 48 << 10, ROW = 24
  };
  BEGIN_COPY(handle);
  MODULE(function);
  REQUIRE(module->context == current(), INVALID_HANDLE);
  REQUIRE(grid_x && grid_y && grid_z && block_x && block_y && block_z, INVALID_VALUE);
  REQUIRE(grid_x <= MAX_GRID_X && grid_y <= MAX_GRID_YZ && grid_z <= MAX_GRID_YZ, INVALID_VALUE);
  REQUIRE(block_x <= MAX_BLOCK_XY && block_y <= MAX_BLOCK_XY && block_z <= MAX_BLOCK_Z &&
              block_x * block_y * block_z <= module->max_threads,
          INVALID_VALUE);
  REQUIRE(shared <= MAX_SHARED && parameters && !extra, INVALID_VALUE);
  uint64_t table;
  uint32_t rows;
  memcpy(&table, parameters[0], sizeof table);
  memcpy(&rows, parameters[1], sizeof rows);
  if (!rows) {
    return SUCCESS;
  }
  /* CUDA finds a bad table when the kernel runs; the program is told so at once. */
  Alloc *alloc = use_range(table, (size_t)rows * ROW, ANY_MEMORY);
  if (!alloc || (alloc->kind != DEVICE_MEMORY && !(alloc->flags & HOST_MAPPED)) ||
      !can_reach(alloc) || (alloc->kind == DEVICE_MEMORY && alloc->context != current())) {
    drop_use(alloc);
    violation("cuLaunchKernel was given a table at 0x%llx of %u rows that is in no live memory "
              "which the device can read",
              (unsigned long long)table, rows);
    return ILLEGAL_ADDRESS;
  }
  CUresult due = alloc->kind == DEVICE_MEMORY ? SUCCESS : fault_in_rows(table, rows);
  if (due != SUCCESS) {
    drop_use(alloc);
    return due;
  }
  __atomic_add_fetch(&module->users, 1, __ATOMIC_RELAXED);
  __atomic_add_fetch(&module->launches, 1, __ATOMIC_RELAXED);
  return enqueue(stream_, (Work){.kind = KERNEL, .function = __func__, .from = table,
                                 .from_alloc = alloc, .module = module, .rows = rows,
                                 .grid_x = grid_x, .injected = at_completion_});
}

int64_t live_modules(void) {
  int64_t live = 0;
  uint32_t number = 0;
  pthread_mutex_lock(&state_lock);
  while (next_object(MODULE_HANDLE, &number)) {
    live++;
  }
  pthread_mutex_unlock(&state_lock);
  return live;
}

int64_t primary_retains(void) {
  int64_t retains = 0;
  for (int device = 0; device < MAX_DEVICES; device++) {
    Context *primary = primary_context(device);
    pthread_mutex_lock(&primary_lock);
    retains += primary->primary_retains;
    pthread_mutex_unlock(&primary_lock);
  }
  return retains;
}

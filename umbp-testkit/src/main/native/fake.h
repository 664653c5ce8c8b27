/*
 * A CUDA driver in host memory, for tests through the real JNI library of JCuda. It keeps CUDA's
 * rules about order, lifetime, contexts and errors, is stricter where CUDA leaves things undefined,
 * and reports every use of memory that is not, or no longer, there.
 *
 *   memory.c      what is allocated or registered, and who uses it
 *   handles.c     what programs hold of streams, events and modules
 *   contexts.c    contexts
 *   streams.c     streams, the work on them, and events
 *   work.c        what work does
 *   captures.c    captures of streams
 *   violations.c  what a correct program does not do
 *   calls.c       counts and faults of calls
 *   driver.c      the driver's functions, and modules.c those of modules and kernels
 *   control.c     what io.umbp.testkit.FakeCudaDriver calls
 *
 * Locks, in the order in which they are taken: primary_lock, for the retains of primary contexts;
 * state_lock, for all that is not named here; memory_lock, for the table of allocations, and
 * violation_lock. No memory is copied under a lock. Streams, events and modules count their users,
 * so that a call which looks at one may go on when another thread destroys it.
 */
#ifndef UMBP_FAKE_H
#define UMBP_FAKE_H

#include <pthread.h>
#include <stdint.h>
#include <stddef.h>

typedef int CUresult;
typedef uint64_t CUdeviceptr;

enum {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_CONTEXT = 201,
  INVALID_PTX = 218,
  INVALID_HANDLE = 400,
  ILLEGAL_STATE = 401,
  NOT_FOUND = 500,
  NOT_READY = 600,
  ILLEGAL_ADDRESS = 700,
  CONTEXT_IS_DESTROYED = 709,
  ALREADY_REGISTERED = 712,
  NOT_REGISTERED = 713,
  NOT_SUPPORTED = 801,
  CAPTURE_UNSUPPORTED = 900,
  CAPTURE_INVALIDATED = 901,
  CAPTURE_ISOLATION = 905,
  CAPTURE_IMPLICIT = 906,
  CAPTURED_EVENT = 907,
  CAPTURE_WRONG_THREAD = 908
};

enum { MAX_DEVICES = 8 };

/* ---- memory.c ---- */

typedef enum { DEVICE_MEMORY, PINNED_MEMORY, REGISTERED_MEMORY } AllocKind;

enum { HOST_PORTABLE = 1, HOST_MAPPED = 2 };

typedef struct Context Context;

typedef struct Alloc {
  uint64_t base;       /* as the program sees it; for device memory no one may touch it */
  size_t size;
  char *bytes;         /* where the bytes really are */
  AllocKind kind;
  unsigned flags;      /* of host memory */
  Context *context;
  uint64_t id;
  int users;           /* enqueued or running work that names it, and the table itself */
  int touching;        /* who reads or writes the bytes now */
  int live;            /* still in the table */
} Alloc;

/* Who may be named by a range. */
typedef enum { ANY_MEMORY, ON_DEVICE, ON_HOST } Side;

/* The one live allocation that holds a range, and counts the caller in; 0 when there is none. */
Alloc *use_range(uint64_t address, size_t length, Side side);
void drop_use(Alloc *alloc);
/* Keeps the bytes where they are until end_touch; 0, and nothing to end, when they are gone. */
int begin_touch(Alloc *alloc);
void end_touch(Alloc *alloc);

/* What an allocation is, for questions. */
typedef struct AllocInfo {
  uint64_t base, size, id;
  AllocKind kind;
  unsigned flags;
  Context *context;
} AllocInfo;

int find_alloc(uint64_t address, AllocInfo *info);
CUresult allocate_device(Context *context, size_t size, uint64_t *address);
CUresult allocate_host(Context *context, size_t size, unsigned flags, void **address);
CUresult register_host(Context *context, void *address, size_t size, unsigned flags);
/* Takes an allocation out; work that still names it is a violation. Waits for who touches it. */
CUresult remove_alloc(uint64_t base, AllocKind kind, CUresult missing);
void remove_allocs_of(const Context *context);
void count_allocs(int64_t counts[3]);
size_t device_bytes_in_use(int device);

/* In bytes; read and written with __atomic. */
extern size_t device_limit, pinned_limit;

/* ---- handles.c ---- */

typedef enum { STREAM_HANDLE = 1, EVENT_HANDLE, MODULE_HANDLE } HandleKind;

void *make_handle(HandleKind kind, void *object);
/* 0 for a handle that is stale or of another kind. */
void *object_of(HandleKind kind, const void *handle);
void end_handle(const void *handle);
/* The first object after a number, which is 0 at first; 0 when there is none. */
void *next_object(HandleKind kind, uint32_t *number);
int64_t count_handles(HandleKind kind);

/* ---- contexts.c ---- */

typedef struct Stream Stream;
typedef struct Event Event;
typedef struct Module Module;

struct Context {
  int device;
  int is_primary;
  int retains;          /* of a primary context */
  int alive;            /* with __atomic, for who looks without the lock; sticky too */
  int sticky;           /* the error after which nothing works any more */
  Stream *legacy;       /* the default stream */
  Context *next;
};

Context *new_context(int device);
/* Primary contexts; the release of the last retain destroys it. */
Context *retain_primary(int device);
CUresult release_primary(int device);
int64_t primary_retains(int device);
int is_context(const Context *context);
/* Ends a context with its streams, events, modules and memory; 0 when it had ended before. */
int destroy_context(Context *context);
int64_t live_contexts(void);
void clear_sticky(void);

/* ---- streams.c ---- */

struct Event {
  void *handle;
  unsigned flags;
  Context *context;
  uint64_t issued;      /* records enqueued */
  uint64_t done;        /* records reached */
  int64_t nanos;
  int users;            /* work and calls that name it, and the handle */
  uint64_t capture_number; /* of the capture that its last record is part of, or 0 */
};

typedef struct PendingRead {
  char *bytes;
  size_t length;
  int done;             /* 1, or 2 when the read did not run */
} PendingRead;

typedef enum {
  COPY,
  COPY_ROWS,
  FILL,
  KERNEL,
  RECORD,
  WAIT,
  CALL,
  PROGRAM_WRITE,        /* what a kernel of the program writes or reads */
  PROGRAM_READ
} WorkKind;

typedef struct Work {
  WorkKind kind;
  const char *function; /* that enqueued it */
  uint64_t number;      /* order of enqueueing over all streams */
  const Context *context;
  uint64_t to, from;
  size_t width, height, to_pitch, from_pitch;
  Alloc *to_alloc, *from_alloc;
  Event *event;
  uint64_t generation;
  Module *module;
  uint32_t rows, grid_x;
  int fill;
  int injected;         /* error to end with */
  int go;               /* may start though copies are held */
  int cancelled;        /* its context went: it does not begin, and its result is forgotten */
  void (*call)(void *);
  void *argument;
  char *bytes;
  PendingRead *read;
  struct Work *next;
} Work;

enum { NON_BLOCKING = 1 };

struct Stream {
  Context *context;
  void *handle;         /* 0 for a default stream */
  unsigned flags;       /* NON_BLOCKING: does not order with the legacy stream */
  int priority;
  uint64_t owner;       /* the thread whose default stream it is, or 0 */
  int users;            /* calls that name it, its worker, and its context */
  int has_worker;
  int ended;            /* takes no more work, and goes when what it has is done */
  uint64_t held_from;   /* work from this number on is held; 0 for none */
  int capture;          /* 0, 1 in progress, 2 spoilt */
  int capture_mode;
  uint64_t capture_number, capture_thread;
  Work *first, *last;
  Work *running;        /* in progress, and no longer among the others */
  int waits;            /* the worker waits until it may start the first work */
  pthread_cond_t wake;  /* for the worker */
  Stream *next;
};

extern pthread_mutex_t state_lock;
extern Stream *streams; /* all that have not ended, or still have work; under state_lock */

/* Waits, under state_lock, until some work has ended or something was released. */
void await_change(void);
/* A number of this thread's own, never 0. */
uint64_t thread_number(void);

/* These under state_lock. The end of all streams of a context gives the work that did not run. */
Stream *add_legacy_stream(Context *context);
int end_streams_of(const Context *context);
void destroy_events_of(const Context *context);

void *new_stream(Context *context, unsigned flags, int priority);
/* The stream that a handle names in a context, or in any for 0, and counts the caller in. */
Stream *use_stream(Context *context, void *handle);
void drop_stream(Stream *stream);
/* What is enqueued still runs. */
CUresult destroy_stream(Stream *stream);
int stream_is_idle(Stream *stream);
void await_stream(Stream *stream);
void await_context(const Context *context);
/* Appends work, which belongs to the stream from then on, also when it is refused. */
CUresult enqueue(Stream *stream, Work work);

void *new_event(Context *context, unsigned flags);
/* The event of a handle, and counts the caller in; 0 when there is none. */
Event *use_event(const void *handle);
void drop_event(Event *event);
void destroy_event(Event *event);

void hold_copies(int hold);
int release_one_copy(void);
void hold_stream(Stream *stream, int hold);
/* Ends all holds and captures. */
void release_all(void);

/* ---- work.c ---- */

/* In nanoseconds, of each copy and kernel; read and written with __atomic. */
extern int64_t copy_nanos;

CUresult run(const Work *work);
/* Whether a kernel of a context can use an allocation. */
int is_for_kernels(const Context *context, const Alloc *alloc);

/* ---- violations.c ---- */

enum { VIOLATION_LENGTH = 300 };

void violation(const char *format, ...) __attribute__((format(printf, 1, 2)));
int64_t violation_count(void);
/* 0 when there is no such violation, or its text was not kept. */
int violation_text(int64_t index, char text[VIOLATION_LENGTH]);
void clear_violations(void);

/* ---- captures.c ---- */

enum { CAPTURE_GLOBAL, CAPTURE_THREAD_LOCAL, CAPTURE_RELAXED };

/* The checks spoil the captures on whose account they refuse. */
CUresult exchange_capture_mode(int *mode);
/* For calls that could depend on captured work: whether this thread may make them now. */
CUresult check_captures(void);
/* The default stream can't be used while one that orders with it is captured. */
CUresult check_default_stream(const Stream *stream);
CUresult check_not_captured(Stream *stream);
CUresult check_context_not_captured(const Context *context);
CUresult begin_capture(Stream *stream, int mode);
CUresult end_capture(Stream *stream);
/* As CUDA numbers it; spoils nothing. */
CUresult capture_status(const Stream *stream, int *status);
/* Both under state_lock. */
void forget_capture(Stream *stream);
CUresult capture_work(Stream *stream, const Work *work);

/* ---- calls.c ---- */

int64_t calls_of(const char *function);
void reset_calls(void);
/* 0 when there are too many faults. */
int add_call_fault(const char *function, int code, int64_t after, int64_t times, int at_completion);
int add_address_fault(uint64_t address, int code, int64_t times);
void clear_faults(void);
/* Counts a call; returns the fault that is due for it, or leaves it for the work's completion. */
CUresult count_call(const char *function, int *slot, int *at_completion);
int has_address_faults(void);
/* The fault that is due for a range, if any. */
CUresult fault_in(uint64_t address, size_t length);
/* Every function of the driver that is not written here comes through this; made by build.sh. */
CUresult not_written(const char *function, int *slot);

/* ---- driver.c ---- */

/* Read and written with __atomic. */
extern int device_count, driver_version, noop;

/* The context of this thread, or 0. */
Context *current(void);
CUresult check_initialised(void);
CUresult check_device(int device);
CUresult check_alive(const Context *context);
CUresult check_context(void);

/* ---- modules.c ---- */

/* The module of a handle, and counts the caller in; 0 when there is none. */
Module *use_module(const void *handle);
/* Counts a user out, and launches of its kernel. */
void drop_module(Module *module, int launches);
/* Under state_lock. */
void unload_modules_of(const Context *context);

#endif

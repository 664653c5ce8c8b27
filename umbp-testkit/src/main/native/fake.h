/*
 * A CUDA driver in host memory, for tests through the real JNI library of JCuda. It keeps CUDA's
 * rules about order, lifetime, contexts and errors, is stricter where CUDA leaves things undefined,
 * and reports every use of memory that is not, or no longer, there.
 *
 *   memory.c   what is allocated or registered, and who uses it
 *   streams.c  streams, events and the work on them
 *   driver.c   the driver's functions
 *   control.c  what io.umbp.testkit.FakeCudaDriver calls
 *
 * Locks: state_lock guards all but the table of allocations, which memory_lock guards. memory_lock
 * may be taken inside state_lock, never the other way round. No memory is copied under a lock.
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
  NOT_FOUND = 500,
  NOT_READY = 600,
  ILLEGAL_ADDRESS = 700,
  CONTEXT_IS_DESTROYED = 709,
  ALREADY_REGISTERED = 712,
  NOT_REGISTERED = 713,
  LAUNCH_FAILED = 719,
  NOT_SUPPORTED = 801,
  CAPTURE_UNSUPPORTED = 900,
  CAPTURE_INVALIDATED = 901,
  CAPTURE_UNMATCHED = 903,
  CAPTURE_ISOLATION = 905,
  CAPTURE_IMPLICIT = 906,
  CAPTURED_EVENT = 907
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
  int live;            /* still in the table */
} Alloc;

/* Who may be named by a range. */
typedef enum { ANY_MEMORY, ON_DEVICE, ON_HOST } Side;

/* Finds the one live allocation that holds a range, and counts the caller in; 0 when there is none. */
Alloc *use_range(uint64_t address, size_t length, Side side);
void drop_use(Alloc *alloc);
/* As use_range, without counting: for questions. */
int find_alloc(uint64_t address, Alloc *copy);
CUresult allocate_device(Context *context, size_t size, uint64_t *address);
CUresult allocate_host(Context *context, size_t size, unsigned flags, void **address);
CUresult register_host(Context *context, void *address, size_t size, unsigned flags);
/* Takes an allocation out; work that still names it is a violation. */
CUresult remove_alloc(uint64_t base, AllocKind kind, CUresult missing);
void remove_allocs_of(Context *context);
void count_allocs(int64_t counts[3]);
size_t device_bytes_in_use(int device);

extern size_t device_limit, pinned_limit;

/* ---- streams.c ---- */

typedef struct Stream Stream;
typedef struct Event Event;

struct Context {
  int device;
  int primary_retains;  /* 0 for a context of cuCtxCreate */
  int alive;
  int sticky;           /* the error after which nothing works any more */
  Stream *legacy;       /* the default stream */
  Context *next;
};

struct Event {
  unsigned flags;
  Context *context;
  uint64_t issued;      /* records enqueued */
  uint64_t done;        /* records reached */
  int64_t nanos;
  int users;            /* work that names it, and the program's handle */
  int live;
  int captured;
};

typedef struct PendingRead {
  char *bytes;
  size_t length;
  int done;             /* 1, or 2 when the read was refused */
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
  uint64_t to, from;
  size_t width, height, to_pitch, from_pitch;
  Alloc *to_alloc, *from_alloc;
  Event *event;
  uint64_t generation;
  uint32_t rows;
  int fill;
  int injected;         /* error to end with */
  int go;               /* may start though copies are held */
  void (*call)(void *);
  void *argument;
  char *bytes;
  PendingRead *read;
  struct Work *next;
} Work;

struct Stream {
  Context *context;
  unsigned flags;       /* 1: does not order with the legacy stream */
  int priority;
  int internal;         /* not made by the program */
  int live, quit;
  uint64_t held_from;   /* work from this number on is held; 0 for none */
  int capturing;        /* 0, 1 in progress, 2 invalidated */
  int capture_mode;
  Work *first, *last;
  uint64_t running;     /* number of the work in progress */
  int waits;            /* the worker waits until it may start the first work */
  pthread_cond_t wake;  /* for the worker */
  Stream *next;
};

extern pthread_mutex_t state_lock;

/* Waits, under state_lock, until some work has ended or something was released. */
void await_change(void);

Context *new_context(int device);
Context *primary_context(int device);
int is_context(const Context *context);
void destroy_context(Context *context);
int64_t live_contexts(void);

Stream *new_stream(Context *context, unsigned flags, int priority, int internal);
/* The stream that a handle names in a context, 0 when there is none. */
Stream *stream_of(Context *context, void *handle);
CUresult destroy_stream(Stream *stream);
int stream_is_idle(Stream *stream);
void await_stream(Stream *stream);
void await_context(Context *context);
/* Appends work; it belongs to the stream from then on. */
CUresult enqueue(Stream *stream, Work work);
int any_capture(const Context *context);

Event *new_event(Context *context, unsigned flags);
int is_event(const Event *event);
CUresult destroy_event(Event *event);
void drop_event(Event *event);

void hold_copies(int hold);
int release_one_copy(void);
void hold_stream(Stream *stream, int hold);
Stream *find_stream(const void *handle);
void count_handles(int64_t *streams, int64_t *events);

void violation(const char *format, ...) __attribute__((format(printf, 1, 2)));
int64_t violation_count(void);
const char *violation_text(int64_t index);
void clear_violations(void);
void clear_sticky(void);

extern int64_t copy_nanos;

/* ---- driver.c ---- */

extern int device_count, driver_version, noop;

int64_t calls_of(const char *function);
void reset_calls(void);
void add_call_fault(const char *function, int code, int64_t after, int64_t times, int at_completion);
void add_address_fault(uint64_t address, int code, int64_t times);
void clear_faults(void);
int64_t live_modules(void);
int64_t primary_retains(void);

/* Every function of the driver that is not written here comes through this; made by build.sh. */
CUresult not_written(const char *function, int *slot);

#endif

#define _GNU_SOURCE
#include "fake.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NON_BLOCKING = 1, KEPT_VIOLATIONS = 100, VIOLATION_LENGTH = 300 };

pthread_mutex_t state_lock = PTHREAD_MUTEX_INITIALIZER;
int64_t copy_nanos;

static Context *contexts;
static Context *primaries[MAX_DEVICES];
static Stream *streams;
static Event **events;
static size_t event_count, event_capacity;
static uint64_t next_number;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int waiting_for_change;
static uint64_t copies_held_from; /* copies from this number on are held; 0 for none */
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
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  va_list arguments;
  va_start(arguments, format);
  pthread_mutex_lock(&lock);
  int64_t seen = __atomic_load_n(&violations_seen, __ATOMIC_ACQUIRE);
  if (seen < KEPT_VIOLATIONS) {
    vsnprintf(violations[seen], VIOLATION_LENGTH, format, arguments);
  }
  __atomic_store_n(&violations_seen, seen + 1, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&lock);
  va_end(arguments);
}

int64_t violation_count(void) { return __atomic_load_n(&violations_seen, __ATOMIC_ACQUIRE); }

const char *violation_text(int64_t index) {
  return index < violation_count() && index < KEPT_VIOLATIONS ? violations[index] : 0;
}

void clear_violations(void) { __atomic_store_n(&violations_seen, 0, __ATOMIC_RELEASE); }

/* ---- contexts ---- */

Context *new_context(int device) {
  Context *context = calloc(1, sizeof *context);
  context->device = device;
  context->alive = 1;
  context->legacy = new_stream(context, 0, 0, 1);
  pthread_mutex_lock(&state_lock);
  context->next = contexts;
  contexts = context;
  pthread_mutex_unlock(&state_lock);
  return context;
}

/* A primary context is the same object for the life of the process. */
Context *primary_context(int device) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  if (!primaries[device]) {
    primaries[device] = new_context(device);
    primaries[device]->alive = 0;
  }
  Context *context = primaries[device];
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

/* Ends a context with all that was made in it; the object stays, for handles that are stale. */
void destroy_context(Context *context) {
  pthread_mutex_lock(&state_lock);
  context->alive = 0;
  for (Stream *stream = streams; stream; stream = stream->next) {
    if (stream->context == context && !stream->internal && stream->live) {
      stream->live = 0;
      stream->quit = 1;
      pthread_cond_signal(&stream->wake);
    }
  }
  for (size_t i = 0; i < event_count;) {
    Event *event = events[i];
    if (event->context == context) {
      events[i] = events[--event_count];
      event->live = 0;
      drop_event(event);
    } else {
      i++;
    }
  }
  tell_change();
  pthread_mutex_unlock(&state_lock);
  remove_allocs_of(context);
}

int64_t live_contexts(void) {
  int64_t alive = 0;
  pthread_mutex_lock(&state_lock);
  for (Context *context = contexts; context; context = context->next) {
    alive += context->alive && primaries[context->device] != context;
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

/* Where a range really is; a range that is in no live allocation is a violation. */
static char *bytes_at(const Work *work, const Alloc *alloc, uint64_t address) {
  if (!alloc || !__atomic_load_n(&alloc->live, __ATOMIC_ACQUIRE)) {
    violation("%s, enqueued as number %" PRIu64 ", touches 0x%" PRIx64
              ", which is not, or no longer, there",
              work->function, work->number, address);
    return 0;
  }
  return alloc->bytes + (address - alloc->base);
}

static int copy_row(const Work *work, uint64_t to, uint64_t from, size_t length) {
  Alloc *target = use_range(to, length, ANY_MEMORY);
  Alloc *source = use_range(from, length, ANY_MEMORY);
  char *target_bytes = bytes_at(work, target, to);
  char *source_bytes = bytes_at(work, source, from);
  int is_mapped = target_bytes && source_bytes &&
                  (target->kind == DEVICE_MEMORY || (target->flags & HOST_MAPPED)) &&
                  (source->kind == DEVICE_MEMORY || (source->flags & HOST_MAPPED));
  if (is_mapped) {
    memcpy(target_bytes, source_bytes, length);
  } else if (target_bytes && source_bytes) {
    violation("%s touches host memory that is not mapped for devices", work->function);
  }
  drop_use(target);
  drop_use(source);
  return is_mapped ? SUCCESS : ILLEGAL_ADDRESS;
}

/* The C twin of umbp_copy_ranges: rows of {from, to, length}, read when the kernel runs. */
static int run_kernel(const Work *work) {
  char *bytes = bytes_at(work, work->from_alloc, work->from);
  if (!bytes) {
    return ILLEGAL_ADDRESS;
  }
  for (uint32_t i = 0; i < work->rows; i++) {
    uint64_t row[3];
    memcpy(row, bytes + (size_t)i * sizeof row, sizeof row);
    int result = row[2] ? copy_row(work, row[1], row[0], row[2]) : SUCCESS;
    if (result != SUCCESS) {
      return result;
    }
  }
  return SUCCESS;
}

static void pause_copy(void) {
  int64_t nanos = __atomic_load_n(&copy_nanos, __ATOMIC_RELAXED);
  if (nanos > 0) {
    struct timespec time = {nanos / 1000000000, nanos % 1000000000};
    nanosleep(&time, 0);
  }
}

static int run(const Work *work) {
  if (work->injected) {
    return work->injected;
  }
  char *to, *from;
  switch (work->kind) {
    case COPY:
    case COPY_ROWS:
      pause_copy();
      to = bytes_at(work, work->to_alloc, work->to);
      from = bytes_at(work, work->from_alloc, work->from);
      if (!to || !from) {
        return ILLEGAL_ADDRESS;
      }
      for (size_t row = 0; row < work->height; row++) {
        memcpy(to + row * work->to_pitch, from + row * work->from_pitch, work->width);
      }
      return SUCCESS;
    case FILL:
      to = bytes_at(work, work->to_alloc, work->to);
      if (!to) {
        return ILLEGAL_ADDRESS;
      }
      memset(to, work->fill, work->width);
      return SUCCESS;
    case KERNEL:
      pause_copy();
      return run_kernel(work);
    case CALL:
      work->call(work->argument);
      return SUCCESS;
    case PROGRAM_WRITE:
      to = bytes_at(work, work->to_alloc, work->to);
      if (!to) {
        return ILLEGAL_ADDRESS;
      }
      memcpy(to, work->bytes, work->width);
      return SUCCESS;
    case PROGRAM_READ:
      from = bytes_at(work, work->from_alloc, work->from);
      if (!from) {
        return ILLEGAL_ADDRESS;
      }
      memcpy(work->read->bytes, from, work->width);
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
  return !is_held(stream, work) &&
         (work->kind != WAIT || work->event->done >= work->generation) &&
         is_its_turn(stream, work);
}

static void finish(Stream *stream, Work *work, int result) {
  Context *context = stream->context;
  if (result != SUCCESS && !context->sticky) {
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

static void *work_off(void *argument) {
  Stream *stream = argument;
  pthread_mutex_lock(&state_lock);
  for (;;) {
    Work *work = stream->first;
    if (!work && stream->quit) {
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
    int is_dead = stream->context->sticky != 0;
    pthread_mutex_unlock(&state_lock);
    int result = is_dead && work->kind != CALL ? stream->context->sticky : run(work);
    drop_use(work->to_alloc);
    drop_use(work->from_alloc);
    free(work->bytes);
    pthread_mutex_lock(&state_lock);
    finish(stream, work, result);
    free(work);
  }
  Stream **link = &streams;
  while (*link != stream) {
    link = &(*link)->next;
  }
  *link = stream->next;
  pthread_mutex_unlock(&state_lock);
  pthread_cond_destroy(&stream->wake);
  free(stream);
  return 0;
}

Stream *new_stream(Context *context, unsigned flags, int priority, int internal) {
  Stream *stream = calloc(1, sizeof *stream);
  stream->context = context;
  stream->flags = flags;
  stream->priority = priority;
  stream->internal = internal;
  stream->live = 1;
  pthread_cond_init(&stream->wake, 0);
  pthread_mutex_lock(&state_lock);
  stream->next = streams;
  streams = stream;
  pthread_mutex_unlock(&state_lock);
  /* Detached, so that the process can end while work is held. */
  pthread_attr_t detached;
  pthread_t thread;
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&detached, 256 << 10);
  pthread_create(&thread, &detached, work_off, stream);
  pthread_attr_destroy(&detached);
  return stream;
}

Stream *find_stream(const void *handle) {
  pthread_mutex_lock(&state_lock);
  Stream *stream = streams;
  while (stream && (stream != handle || !stream->live)) {
    stream = stream->next;
  }
  pthread_mutex_unlock(&state_lock);
  return stream;
}

Stream *stream_of(Context *context, void *handle) {
  enum { LEGACY = 1, PER_THREAD = 2 };
  static __thread Stream *per_thread[MAX_DEVICES];
  if ((uintptr_t)handle <= LEGACY) {
    return context->legacy;
  }
  if ((uintptr_t)handle == PER_THREAD) {
    Stream **own = &per_thread[context->device];
    if (!*own || (*own)->context != context) {
      *own = new_stream(context, 0, 0, 1);
    }
    return *own;
  }
  Stream *stream = find_stream(handle);
  return stream && stream->context == context ? stream : 0;
}

CUresult destroy_stream(Stream *stream) {
  if (stream->internal) {
    return INVALID_HANDLE;
  }
  /* What is enqueued still runs; then the worker frees the stream. */
  pthread_mutex_lock(&state_lock);
  stream->live = 0;
  stream->quit = 1;
  pthread_cond_signal(&stream->wake);
  pthread_mutex_unlock(&state_lock);
  return SUCCESS;
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

void await_context(Context *context) {
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

CUresult enqueue(Stream *stream, Work work) {
  Work *own = malloc(sizeof *own);
  *own = work;
  own->next = 0;
  pthread_mutex_lock(&state_lock);
  if (stream->capturing) {
    pthread_mutex_unlock(&state_lock);
    drop_use(own->to_alloc);
    drop_use(own->from_alloc);
    free(own->bytes);
    if (own->kind == RECORD) {
      own->event->captured = 1;
    }
    free(own);
    return SUCCESS;
  }
  own->number = ++next_number;
  if (own->kind == RECORD) {
    own->event->captured = 0;
    own->generation = ++own->event->issued;
  } else if (own->kind == WAIT) {
    own->generation = own->event->issued;
  }
  if (own->event) {
    own->event->users++;
  }
  if (stream->last) {
    stream->last->next = own;
  } else {
    stream->first = own;
  }
  stream->last = own;
  if (stream->first == own) {
    pthread_cond_signal(&stream->wake);
  }
  pthread_mutex_unlock(&state_lock);
  return SUCCESS;
}

int any_capture(const Context *context) {
  int capturing = 0;
  pthread_mutex_lock(&state_lock);
  for (Stream *stream = streams; stream; stream = stream->next) {
    capturing |= stream->live && stream->context == context && stream->capturing &&
                 !(stream->flags & NON_BLOCKING);
  }
  pthread_mutex_unlock(&state_lock);
  return capturing;
}

/* ---- events ---- */

Event *new_event(Context *context, unsigned flags) {
  Event *event = calloc(1, sizeof *event);
  event->flags = flags;
  event->context = context;
  event->users = 1;
  event->live = 1;
  pthread_mutex_lock(&state_lock);
  if (event_count == event_capacity) {
    event_capacity = event_capacity ? event_capacity * 2 : 256;
    events = realloc(events, event_capacity * sizeof *events);
  }
  events[event_count++] = event;
  pthread_mutex_unlock(&state_lock);
  return event;
}

static size_t event_index(const Event *event) {
  size_t i = 0;
  while (i < event_count && events[i] != event) {
    i++;
  }
  return i;
}

int is_event(const Event *event) {
  pthread_mutex_lock(&state_lock);
  int is_known = event_index(event) < event_count;
  pthread_mutex_unlock(&state_lock);
  return is_known;
}

CUresult destroy_event(Event *event) {
  pthread_mutex_lock(&state_lock);
  size_t i = event_index(event);
  if (i < event_count) {
    events[i] = events[--event_count];
    event->live = 0;
    drop_event(event);
  }
  pthread_mutex_unlock(&state_lock);
  return SUCCESS;
}

/* Under state_lock. */
void drop_event(Event *event) {
  if (--event->users == 0) {
    free(event);
  }
}

/* ---- control ---- */

void hold_copies(int hold) {
  pthread_mutex_lock(&state_lock);
  copies_held_from = hold ? next_number + 1 : 0;
  tell_change();
  pthread_mutex_unlock(&state_lock);
}

int release_one_copy(void) {
  Work *earliest = 0;
  pthread_mutex_lock(&state_lock);
  for (Stream *stream = streams; stream; stream = stream->next) {
    for (Work *work = stream->first; work; work = work->next) {
      if (is_copy(work) && !work->go && is_from(copies_held_from, work) &&
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
  stream->held_from = hold ? next_number + 1 : 0;
  tell_change();
  pthread_mutex_unlock(&state_lock);
}

void count_handles(int64_t *live_streams, int64_t *live_events) {
  pthread_mutex_lock(&state_lock);
  *live_streams = 0;
  for (Stream *stream = streams; stream; stream = stream->next) {
    *live_streams += stream->live && !stream->internal;
  }
  *live_events = (int64_t)event_count;
  pthread_mutex_unlock(&state_lock);
}

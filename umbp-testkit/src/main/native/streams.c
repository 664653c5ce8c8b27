/* Streams, the work on them, and events. */
#define _GNU_SOURCE
#include "fake.h"

#include <stdlib.h>
#include <time.h>

pthread_mutex_t state_lock = PTHREAD_MUTEX_INITIALIZER;
Stream *streams;

static uint64_t next_number;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int waiting_for_change;
static uint64_t copies_held_from; /* copies from this number on are held; 0 for none */

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

/* ---- streams; static functions are under state_lock, which a worker leaves to run work ---- */

static int is_copy(const Work *work) { return work->kind <= KERNEL; }

/* Whether a stream still has work that was enqueued up to a number. */
static int has_work_up_to(const Stream *stream, uint64_t number) {
  return (stream->running && stream->running->number <= number) ||
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
  if (work->cancelled) {
    return 1;
  }
  return !is_held(stream, work) &&
         (work->kind != WAIT || work->event->done >= work->generation) &&
         is_its_turn(stream, work);
}

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static void finish(Stream *stream, Work *work, int result) {
  Context *context = stream->context;
  if (result != SUCCESS && !context->sticky && !work->cancelled) {
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
    stream->running = work;
    int error = work->cancelled ? CONTEXT_IS_DESTROYED : stream->context->sticky;
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

Stream *add_legacy_stream(Context *context) {
  Stream *stream = add_stream(context, 0, 0);
  stream->users++; /* the context */
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

static int cancel(Work *work) {
  int is_first = !work->cancelled;
  work->cancelled = 1;
  return is_first;
}

/* Lets work of a stream that has not begun end without running; counts it, and what is running. */
static int cancel_work(Stream *stream) {
  int unfinished = stream->running ? cancel(stream->running) : 0;
  for (Work *work = stream->first; work; work = work->next) {
    unfinished += cancel(work);
  }
  return unfinished;
}

int end_streams_of(const Context *context) {
  int unfinished = 0;
  for (Stream *stream = streams, *next; stream; stream = next) {
    next = stream->next;
    if (stream->context != context) {
      continue;
    }
    unfinished += cancel_work(stream);
    if (!stream->ended && !(context->is_primary && stream == context->legacy)) {
      end_stream(stream);
    }
  }
  tell_change();
  return unfinished;
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

uint64_t thread_number(void) {
  static uint64_t last;
  static __thread uint64_t own;
  if (!own) {
    own = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
  }
  return own;
}

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

void destroy_events_of(const Context *context) {
  uint32_t number = 0;
  for (Event *event; (event = next_object(EVENT_HANDLE, &number));) {
    if (event->context == context) {
      end_handle(event->handle);
      drop_event(event);
    }
  }
}

/* ---- holds ---- */

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
      if (is_copy(work) && !work->go && !work->cancelled && is_from(copies_held_from, work) &&
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

/* Captures of streams: what is enqueued meanwhile is checked and forgotten, and does not run. */
#include "fake.h"

enum { NONE, ACTIVE, SPOILT };

/* Of all contexts; lets calls see without a lock that there is none. */
static int capture_count;
static uint64_t last_capture;

static __thread int thread_mode;

CUresult exchange_capture_mode(int *mode) {
  if (*mode < CAPTURE_GLOBAL || *mode > CAPTURE_RELAXED) {
    return INVALID_VALUE;
  }
  int old = thread_mode;
  thread_mode = *mode;
  *mode = old;
  return SUCCESS;
}

/* Whether a capture forbids this thread calls that could depend on what is captured. */
static int forbids(const Stream *stream) {
  int is_own = stream->capture_thread == thread_number();
  return (is_own && stream->capture_mode != CAPTURE_RELAXED) ||
         (thread_mode == CAPTURE_GLOBAL && stream->capture_mode == CAPTURE_GLOBAL);
}

CUresult check_captures(void) {
  if (thread_mode == CAPTURE_RELAXED || !__atomic_load_n(&capture_count, __ATOMIC_ACQUIRE)) {
    return SUCCESS;
  }
  CUresult result = SUCCESS;
  pthread_mutex_lock(&state_lock);
  for (Stream *stream = streams; stream; stream = stream->next) {
    if (stream->capture && forbids(stream)) {
      stream->capture = SPOILT;
      result = CAPTURE_UNSUPPORTED;
    }
  }
  pthread_mutex_unlock(&state_lock);
  return result;
}

/* Whether a capture makes the default stream of a context unusable. */
static int blocks_default_stream(const Stream *stream, const Context *context) {
  return stream->capture && stream->context == context && !(stream->flags & NON_BLOCKING);
}

CUresult check_default_stream(const Stream *stream) {
  if (stream != stream->context->legacy || !__atomic_load_n(&capture_count, __ATOMIC_ACQUIRE)) {
    return SUCCESS;
  }
  CUresult result = SUCCESS;
  pthread_mutex_lock(&state_lock);
  for (Stream *other = streams; other; other = other->next) {
    if (blocks_default_stream(other, stream->context)) {
      other->capture = SPOILT;
      result = CAPTURE_IMPLICIT;
    }
  }
  pthread_mutex_unlock(&state_lock);
  return result;
}

CUresult check_not_captured(Stream *stream) {
  pthread_mutex_lock(&state_lock);
  int is_captured = stream->capture != NONE;
  if (is_captured) {
    stream->capture = SPOILT;
  }
  pthread_mutex_unlock(&state_lock);
  return is_captured ? CAPTURE_UNSUPPORTED : SUCCESS;
}

CUresult check_context_not_captured(const Context *context) {
  CUresult result = SUCCESS;
  pthread_mutex_lock(&state_lock);
  for (Stream *stream = streams; stream; stream = stream->next) {
    if (stream->capture && stream->context == context) {
      stream->capture = SPOILT;
      result = CAPTURE_UNSUPPORTED;
    }
  }
  pthread_mutex_unlock(&state_lock);
  return result;
}

CUresult begin_capture(Stream *stream, int mode) {
  if (mode < CAPTURE_GLOBAL || mode > CAPTURE_RELAXED) {
    return INVALID_VALUE;
  }
  CUresult result = SUCCESS;
  pthread_mutex_lock(&state_lock);
  if (!stream->handle) {
    result = CAPTURE_UNSUPPORTED;
  } else if (stream->ended) {
    result = INVALID_HANDLE;
  } else if (stream->capture) {
    result = ILLEGAL_STATE;
  } else {
    stream->capture = ACTIVE;
    stream->capture_number = ++last_capture;
    stream->capture_mode = mode;
    stream->capture_thread = thread_number();
    __atomic_add_fetch(&capture_count, 1, __ATOMIC_ACQ_REL);
  }
  pthread_mutex_unlock(&state_lock);
  return result;
}

CUresult end_capture(Stream *stream) {
  CUresult result = SUCCESS;
  pthread_mutex_lock(&state_lock);
  if (!stream->capture) {
    result = ILLEGAL_STATE;
  } else if (stream->capture_mode != CAPTURE_RELAXED &&
             stream->capture_thread != thread_number()) {
    result = CAPTURE_WRONG_THREAD;
  } else {
    result = stream->capture == ACTIVE ? SUCCESS : CAPTURE_INVALIDATED;
    forget_capture(stream);
  }
  pthread_mutex_unlock(&state_lock);
  return result;
}

CUresult capture_status(const Stream *stream, int *status) {
  CUresult result = SUCCESS;
  pthread_mutex_lock(&state_lock);
  *status = stream->capture;
  for (const Stream *other = streams; other; other = other->next) {
    if (stream == stream->context->legacy && blocks_default_stream(other, stream->context)) {
      result = CAPTURE_IMPLICIT;
    }
  }
  pthread_mutex_unlock(&state_lock);
  return result;
}

void forget_capture(Stream *stream) {
  if (stream->capture) {
    stream->capture = NONE;
    __atomic_sub_fetch(&capture_count, 1, __ATOMIC_ACQ_REL);
  }
}

CUresult capture_work(Stream *stream, const Work *work) {
  if (stream->capture == SPOILT) {
    return CAPTURE_INVALIDATED;
  }
  if (work->kind == PROGRAM_WRITE || work->kind == PROGRAM_READ) {
    return CAPTURE_UNSUPPORTED;
  }
  if (work->kind == RECORD) {
    work->event->capture_number = stream->capture_number;
  }
  /* A wait for work that is not captured would tie the graph to this one run. */
  if (work->kind == WAIT && work->event->capture_number != stream->capture_number &&
      (work->event->capture_number || work->event->issued)) {
    stream->capture = SPOILT;
    return CAPTURE_ISOLATION;
  }
  return SUCCESS;
}

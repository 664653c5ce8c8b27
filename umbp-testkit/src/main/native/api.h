/*
 * What the driver's functions begin with: each counts itself and fails when a fault is due, then
 * checks what it needs of the process, the thread and its handles.
 */
#ifndef UMBP_API_H
#define UMBP_API_H

#include "fake.h"

#define API __attribute__((visibility("default")))

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

/* Of what enqueues work: at_completion_ is the error that the work is to end with. */
#define BEGIN_WORK(handle)                        \
  int at_completion_ = 0;                         \
  COUNT(&at_completion_);                         \
  RETURN_IF(check_context());                     \
  if (__atomic_load_n(&noop, __ATOMIC_RELAXED)) { \
    return SUCCESS;                               \
  }                                               \
  STREAM(stream_, handle)

/* What a handle names is kept until the function returns. */
#define HANDLE(type, name, use, leave)             \
  __attribute__((cleanup(leave))) type *name = use; \
  REQUIRE(name, INVALID_HANDLE)

#define STREAM(name, handle) HANDLE(Stream, name, use_stream(current(), handle), leave_stream)
#define EVENT(name, handle) HANDLE(Event, name, use_event(handle), leave_event)
#define MODULE(name, handle) HANDLE(Module, name, use_module(handle), leave_module)

static inline void leave_stream(Stream **stream) {
  if (*stream) {
    drop_stream(*stream);
  }
}

static inline void leave_event(Event **event) {
  if (*event) {
    drop_event(*event);
  }
}

static inline void leave_module(Module **module) {
  if (*module) {
    drop_module(*module, 0);
  }
}

#endif

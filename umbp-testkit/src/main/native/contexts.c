/*
 * Contexts: what they own ends with them. The object of one that was destroyed stays, with its
 * default stream, so that a stale handle is known.
 */
#include "fake.h"

#include <stdlib.h>

static Context *contexts; /* destroyed ones too; under state_lock */

/* A retain does not meet the release that ends the context. */
static pthread_mutex_t primary_lock = PTHREAD_MUTEX_INITIALIZER;
static Context *primaries[MAX_DEVICES]; /* the same objects for the life of the process */

static Context *add_context(int device, int is_primary) {
  Context *context = calloc(1, sizeof *context);
  context->device = device;
  context->is_primary = is_primary;
  context->alive = !is_primary;
  pthread_mutex_lock(&state_lock);
  context->legacy = add_legacy_stream(context);
  context->next = contexts;
  contexts = context;
  pthread_mutex_unlock(&state_lock);
  return context;
}

Context *new_context(int device) { return add_context(device, 0); }

Context *retain_primary(int device) {
  pthread_mutex_lock(&primary_lock);
  if (!primaries[device]) {
    primaries[device] = add_context(device, 1);
  }
  Context *primary = primaries[device];
  if (primary->retains++ == 0) {
    pthread_mutex_lock(&state_lock);
    __atomic_store_n(&primary->sticky, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&primary->alive, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&state_lock);
  }
  pthread_mutex_unlock(&primary_lock);
  return primary;
}

CUresult release_primary(int device) {
  pthread_mutex_lock(&primary_lock);
  Context *primary = primaries[device];
  int is_retained = primary && primary->retains;
  if (is_retained && --primary->retains == 0) {
    destroy_context(primary);
  }
  pthread_mutex_unlock(&primary_lock);
  return is_retained ? SUCCESS : INVALID_CONTEXT;
}

int64_t primary_retains(int device) {
  pthread_mutex_lock(&primary_lock);
  int64_t retains = primaries[device] ? primaries[device]->retains : 0;
  pthread_mutex_unlock(&primary_lock);
  return retains;
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

int destroy_context(Context *context) {
  pthread_mutex_lock(&state_lock);
  if (!context->alive) {
    pthread_mutex_unlock(&state_lock);
    return 0;
  }
  __atomic_store_n(&context->alive, 0, __ATOMIC_RELEASE);
  int unfinished = end_streams_of(context);
  destroy_events_of(context);
  unload_modules_of(context);
  pthread_mutex_unlock(&state_lock);
  if (unfinished) {
    violation("a context of device %d was destroyed while %d pieces of work were enqueued",
              context->device, unfinished);
  }
  remove_allocs_of(context);
  return 1;
}

int64_t live_contexts(void) {
  int64_t alive = 0;
  pthread_mutex_lock(&state_lock);
  for (Context *context = contexts; context; context = context->next) {
    alive += context->alive && !context->is_primary;
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

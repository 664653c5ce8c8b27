/* What a correct program does not do, counted and described. */
#include "fake.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { KEPT_VIOLATIONS = 100 };

static pthread_mutex_t violation_lock = PTHREAD_MUTEX_INITIALIZER;
static char violations[KEPT_VIOLATIONS][VIOLATION_LENGTH];
static int64_t violations_seen;

void violation(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  pthread_mutex_lock(&violation_lock);
  if (violations_seen < KEPT_VIOLATIONS) {
    vsnprintf(violations[violations_seen], VIOLATION_LENGTH, format, arguments);
  }
  violations_seen++;
  pthread_mutex_unlock(&violation_lock);
  va_end(arguments);
}

int64_t violation_count(void) {
  pthread_mutex_lock(&violation_lock);
  int64_t seen = violations_seen;
  pthread_mutex_unlock(&violation_lock);
  return seen;
}

int violation_text(int64_t index, char text[VIOLATION_LENGTH]) {
  pthread_mutex_lock(&violation_lock);
  int is_kept = index < violations_seen && index < KEPT_VIOLATIONS;
  if (is_kept) {
    memcpy(text, violations[index], VIOLATION_LENGTH);
  }
  pthread_mutex_unlock(&violation_lock);
  return is_kept;
}

void clear_violations(void) {
  pthread_mutex_lock(&violation_lock);
  violations_seen = 0;
  pthread_mutex_unlock(&violation_lock);
}

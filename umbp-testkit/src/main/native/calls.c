/* Counts the calls of the driver's functions, and lets those fail that a test wants to. */
#include "fake.h"

#include <stdio.h>
#include <string.h>

enum { MAX_FUNCTIONS = 512, MAX_FAULTS = 64, MAX_ADDRESS_FAULTS = 1024 };

static struct { const char *name; int64_t calls; } functions[MAX_FUNCTIONS]; /* from 1 */
static int function_count;
static struct {
  char name[64];
  int code, at_completion;
  int64_t after, times;
} call_faults[MAX_FAULTS];
static int call_fault_count;
static struct { uint64_t address; int code; int64_t times; } address_faults[MAX_ADDRESS_FAULTS];
static int address_fault_count;

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

CUresult count_call(const char *function, int *slot, int *at_completion) {
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

int has_address_faults(void) {
  return __atomic_load_n(&address_fault_count, __ATOMIC_ACQUIRE) != 0;
}

CUresult fault_in(uint64_t address, size_t length) {
  if (!has_address_faults()) {
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

#define _GNU_SOURCE
#include "fake.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { FRESH = 0xCD };

/* Larger allocations are left as they come, so that a test can have one of many gigabytes. */
static const size_t FILLED_WHEN_FRESH = 64u << 20;
static const size_t PAGE = 4096;

size_t device_limit = SIZE_MAX, pinned_limit = SIZE_MAX;

static pthread_rwlock_t memory_lock = PTHREAD_RWLOCK_INITIALIZER;
static Alloc **table; /* live allocations, ascending */
static size_t count, capacity;
static uint64_t next_id;
static size_t device_used[MAX_DEVICES], pinned_used;

/* The index of the last allocation that starts at or before an address, or -1. */
static int64_t index_at(uint64_t address) {
  int64_t low = 0, high = (int64_t)count - 1;
  while (low <= high) {
    int64_t middle = (low + high) / 2;
    if (table[middle]->base <= address) {
      low = middle + 1;
    } else {
      high = middle - 1;
    }
  }
  return high;
}

static Alloc *holder(uint64_t address, size_t length) {
  int64_t i = index_at(address);
  if (i < 0) {
    return 0;
  }
  Alloc *alloc = table[i];
  uint64_t offset = address - alloc->base;
  return offset < alloc->size && length <= alloc->size - offset ? alloc : 0;
}

Alloc *use_range(uint64_t address, size_t length, Side side) {
  pthread_rwlock_rdlock(&memory_lock);
  Alloc *alloc = holder(address, length);
  if (alloc && ((side == ON_DEVICE && alloc->kind != DEVICE_MEMORY) ||
                (side == ON_HOST && alloc->kind == DEVICE_MEMORY))) {
    alloc = 0;
  }
  if (alloc) {
    __atomic_add_fetch(&alloc->users, 1, __ATOMIC_ACQ_REL);
  }
  pthread_rwlock_unlock(&memory_lock);
  return alloc;
}

void drop_use(Alloc *alloc) {
  if (!alloc || __atomic_sub_fetch(&alloc->users, 1, __ATOMIC_ACQ_REL) > 0) {
    return;
  }
  if (alloc->kind == DEVICE_MEMORY) {
    munmap((void *)alloc->base, alloc->size);
  }
  if (alloc->kind != REGISTERED_MEMORY) {
    munmap(alloc->bytes, alloc->size);
  }
  free(alloc);
}

int find_alloc(uint64_t address, Alloc *copy) {
  pthread_rwlock_rdlock(&memory_lock);
  Alloc *alloc = holder(address, 1);
  if (alloc) {
    *copy = *alloc;
  }
  pthread_rwlock_unlock(&memory_lock);
  return alloc != 0;
}

/* Enters an allocation; the lock is held for writing. */
static void insert(Context *context, uint64_t base, size_t size, char *bytes, AllocKind kind,
                   unsigned flags) {
  if (count == capacity) {
    capacity = capacity ? capacity * 2 : 64;
    table = realloc(table, capacity * sizeof *table);
  }
  Alloc *alloc = calloc(1, sizeof *alloc);
  *alloc = (Alloc){.base = base,
                   .size = size,
                   .bytes = bytes,
                   .kind = kind,
                   .flags = flags,
                   .context = context,
                   .id = ++next_id,
                   .users = 1,
                   .live = 1};
  size_t at = (size_t)(index_at(base) + 1);
  memmove(table + at + 1, table + at, (count - at) * sizeof *table);
  table[at] = alloc;
  count++;
}

static char *map(size_t size, int protection) {
  char *mapped = mmap(0, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return mapped == MAP_FAILED ? 0 : mapped;
}

CUresult allocate_device(Context *context, size_t size, uint64_t *address) {
  size_t whole = (size + PAGE - 1) & ~(PAGE - 1);
  char *bytes = map(whole, PROT_READ | PROT_WRITE);
  char *seen = map(whole, PROT_NONE);
  if (!bytes || !seen) {
    return OUT_OF_MEMORY;
  }
  if (size <= FILLED_WHEN_FRESH) {
    memset(bytes, FRESH, size);
  }
  pthread_rwlock_wrlock(&memory_lock);
  size_t *used = &device_used[context->device];
  CUresult result = size > device_limit - (*used < device_limit ? *used : device_limit)
                        ? OUT_OF_MEMORY
                        : SUCCESS;
  if (result == SUCCESS) {
    *used += size;
    insert(context, (uint64_t)seen, size, bytes, DEVICE_MEMORY, 0);
    *address = (uint64_t)seen;
  }
  pthread_rwlock_unlock(&memory_lock);
  if (result != SUCCESS) {
    munmap(bytes, whole);
    munmap(seen, whole);
  }
  return result;
}

static int fits_pinned(size_t size) {
  return size <= pinned_limit - (pinned_used < pinned_limit ? pinned_used : pinned_limit);
}

CUresult allocate_host(Context *context, size_t size, unsigned flags, void **address) {
  char *bytes = map((size + PAGE - 1) & ~(PAGE - 1), PROT_READ | PROT_WRITE);
  if (!bytes) {
    return OUT_OF_MEMORY;
  }
  pthread_rwlock_wrlock(&memory_lock);
  CUresult result = fits_pinned(size) ? SUCCESS : OUT_OF_MEMORY;
  if (result == SUCCESS) {
    pinned_used += size;
    insert(context, (uint64_t)bytes, size, bytes, PINNED_MEMORY, flags);
    *address = bytes;
  }
  pthread_rwlock_unlock(&memory_lock);
  if (result != SUCCESS) {
    munmap(bytes, size);
  }
  return result;
}

CUresult register_host(Context *context, void *address, size_t size, unsigned flags) {
  uint64_t base = (uint64_t)address;
  pthread_rwlock_wrlock(&memory_lock);
  CUresult result = SUCCESS;
  int64_t before = index_at(base + size - 1);
  if (before >= 0 && table[before]->base + table[before]->size > base) {
    result = ALREADY_REGISTERED;
  } else if (!fits_pinned(size)) {
    result = OUT_OF_MEMORY;
  } else {
    pinned_used += size;
    insert(context, base, size, address, REGISTERED_MEMORY, flags);
  }
  pthread_rwlock_unlock(&memory_lock);
  return result;
}

/* Takes the allocation at an index out of the table; the lock is held for writing. */
static Alloc *take(size_t at) {
  Alloc *alloc = table[at];
  memmove(table + at, table + at + 1, (count - at - 1) * sizeof *table);
  count--;
  __atomic_store_n(&alloc->live, 0, __ATOMIC_RELEASE);
  if (alloc->kind == DEVICE_MEMORY) {
    device_used[alloc->context->device] -= alloc->size;
  } else {
    pinned_used -= alloc->size;
  }
  return alloc;
}

CUresult remove_alloc(uint64_t base, AllocKind kind, CUresult missing) {
  pthread_rwlock_wrlock(&memory_lock);
  int64_t at = index_at(base);
  Alloc *alloc =
      at >= 0 && table[at]->base == base && table[at]->kind == kind ? take((size_t)at) : 0;
  pthread_rwlock_unlock(&memory_lock);
  if (!alloc) {
    return missing;
  }
  if (__atomic_load_n(&alloc->users, __ATOMIC_ACQUIRE) > 1) {
    violation("%zu bytes at 0x%" PRIx64 " were %s while work that names them was enqueued",
              alloc->size, alloc->base, kind == REGISTERED_MEMORY ? "unregistered" : "freed");
  }
  drop_use(alloc);
  return SUCCESS;
}

void remove_allocs_of(Context *context) {
  for (;;) {
    Alloc *alloc = 0;
    pthread_rwlock_wrlock(&memory_lock);
    for (size_t i = 0; i < count && !alloc; i++) {
      if (table[i]->context == context) {
        alloc = take(i);
      }
    }
    pthread_rwlock_unlock(&memory_lock);
    if (!alloc) {
      return;
    }
    drop_use(alloc);
  }
}

void count_allocs(int64_t counts[3]) {
  pthread_rwlock_rdlock(&memory_lock);
  memset(counts, 0, 3 * sizeof *counts);
  for (size_t i = 0; i < count; i++) {
    counts[table[i]->kind]++;
  }
  pthread_rwlock_unlock(&memory_lock);
}

size_t device_bytes_in_use(int device) {
  pthread_rwlock_rdlock(&memory_lock);
  size_t used = device_used[device];
  pthread_rwlock_unlock(&memory_lock);
  return used;
}

/* What is allocated or registered, and who uses it. */
#define _GNU_SOURCE
#include "fake.h"

#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { FRESH = 0xCD };

/* Larger allocations are left as they come, so that a test can have one of many gigabytes. */
static const size_t FILLED_WHEN_FRESH = 64u << 20;
static const size_t PAGE = 4096;

size_t device_limit = INT64_MAX, pinned_limit = INT64_MAX;

static pthread_rwlock_t memory_lock = PTHREAD_RWLOCK_INITIALIZER;
static Alloc **table; /* live allocations, ascending */
static size_t count, capacity;
static uint64_t next_id;

/* Addresses are given out upwards, with a page between, and not again: a stale one is known. */
static uint64_t next_address = UINT64_C(0x200000000000);
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

int begin_touch(Alloc *alloc) {
  __atomic_add_fetch(&alloc->touching, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&alloc->live, __ATOMIC_SEQ_CST)) {
    return 1;
  }
  end_touch(alloc);
  return 0;
}

void end_touch(Alloc *alloc) { __atomic_sub_fetch(&alloc->touching, 1, __ATOMIC_SEQ_CST); }

int find_alloc(uint64_t address, AllocInfo *info) {
  pthread_rwlock_rdlock(&memory_lock);
  const Alloc *alloc = holder(address, 1);
  if (alloc) {
    *info = (AllocInfo){alloc->base, alloc->size, alloc->id, alloc->kind, alloc->flags,
                        alloc->context};
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

static size_t whole_pages(size_t size) { return (size + PAGE - 1) & ~(PAGE - 1); }

/* Maps pages at an address that was not given out before, or, if need be, anywhere. */
static char *map(size_t size, int protection) {
  size_t whole = whole_pages(size);
  uint64_t wished = __atomic_fetch_add(&next_address, whole + PAGE, __ATOMIC_RELAXED);
  char *mapped = mmap((void *)wished, whole, protection,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return mapped == MAP_FAILED ? 0 : mapped;
}

/* Counts bytes in, if the limit allows them; under memory_lock. */
static int take_bytes(size_t *used, size_t size, const size_t *limit) {
  size_t most = __atomic_load_n(limit, __ATOMIC_RELAXED);
  if (*used > most || size > most - *used) {
    return 0;
  }
  *used += size;
  return 1;
}

CUresult allocate_device(Context *context, size_t size, uint64_t *address) {
  size_t *used = &device_used[context->device];
  pthread_rwlock_wrlock(&memory_lock);
  int fits = take_bytes(used, size, &device_limit);
  pthread_rwlock_unlock(&memory_lock);
  if (!fits) {
    return OUT_OF_MEMORY;
  }
  char *seen = map(size, PROT_NONE);
  char *bytes = map(size, PROT_READ | PROT_WRITE);
  if (seen && bytes && size <= FILLED_WHEN_FRESH) {
    memset(bytes, FRESH, size);
  }
  pthread_rwlock_wrlock(&memory_lock);
  if (seen && bytes) {
    insert(context, (uint64_t)seen, size, bytes, DEVICE_MEMORY, 0);
  } else {
    *used -= size;
  }
  pthread_rwlock_unlock(&memory_lock);
  if (seen && bytes) {
    *address = (uint64_t)seen;
    return SUCCESS;
  }
  if (seen) {
    munmap(seen, size);
  }
  if (bytes) {
    munmap(bytes, size);
  }
  return OUT_OF_MEMORY;
}

CUresult allocate_host(Context *context, size_t size, unsigned flags, void **address) {
  char *bytes = map(size, PROT_READ | PROT_WRITE);
  if (!bytes) {
    return OUT_OF_MEMORY;
  }
  pthread_rwlock_wrlock(&memory_lock);
  int fits = take_bytes(&pinned_used, size, &pinned_limit);
  if (fits) {
    insert(context, (uint64_t)bytes, size, bytes, PINNED_MEMORY, flags);
  }
  pthread_rwlock_unlock(&memory_lock);
  if (!fits) {
    munmap(bytes, size);
    return OUT_OF_MEMORY;
  }
  *address = bytes;
  return SUCCESS;
}

/* Whether all pages of a range are there: a flush that does nothing fails where they are not. */
static int is_mapped(uint64_t base, size_t size) {
  uint64_t start = base & ~(PAGE - 1);
  return !msync((void *)start, base + size - start, MS_ASYNC);
}

CUresult register_host(Context *context, void *address, size_t size, unsigned flags) {
  uint64_t base = (uint64_t)address, end;
  if (__builtin_add_overflow(base, size, &end) || !is_mapped(base, size)) {
    return INVALID_VALUE;
  }
  pthread_rwlock_wrlock(&memory_lock);
  CUresult result = SUCCESS;
  int64_t before = index_at(end - 1);
  if (before >= 0 && table[before]->base + table[before]->size > base) {
    result = ALREADY_REGISTERED;
  } else if (!take_bytes(&pinned_used, size, &pinned_limit)) {
    result = OUT_OF_MEMORY;
  } else {
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
  __atomic_store_n(&alloc->live, 0, __ATOMIC_SEQ_CST);
  if (alloc->kind == DEVICE_MEMORY) {
    device_used[alloc->context->device] -= alloc->size;
  } else {
    pinned_used -= alloc->size;
  }
  return alloc;
}

/* Returns when no one touches the bytes of an allocation that was taken out of the table. */
static void await_touches(const Alloc *alloc) {
  while (__atomic_load_n(&alloc->touching, __ATOMIC_SEQ_CST)) {
    sched_yield();
  }
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
  await_touches(alloc);
  drop_use(alloc);
  return SUCCESS;
}

void remove_allocs_of(const Context *context) {
  pthread_rwlock_wrlock(&memory_lock);
  size_t taken_count = 0;
  Alloc **taken = malloc((count + 1) * sizeof *taken);
  for (size_t i = count; i-- > 0;) {
    if (table[i]->context == context) {
      taken[taken_count++] = take(i);
    }
  }
  pthread_rwlock_unlock(&memory_lock);
  for (size_t i = 0; i < taken_count; i++) {
    await_touches(taken[i]);
    drop_use(taken[i]);
  }
  free(taken);
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

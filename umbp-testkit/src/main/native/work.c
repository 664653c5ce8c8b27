/* Runs work, outside all locks. */
#define _GNU_SOURCE
#include "fake.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

int64_t copy_nanos;

/* Where a range really is, to be left with end_touch; 0, and a violation, when it is nowhere. */
static char *touch(const Work *work, Alloc *alloc, uint64_t address) {
  if (!alloc || !begin_touch(alloc)) {
    violation("%s, enqueued as number %" PRIu64 ", touches 0x%" PRIx64
              ", which is not, or no longer, there",
              work->function, work->number, address);
    return 0;
  }
  return alloc->bytes + (address - alloc->base);
}

/* Copies rows between two allocations, either of which may be gone. */
static int copy_rows(const Work *work, Alloc *target, uint64_t to, size_t to_pitch, Alloc *source,
                     uint64_t from, size_t from_pitch, size_t width, size_t height) {
  char *to_bytes = touch(work, target, to);
  char *from_bytes = touch(work, source, from);
  if (to_bytes && from_bytes) {
    if (height == 1 && to < from + width && from < to + width) {
      violation("%s, enqueued as number %" PRIu64 ", copies between ranges that overlap, at 0x%"
                PRIx64 " and 0x%" PRIx64,
                work->function, work->number, from, to);
    }
    for (size_t row = 0; row < height; row++) {
      memmove(to_bytes + row * to_pitch, from_bytes + row * from_pitch, width);
    }
  }
  if (to_bytes) {
    end_touch(target);
  }
  if (from_bytes) {
    end_touch(source);
  }
  return to_bytes && from_bytes ? SUCCESS : ILLEGAL_ADDRESS;
}

int is_for_kernels(const Context *context, const Alloc *alloc) {
  return alloc->kind == DEVICE_MEMORY
             ? alloc->context == context
             : (alloc->flags & HOST_MAPPED) &&
                   ((alloc->flags & HOST_PORTABLE) || alloc->context == context);
}

static int copy_kernel_row(const Work *work, const uint64_t row[3]) {
  uint64_t from = row[0], to = row[1], length = row[2];
  if (!length) {
    return SUCCESS;
  }
  Alloc *target = use_range(to, length, ANY_MEMORY);
  Alloc *source = use_range(from, length, ANY_MEMORY);
  int result = ILLEGAL_ADDRESS;
  if (target && source &&
      !(is_for_kernels(work->context, target) && is_for_kernels(work->context, source))) {
    violation("%s, enqueued as number %" PRIu64 ", touches memory of another context, or host "
              "memory that is not mapped for devices, at 0x%" PRIx64 " or 0x%" PRIx64,
              work->function, work->number, from, to);
  } else {
    result = copy_rows(work, target, to, 0, source, from, 0, length, 1);
  }
  drop_use(target);
  drop_use(source);
  return result;
}

/*
 * The C twin of umbp_copy_ranges: rows of {from, to, length}, read when the kernel runs. Block by
 * block: block x copies rows x, x + grid_x, and so on, which is not the order of the table.
 */
static int run_kernel(const Work *work) {
  const char *table = touch(work, work->from_alloc, work->from);
  if (!table) {
    return ILLEGAL_ADDRESS;
  }
  int result = SUCCESS;
  for (uint32_t block = 0; block < work->grid_x && block < work->rows; block++) {
    for (uint64_t i = block; i < work->rows && result == SUCCESS; i += work->grid_x) {
      uint64_t row[3];
      memcpy(row, table + i * sizeof row, sizeof row);
      result = copy_kernel_row(work, row);
    }
  }
  end_touch(work->from_alloc);
  return result;
}

static void pause_copy(void) {
  int64_t nanos = __atomic_load_n(&copy_nanos, __ATOMIC_RELAXED);
  if (nanos > 0) {
    struct timespec time = {nanos / 1000000000, nanos % 1000000000};
    nanosleep(&time, 0);
  }
}

/* Writes, fills or reads one range. */
static int run_on_bytes(const Work *work) {
  Alloc *alloc = work->kind == PROGRAM_READ ? work->from_alloc : work->to_alloc;
  char *bytes = touch(work, alloc, work->kind == PROGRAM_READ ? work->from : work->to);
  if (!bytes) {
    return ILLEGAL_ADDRESS;
  }
  if (work->kind == FILL) {
    memset(bytes, work->fill, work->width);
  } else if (work->kind == PROGRAM_WRITE) {
    memcpy(bytes, work->bytes, work->width);
  } else {
    memcpy(work->read->bytes, bytes, work->width);
  }
  end_touch(alloc);
  return SUCCESS;
}

CUresult run(const Work *work) {
  if (work->injected) {
    return work->injected;
  }
  switch (work->kind) {
    case COPY:
    case COPY_ROWS:
      pause_copy();
      return copy_rows(work, work->to_alloc, work->to, work->to_pitch, work->from_alloc, work->from,
                       work->from_pitch, work->width, work->height);
    case KERNEL:
      pause_copy();
      return run_kernel(work);
    case FILL:
    case PROGRAM_WRITE:
    case PROGRAM_READ:
      return run_on_bytes(work);
    case CALL:
      work->call(work->argument);
      return SUCCESS;
    default:
      return SUCCESS;
  }
}

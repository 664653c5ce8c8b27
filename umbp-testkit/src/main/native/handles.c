/*
 * What programs hold of streams, events and modules. A handle is not an address: it is never given
 * out twice, so that one which is stale, or of another kind, is known as such. All but
 * count_handles under state_lock.
 */
#include "fake.h"

#include <stdlib.h>

enum { GENERATION_SHIFT = 32, KIND_SHIFT = 56, MAX_GENERATION = (1 << 24) - 1 };

typedef struct Slot {
  void *object;
  HandleKind kind;
  uint32_t generation;
  uint32_t next_free; /* its number, or 0 */
} Slot;

static Slot *slots; /* numbered from 1 */
static uint32_t slot_count, slot_capacity, first_free;

static void *handle_of(uint32_t number) {
  const Slot *slot = &slots[number];
  return (void *)(((uint64_t)slot->kind << KIND_SHIFT) |
                  ((uint64_t)slot->generation << GENERATION_SHIFT) | number);
}

static Slot *slot_of(const void *handle) {
  uint32_t number = (uint32_t)(uint64_t)handle;
  int is_known = number && number <= slot_count && slots[number].object &&
                 handle_of(number) == handle;
  return is_known ? &slots[number] : 0;
}

void *make_handle(HandleKind kind, void *object) {
  uint32_t number = first_free;
  if (number) {
    first_free = slots[number].next_free;
  } else {
    number = ++slot_count;
    if (number >= slot_capacity) {
      slot_capacity = slot_capacity ? slot_capacity * 2 : 256;
      slots = realloc(slots, slot_capacity * sizeof *slots);
    }
    slots[number].generation = 0;
  }
  Slot *slot = &slots[number];
  slot->object = object;
  slot->kind = kind;
  slot->generation = slot->generation % MAX_GENERATION + 1;
  return handle_of(number);
}

void *object_of(HandleKind kind, const void *handle) {
  const Slot *slot = slot_of(handle);
  return slot && slot->kind == kind ? slot->object : 0;
}

void end_handle(const void *handle) {
  Slot *slot = slot_of(handle);
  slot->object = 0;
  slot->next_free = first_free;
  first_free = (uint32_t)(slot - slots);
}

void *next_object(HandleKind kind, uint32_t *number) {
  while (++*number <= slot_count) {
    const Slot *slot = &slots[*number];
    if (slot->object && slot->kind == kind) {
      return slot->object;
    }
  }
  return 0;
}

int64_t count_handles(HandleKind kind) {
  int64_t live = 0;
  uint32_t number = 0;
  pthread_mutex_lock(&state_lock);
  while (next_object(kind, &number)) {
    live++;
  }
  pthread_mutex_unlock(&state_lock);
  return live;
}

/* Modules, and the one kernel that is known. */
#include "api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct Module {
  void *handle;
  Context *context;
  char *ptx;
  unsigned max_threads; /* of a block, as the module says */
  int users;            /* launches and calls that name it, and the handle */
  int launches;         /* enqueued or running */
};

Module *use_module(const void *handle) {
  pthread_mutex_lock(&state_lock);
  Module *module = object_of(MODULE_HANDLE, handle);
  if (module) {
    __atomic_add_fetch(&module->users, 1, __ATOMIC_RELAXED);
  }
  pthread_mutex_unlock(&state_lock);
  return module;
}

void drop_module(Module *module, int launches) {
  __atomic_sub_fetch(&module->launches, launches, __ATOMIC_ACQ_REL);
  if (__atomic_sub_fetch(&module->users, 1, __ATOMIC_ACQ_REL) == 0) {
    free(module->ptx);
    free(module);
  }
}

API CUresult cuModuleLoadData(void **handle, const char *image) {
  enum { MAX_THREADS = 1024 };
  BEGIN_UNSAFE();
  REQUIRE(image, INVALID_VALUE);
  REQUIRE(strstr(image, ".version") && strstr(image, ".target") &&
              strstr(image, ".address_size 64"),
          INVALID_PTX);
  Module *module = calloc(1, sizeof *module);
  module->context = current();
  module->ptx = strdup(image);
  module->users = 1;
  const char *most = strstr(image, ".maxntid ");
  if (!most || sscanf(most, ".maxntid %u", &module->max_threads) != 1) {
    module->max_threads = MAX_THREADS;
  }
  pthread_mutex_lock(&state_lock);
  *handle = module->handle = make_handle(MODULE_HANDLE, module);
  pthread_mutex_unlock(&state_lock);
  return SUCCESS;
}

/* Takes a module out; 0 when it was out before. */
static int unload(Module *module) {
  pthread_mutex_lock(&state_lock);
  int is_loaded = object_of(MODULE_HANDLE, module->handle) == module;
  if (is_loaded) {
    end_handle(module->handle);
  }
  pthread_mutex_unlock(&state_lock);
  if (is_loaded) {
    drop_module(module, 0);
  }
  return is_loaded;
}

void unload_modules_of(const Context *context) {
  uint32_t number = 0;
  for (Module *module; (module = next_object(MODULE_HANDLE, &number));) {
    if (module->context == context) {
      end_handle(module->handle);
      drop_module(module, 0);
    }
  }
}

API CUresult cuModuleUnload(void *handle) {
  BEGIN_UNSAFE();
  MODULE(module, handle);
  REQUIRE(module->context == current(), INVALID_HANDLE);
  int launches = __atomic_load_n(&module->launches, __ATOMIC_ACQUIRE);
  if (launches) {
    violation("a module was unloaded while %d launches of its kernel were enqueued", launches);
  }
  return unload(module) ? SUCCESS : INVALID_HANDLE;
}

/* A function is its module: there is one kernel that the fake can run. */
API CUresult cuModuleGetFunction(void **function, void *handle, const char *name) {
  BEGIN();
  MODULE(module, handle);
  char entry[128];
  snprintf(entry, sizeof entry, ".entry %s(", name);
  REQUIRE(strstr(module->ptx, entry), NOT_FOUND);
  REQUIRE(!strcmp(name, "umbp_copy_ranges"), NOT_SUPPORTED);
  *function = handle;
  return SUCCESS;
}

/* The fault that is due for a row of a table which the host can read now, if any. */
static CUresult fault_in_rows(uint64_t table, uint32_t rows) {
  if (!has_address_faults()) {
    return SUCCESS;
  }
  for (uint32_t i = 0; i < rows; i++) {
    uint64_t row[3];
    memcpy(row, (char *)table + (size_t)i * sizeof row, sizeof row);
    RETURN_IF(fault_in(row[0], row[2]));
    RETURN_IF(fault_in(row[1], row[2]));
  }
  return SUCCESS;
}

API CUresult cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                            void *handle, void **parameters, void **extra) {
  enum {
    MAX_GRID_X = INT32_MAX, MAX_GRID_YZ = 65535, MAX_BLOCK_XY = 1024, MAX_BLOCK_Z = 64,
    MAX_SHARED = 48 << 10, ROW = 24
  };
  BEGIN_WORK(handle);
  MODULE(module, function);
  REQUIRE(module->context == current(), INVALID_HANDLE);
  REQUIRE(grid_x && grid_y && grid_z && block_x && block_y && block_z, INVALID_VALUE);
  REQUIRE(grid_x <= MAX_GRID_X && grid_y <= MAX_GRID_YZ && grid_z <= MAX_GRID_YZ, INVALID_VALUE);
  REQUIRE(block_x <= MAX_BLOCK_XY && block_y <= MAX_BLOCK_XY && block_z <= MAX_BLOCK_Z &&
              block_x * block_y * block_z <= module->max_threads,
          INVALID_VALUE);
  REQUIRE(shared <= MAX_SHARED && parameters && !extra, INVALID_VALUE);
  uint64_t table;
  uint32_t rows;
  memcpy(&table, parameters[0], sizeof table);
  memcpy(&rows, parameters[1], sizeof rows);
  if (!rows) {
    return SUCCESS;
  }
  /* CUDA finds a bad table when the kernel runs; the program is told so at once. */
  Alloc *alloc = use_range(table, (size_t)rows * ROW, ANY_MEMORY);
  if (!alloc || !is_for_kernels(current(), alloc)) {
    drop_use(alloc);
    violation("cuLaunchKernel was given a table at 0x%llx of %u rows that is in no live memory "
              "which the device can read",
              (unsigned long long)table, rows);
    return ILLEGAL_ADDRESS;
  }
  CUresult due = alloc->kind == DEVICE_MEMORY ? SUCCESS : fault_in_rows(table, rows);
  if (due != SUCCESS) {
    drop_use(alloc);
    return due;
  }
  __atomic_add_fetch(&module->users, 1, __ATOMIC_RELAXED);
  __atomic_add_fetch(&module->launches, 1, __ATOMIC_RELAXED);
  return enqueue(stream_, (Work){.kind = KERNEL, .function = __func__, .from = table,
                                 .from_alloc = alloc, .module = module, .rows = rows,
                                 .grid_x = grid_x, .injected = at_completion_});
}

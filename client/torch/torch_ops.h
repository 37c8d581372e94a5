/* File: torch_ops.h
 *
 * libtandem_torch.so: the kernels of torch.ops.tandem, on PyTorch's stable ABI. Loading the library registers
 * them. The Python package uses the functions below by ctypes; they are no public interface.
 *
 * A kernel looks its call up in a table of plans and launches the plan that it finds. A call that the table
 * does not have goes to the op of the same name with "_" before it, whose kernel is Python. That kernel makes
 * the plan, runs the call, and adds both to the table.
 *
 * Functions are usable from any thread. None of them needs Python's lock.
 */
#ifndef TANDEM_CLIENT_TORCH_TORCH_OPS_H_
#define TANDEM_CLIENT_TORCH_TORCH_OPS_H_

#include <stddef.h>
#include <stdint.h>

#include "tandem/tandem.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TANDEM_TORCH_API __attribute__((visibility("default")))
/* Grows with every change of these functions. The package refuses a library of another version. */
#define TANDEM_TORCH_VERSION 8

TANDEM_TORCH_API int tandem_torch_version(void);

/* The functions of the libtandem.so that the package has loaded. */
typedef struct tandem_torch_functions {
  tandem_status* (*launch_with_options)(tandem_plan*, tandem_stream*, const tandem_binding*, size_t,
                                        const tandem_launch_options*);
  tandem_status* (*launch_cuda_pointers_with_options)(tandem_plan*, void*, void* const*, size_t,
                                                      const tandem_launch_options*);
  tandem_status* (*plan_wait)(tandem_plan*, int64_t);
  int (*status_code)(const tandem_status*);
  const char* (*status_message)(const tandem_status*);
  const char* (*status_reason)(const tandem_status*);
  void (*status_free)(tandem_status*);
} tandem_torch_functions;
/* Called once, before any op. Copies *functions. */
TANDEM_TORCH_API void tandem_torch_use(const tandem_torch_functions* functions);

/* Makes the table of a process group's plans, and returns its number, above 0. Calls with this group name use
 * the newest table with the name. 0: memory is out, and all calls go to Python. */
TANDEM_TORCH_API uint64_t tandem_torch_open_group(const char* group_name);
/* Calls find this table no more: its name may be another process group's now. Never waits. */
TANDEM_TORCH_API void tandem_torch_hide_group(uint64_t group);
/* Forgets the table. Waits for calls that run its plans. */
TANDEM_TORCH_API void tandem_torch_close_group(uint64_t group);
/* The group's registered memory on the host backend, which operands are copied to and from: `memory`, at the
 * address `data`. NULL: there is none, and calls go to Python. The memory before is used no more when this
 * returns, except by a call of this thread that waits in Python. */
TANDEM_TORCH_API void tandem_torch_set_staging(uint64_t group, const tandem_memory* memory, void* data,
                                               size_t bytes);
/* Returns that memory; NULL if there is none. A call of this thread that waits in Python uses it. Waits for
 * calls of other threads. */
TANDEM_TORCH_API const tandem_memory* tandem_torch_staging(uint64_t group);

/* [address, address + bytes) of this process is in a symmetric tensor of the group, the same on all ranks.
 * Calls whose outputs lie there use plans whose peers write these outputs in place. Returns 0 where memory is
 * out. */
TANDEM_TORCH_API int tandem_torch_add_symmetric(uint64_t group, const void* address, size_t bytes);
/* The range that begins at `address` is so no more. Does nothing if there is none. */
TANDEM_TORCH_API void tandem_torch_remove_symmetric(uint64_t group, const void* address);

/* Gives [base, base + bytes) to the memory pool of the device with this ordinal. It lives until the process
 * ends. Returns 0 where memory is out. */
TANDEM_TORCH_API int tandem_torch_add_arena(int device, void* base, size_t bytes);
/* The two functions of torch's CUDAPluggableAllocator. They are the pool's: NULL where it has no room.
 * `stream` is not used, since torch orders the uses of a piece. */
TANDEM_TORCH_API void* tandem_torch_pool_allocate(size_t bytes, int device, void* stream);
TANDEM_TORCH_API void tandem_torch_pool_free(void* piece, size_t bytes, int device, void* stream);

enum tandem_torch_source { TANDEM_TORCH_ARGUMENT = 0, TANDEM_TORCH_RESULT = 1 };
/* Whether peers write a slot in place: the plan cannot have it so; it can, but this plan's slot lies in other
 * memory; it lies in symmetric memory. */
enum tandem_torch_symmetric {
  TANDEM_TORCH_NEVER = 0,
  TANDEM_TORCH_ELSEWHERE = 1,
  TANDEM_TORCH_SYMMETRIC = 2
};
/* One slot of a plan: the call's tensor that is bound to it. */
typedef struct tandem_torch_slot {
  int source;      /* enum tandem_torch_source */
  int index;       /* among the call's tensors in the schema's order, or among the results */
  int written;     /* not 0: the launch writes the slot */
  int symmetric;   /* enum tandem_torch_symmetric */
  uint64_t bytes;  /* of the slot */
  uint64_t offset; /* of the slot in the staging memory; host backend only */
} tandem_torch_slot;
/* A result that the kernel allocates, contiguous. */
typedef struct tandem_torch_result {
  int dtype; /* enum tandem_dtype */
  int dims;
  const int64_t* shape;
  int rows; /* not 0: the first extent follows the rows; see tandem_torch_rows */
} tandem_torch_result;
/* How the plan of a family serves calls that differ from the one that it was added with in their rows alone.
 * Extents and slots that follow the rows are in proportion to them. */
typedef struct tandem_torch_rows {
  int64_t most;  /* rows of a call; 0: the plan serves calls of the same shapes only */
  int64_t least; /* likewise */
  int64_t unit;  /* rows are multiples of it */
  int argument;  /* among the call's tensors: the one whose first extent is in proportion to the rows */
  /* By the call's tensors, as bits: those whose first extent follows the rows. The others' stays the same. */
  uint32_t arguments;
} tandem_torch_rows;
typedef struct tandem_torch_plan {
  tandem_plan* plan;
  tandem_stream* stream; /* of the host backend; NULL: torch's current CUDA stream */
  int64_t deadline_ms;   /* of each launch; 0: the group's */
  int64_t rows;          /* of this call, of a family; -1: a plan of one shape */
  size_t slot_count;
  const tandem_torch_slot* slots;
  size_t result_count; /* in the order of the op's results; the gathered A comes last */
  const tandem_torch_result* results;
  uint64_t staging_bytes; /* of a family: for the most rows, as are the slots' offsets */
  tandem_torch_rows family;
} tandem_torch_plan;
/* Adds the plan for calls like the one that this thread's kernel has handed to Python. Copies *plan; the
 * handles stay the caller's and must live until tandem_torch_remove_plan. Returns the plan's number, above 0;
 * 0 if no kernel of this thread waits, or there is no such group. */
TANDEM_TORCH_API uint64_t tandem_torch_add_plan(uint64_t group, const tandem_torch_plan* plan);
/* Lets calls like that one run a plan that is there. */
TANDEM_TORCH_API void tandem_torch_add_call(uint64_t group, uint64_t plan);
/* Forgets a plan. Waits for calls that run it. */
TANDEM_TORCH_API void tandem_torch_remove_plan(uint64_t group, uint64_t plan);
/* Returns the group's count of calls, raised by one; 0 if there is no such group. */
TANDEM_TORCH_API uint64_t tandem_torch_tick(uint64_t group);
/* Returns the group's count at the last call that ran the plan; 0 if none has. */
TANDEM_TORCH_API uint64_t tandem_torch_last_use(uint64_t group, uint64_t plan);

/* Makes the kernel of this thread that has handed its call to Python fail with this text. */
TANDEM_TORCH_API void tandem_torch_fail(const char* text);
/* Whether a kernel of this thread has failed since the last call. Writes the failure's text, valid until the
 * next failure of the thread, and its status, which is the caller's then; NULL where Python has failed. */
TANDEM_TORCH_API int tandem_torch_take_failure(const char** text, tandem_status** status);

typedef struct tandem_torch_counts {
  uint64_t launched;   /* calls that ran a plan of the table */
  uint64_t handed_on;  /* calls that Python has run */
  uint64_t library_ns; /* time in libtandem.so's functions, while it is measured */
} tandem_torch_counts;
TANDEM_TORCH_API void tandem_torch_read_counts(tandem_torch_counts* counts);
/* Begins (not 0) or ends to measure the time in libtandem.so. */
TANDEM_TORCH_API void tandem_torch_measure(int on);

#ifdef __cplusplus
}
#endif

#endif /* TANDEM_CLIENT_TORCH_TORCH_OPS_H_ */

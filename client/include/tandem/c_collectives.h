/* File: c_collectives.h
 *
 * Collectives of any number of elements in one call each, in the C interface. The group keeps the plans.
 *
 * Kinds. Calls of one operation, element type, reduction and root, all of them in place or none, are of one
 * kind. A kind's first call prepares a family of plans, and so does the first call beyond the family's bound,
 * which doubles from 65,536 rows on. Such a call waits for all ranks, by TANDEM_DEFAULT_DEADLINE_MS. Every
 * other call needs no rank and no daemon, whatever its count. Where all ranks have been refused a family,
 * later calls of the kind get the same error at once. All ranks make these calls of a group in one order.
 *
 * In place. all_reduce: input and output are equal. all_gather: the input is the rank's own part of the
 * output. reduce_scatter: the output is the rank's own part of the input. Each of them is in place on all
 * ranks or on none. all_to_all is never in place. broadcast and reduce may be so on the root alone. Other
 * overlaps are refused.
 *
 * Arguments. `input` and `output` are device memory of the rank's GPU; on the host backend any memory of the
 * process. `count` is in elements: of the input, but of one rank's part for all_gather, reduce_scatter and
 * all_to_all. It is equal on all ranks; 0: the call does nothing. `dtype` is an enum tandem_dtype,
 * `reduce_op` an enum tandem_reduce_op. `stream` is a cudaStream_t (NULL: the legacy default stream) on CUDA,
 * and a tandem_stream on the host backend.
 *
 * Errors. INVALID_ARGUMENT: an argument is wrong, or differs between ranks (reason FIELD_MISMATCH);
 * tandem_status_field names it. OUT_OF_RANGE, field "count": input of more than 2^28 elements, on all ranks
 * together for reduce_scatter and all_to_all. FAILED_PRECONDITION, reason NOT_PREPARED: the stream captures,
 * and no call before the capture has prepared the kind. Else as tandem_prepare, and as tandem_launch with
 * input and output for its bindings 0 and 1. Failures of launches are returned by tandem_collectives_wait,
 * tandem_collectives_query, or a later call.
 */
#ifndef TANDEM_C_COLLECTIVES_H_
#define TANDEM_C_COLLECTIVES_H_

#include <stddef.h>
#include <stdint.h>

#include "tandem/c_types.h"
#include "tandem/deadlines.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Each enqueues one collective on the stream, behind the work that is there; see above. */
TANDEM_C_API tandem_status* tandem_all_reduce(tandem_group* group, const void* input, void* output,
                                              size_t count, int dtype, int reduce_op, void* stream);
/* The output has the parts of all ranks, in rank order. */
TANDEM_C_API tandem_status* tandem_all_gather(tandem_group* group, const void* input, void* output,
                                              size_t count, int dtype, void* stream);
TANDEM_C_API tandem_status* tandem_reduce_scatter(tandem_group* group, const void* input, void* output,
                                                  size_t count, int dtype, int reduce_op, void* stream);
TANDEM_C_API tandem_status* tandem_all_to_all(tandem_group* group, const void* input, void* output,
                                              size_t count, int dtype, void* stream);
/* `input` is the root's; NULL elsewhere. */
TANDEM_C_API tandem_status* tandem_broadcast(tandem_group* group, const void* input, void* output,
                                             size_t count, int dtype, int root, void* stream);
/* `output` is the root's; NULL elsewhere. */
TANDEM_C_API tandem_status* tandem_reduce(tandem_group* group, const void* input, void* output, size_t count,
                                          int dtype, int reduce_op, int root, void* stream);

/* One collective, for the two functions below. Set up by tandem_collective_init. */
typedef struct tandem_collective {
  size_t struct_size; /* set by tandem_collective_init */
  int op;             /* enum tandem_op: one of the six above. Default: ALL_REDUCE */
  int dtype;          /* enum tandem_dtype. Default: F32 */
  const void* input;
  void* output;
  size_t count;
  int reduce_op; /* enum tandem_reduce_op. Default: SUM */
  int root;
} tandem_collective;
/* Writes the defaults to *collective. `struct_size` is sizeof(tandem_collective) of the caller's header. NULL
 * is allowed. */
TANDEM_C_API void tandem_collective_init(tandem_collective* collective, size_t struct_size);
/* Prepares the family of such a call, if there is none: the meeting of all ranks, without a launch. For
 * captures, where a call cannot prepare. The addresses count for whether it is in place. Default deadline:
 * TANDEM_DEFAULT_DEADLINE_MS. TANDEM_DO_NOT_WAIT only looks: FAILED_PRECONDITION, reason NOT_PREPARED, where
 * there is no family. */
TANDEM_C_API tandem_status* tandem_collective_prepare(tandem_group* group,
                                                      const tandem_collective* collective,
                                                      int64_t deadline_ms);
/* Enqueues the collective on the stream, as the functions above. */
TANDEM_C_API tandem_status* tandem_collective_launch(tandem_group* group, const tandem_collective* collective,
                                                     void* stream);

/* Waits until all launches of the group's collectives have ended, and returns the first failure, as
 * tandem_plan_wait. Default deadline: TANDEM_DEFAULT_WAIT_DEADLINE_MS. */
TANDEM_C_API tandem_status* tandem_collectives_wait(tandem_group* group, int64_t deadline_ms);
/* Writes 1 to *ended if all of them have ended, else 0, as tandem_plan_query. Does not wait. */
TANDEM_C_API tandem_status* tandem_collectives_query(tandem_group* group, int* ended);

#ifdef __cplusplus
}
#endif

#endif /* TANDEM_C_COLLECTIVES_H_ */

/* File: c_plan.h
 *
 * Requests, plans and launches of the C interface.
 */
#ifndef TANDEM_C_PLAN_H_
#define TANDEM_C_PLAN_H_

#include <stddef.h>
#include <stdint.h>

#include "tandem/c_types.h"
#include "tandem/deadlines.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One operand of a request; its index in the array is its slot. Set up by tandem_operand_init. Arrays stay
 * the caller's.
 *
 * Slots in place are bound to the same memory. In ALL_GATHER and REDUCE_SCATTER the smaller operand in place
 * is this rank's part of the larger one. Both are bound to the larger one's memory, and NULL strides of the
 * part are the larger one's. Elsewhere both are equal. */
typedef struct tandem_operand {
  size_t struct_size;     /* set by tandem_operand_init; the same in all operands of an array */
  int role;               /* enum tandem_role */
  int dtype;              /* enum tandem_dtype */
  const int64_t* shape;   /* `dims` extents, in elements */
  const int64_t* strides; /* `dims` strides, in elements; NULL: contiguous, last dimension fastest */
  size_t dims;
  int symmetric; /* not 0: bound to a symmetric tensor, at the same offset on all ranks */
  int alias_of;  /* -1, the default: memory of its own; else the earlier slot that this slot is in place with
                  */
} tandem_operand;
/* Writes the defaults to *operand. `struct_size` is sizeof(tandem_operand) of the caller's header. NULL is
 * allowed. */
TANDEM_C_API void tandem_operand_init(tandem_operand* operand, size_t struct_size);

/* One transfer of SEND_RECEIVE: this rank's operand `slot`, to or from `peer`. The i-th send from a to b
 * meets the i-th receive on b from a. Never changes. */
typedef struct tandem_transfer {
  int send; /* not 0: send; 0: receive */
  int peer;
  int slot;
} tandem_transfer;

/* A request for one operation. Set up by tandem_request_init. Arrays stay the caller's. Fields must agree on
 * all ranks, except `transfers` and the operands of send_receive.
 *
 * `restartable` guarantees that a launch that failed with ABORTED may be made again with the same operands,
 * on all ranks. tandem_prepare fails with FAILED_PRECONDITION, reason NOT_RESTARTABLE, for operands in place:
 * prepare the plan out of place, or restore the operands before a retry. */
typedef struct tandem_request {
  size_t struct_size;             /* set by tandem_request_init */
  int op;                         /* enum tandem_op. Default: BARRIER */
  const tandem_operand* operands; /* operand_count of them, at most 28 */
  size_t operand_count;
  int dim;               /* gathered, scattered or exchanged dimension; negative counts from the end */
  int reduce_op;         /* enum tandem_reduce_op */
  int root;              /* of BROADCAST and REDUCE */
  int wire;              /* enum tandem_wire */
  int fast_accumulation; /* of fp8 on CUDA. Default: 1 */
  int low_contention;    /* not 0: copy engines only, no SMs */
  int chunk_pivot;       /* of ASYNC_INPUT_MATMUL: the chunk that is computed first */
  const tandem_transfer* transfers; /* of SEND_RECEIVE: transfer_count of this rank's own */
  size_t transfer_count;
  int algorithm;   /* enum tandem_algorithm */
  int steps;       /* of RING: a multiple of the world size; 0: the daemon's choice */
  int lanes;       /* of RING and PIPELINE: 1 to 8; 0: the daemon's choice */
  int on_unfused;  /* enum tandem_on_unfused. Default: WARN */
  int restartable; /* not 0: launches leave the inputs as they are; see above */
  int placement;   /* enum tandem_placement. CLIENT: fails where the client cannot run the plan */
  int autotune;    /* not 0: without a measured time, tandem_prepare measures; see OpRequest::autotune */
  /* With an operand of role NORM_WEIGHT: what RMSNorm adds to the mean of the squares. Default: 0 */
  float norm_epsilon;
  int64_t max_rows; /* not 0: a family of 0 to max_rows rows; see OpRequest::max_rows */
  int determinism;  /* enum tandem_determinism; see OpRequest::determinism */
  int rounding;     /* enum tandem_rounding; see OpRequest::rounding */
} tandem_request;
/* Writes the defaults to *request. `struct_size` is sizeof(tandem_request) of the caller's header. NULL is
 * allowed. */
TANDEM_C_API void tandem_request_init(tandem_request* request, size_t struct_size);

/* Prepares the request under `key`. Waits until all ranks of the group have prepared the key; all get the
 * same plan, or the same error. Default deadline: TANDEM_DEFAULT_DEADLINE_MS. The caller owns *plan; the plan
 * ends with its last handle. A graph with a captured launch holds one. INVALID_ARGUMENT: a field is wrong, or
 * differs between ranks (reason FIELD_MISMATCH); tandem_status_field names it. DEADLINE_EXCEEDED: ranks did
 * not come; tandem_status_ranks returns them. FAILED_PRECONDITION: the chosen algorithm cannot run
 * (UNFUSED_REFUSED, NOT_RESTARTABLE, SLOW_PLACEMENT, …). RESOURCE_EXHAUSTED: workspace or a quota.
 * UNAVAILABLE: the group is broken. */
TANDEM_C_API tandem_status* tandem_prepare(tandem_group* group, const char* key,
                                           const tandem_request* request, int64_t deadline_ms,
                                           tandem_plan** plan);
/* Drops the handle. NULL is allowed. */
TANDEM_C_API void tandem_plan_free(tandem_plan* plan);
/* Returns the plan's number on this node; 0 for NULL. */
TANDEM_C_API uint64_t tandem_plan_id(const tandem_plan* plan);
/* Returns the chosen enum tandem_algorithm; TANDEM_ALGORITHM_AUTO for NULL. */
TANDEM_C_API int tandem_plan_algorithm(const tandem_plan* plan);
/* Returns why this algorithm was chosen; "" for NULL. The text belongs to the plan. */
TANDEM_C_API const char* tandem_plan_reason(const tandem_plan* plan);
/* Returns the program in a line; "" for NULL. The text belongs to the plan. */
TANDEM_C_API const char* tandem_plan_summary(const tandem_plan* plan);
/* Returns the plan's explanation for people, in lines: algorithm and reason, numerics, memory, predicted
 * time, warnings, and why the other algorithms were refused. "" for NULL. The text belongs to the plan. */
TANDEM_C_API const char* tandem_plan_explanation(tandem_plan* plan);
/* Returns the explanation for programs: a JSON object with the names of tandem::PlanInfo, constants as text.
 * New names may be added. Returns "{}" for NULL. The text belongs to the plan. */
TANDEM_C_API const char* tandem_plan_json(tandem_plan* plan);
/* Returns the number of slots; 0 for NULL. */
TANDEM_C_API size_t tandem_plan_slots(const tandem_plan* plan);
/* Returns the bytes that the slot's binding must have from its offset; 0 if there is no such slot. */
TANDEM_C_API uint64_t tandem_plan_slot_bytes(const tandem_plan* plan, size_t slot);

/* What a plan would be. */
typedef struct tandem_preview tandem_preview;
/* Asks the daemon for the plan that tandem_prepare would make if all ranks of the group asked for the request now. One
 * rank alone asks. Waits for no rank, and makes nothing. Memory and quotas are not looked at, and `autotune` measures
 * nothing. The caller owns *preview. Errors: those of tandem_prepare for a request that cannot run.
 * INVALID_ARGUMENT, field "op": SEND_RECEIVE, whose plan needs the other ranks' transfers. UNIMPLEMENTED: an older
 * daemon. */
TANDEM_C_API tandem_status* tandem_preview_plan(tandem_group* group, const tandem_request* request,
                                                tandem_preview** preview);
/* Drops the handle. NULL is allowed. */
TANDEM_C_API void tandem_preview_free(tandem_preview* preview);
/* Returns the enum tandem_algorithm that would be chosen; TANDEM_ALGORITHM_AUTO for NULL. */
TANDEM_C_API int tandem_preview_algorithm(const tandem_preview* preview);
/* Returns 1 if the plan would be fused, else 0; 0 for NULL. */
TANDEM_C_API int tandem_preview_fused(const tandem_preview* preview);
/* Returns the enum tandem_placement: who would launch the plan, CLIENT or ENGINE; TANDEM_PLACEMENT_AUTO for NULL. */
TANDEM_C_API int tandem_preview_placement(const tandem_preview* preview);
/* Returns the predicted time of a launch in microseconds; 0 for NULL. */
TANDEM_C_API double tandem_preview_predicted_us(const tandem_preview* preview);
/* Returns why this algorithm would be chosen; "" for NULL. The text belongs to the preview, as all that follow. */
TANDEM_C_API const char* tandem_preview_reason(const tandem_preview* preview);
/* Returns tandem_plan_explanation of the plan, which also has why other algorithms would be refused; "" for NULL. */
TANDEM_C_API const char* tandem_preview_explanation(const tandem_preview* preview);
/* Returns tandem_plan_json of the plan, with `plan_id` 0; "{}" for NULL. */
TANDEM_C_API const char* tandem_preview_json(const tandem_preview* preview);

/* The memory of a slot in a launch. Never changes. A `pointer` lies in a symmetric tensor of the group, in
 * memory of tandem_allocate_registered, or, on CUDA, in memory of the caller's own, which the first launch
 * with it registers, as tandem_register_cuda. */
typedef struct tandem_binding {
  const tandem_memory* memory; /* NULL: `pointer` is used */
  uint64_t offset;             /* in bytes, into the memory or from the pointer */
  const void* pointer;         /* an address in this process; see above */
} tandem_binding;

/* Enqueues one launch of the plan on the stream, behind the work that is there; later work of the stream runs
 * after the launch. Does not wait for the launch. Every rank of the group must launch the plan. `bindings`
 * has `count` elements, one for each slot.
 *
 * `deadline_ms` is from the first rank's arrival; 0: the group's. `tag` may be NULL; else it must be equal on
 * all ranks.
 *
 * Two slots must not overlap in memory, unless one is alias_of the other or the launch reads both. Operands
 * are the launch's from this call until it has ended.
 *
 * Returns the failure of an earlier launch of this plan on this stream, once, if there is one; else what is
 * wrong with this launch. The launch is enqueued even when an error is returned, and fails on all ranks then,
 * except for:
 * - ABORTED, reason ENGINE_RESTARTED: not enqueued. Returned once per rank after an engine's restart; see
 * below.
 * - RESOURCE_EXHAUSTED, reason RING_FULL: too many launches were in flight for as long as the deadline.
 * - UNAVAILABLE: the group is broken, or the daemon is lost.
 * - Any error while the stream captures.
 *
 * Errors of bindings, with tandem_status_field "bindings[i]":
 * - INVALID_ARGUMENT, reason NOT_BOUND, BINDING_COUNT, SLOTS_OVERLAP, WRONG_DEVICE or NOT_REGISTRABLE.
 * - OUT_OF_RANGE, reason BINDING_TOO_SMALL.
 * - INVALID_ARGUMENT, reason NOT_ALIGNED or NOT_SYMMETRIC.
 * - FAILED_PRECONDITION, reason MEMORY_FREED, OTHER_GROUP (a symmetric tensor of another group) or
 *   OTHER_CLIENT.
 *
 * After ABORTED the plan, its memory and the group are still good, but operands that the cut-off launch
 * writes are undefined unless tandem_status_started is 0. All ranks must agree on the launch that is made
 * again, since it may have ended well on some: restore operands in place on every rank, then launch again on
 * every rank.
 *
 * In a capture the launch becomes part of the graph and is made at each replay. A replay's failure is
 * returned by the next call of the plan, whatever its stream; of several, the latest. */
TANDEM_C_API tandem_status* tandem_launch(tandem_plan* plan, tandem_stream* stream,
                                          const tandem_binding* bindings, size_t count, int64_t deadline_ms,
                                          const char* tag);
/* tandem_launch on a cudaStream_t (NULL: the legacy default stream) of any context of the group's GPU. */
TANDEM_C_API tandem_status* tandem_launch_cuda(tandem_plan* plan, void* cuda_stream,
                                               const tandem_binding* bindings, size_t count,
                                               int64_t deadline_ms, const char* tag);
/* tandem_launch_cuda with one device pointer for each slot, as tandem_binding.pointer. NULL for a slot of no
 * bytes. */
TANDEM_C_API tandem_status* tandem_launch_cuda_pointers(tandem_plan* plan, void* cuda_stream,
                                                        void* const* pointers, size_t count,
                                                        int64_t deadline_ms, const char* tag);
/* How a launch is made. Set up by tandem_launch_options_init. */
typedef struct tandem_launch_options {
  size_t struct_size;  /* set by tandem_launch_options_init */
  int64_t deadline_ms; /* from the first rank's arrival; 0, the default: the group's */
  const char* tag;     /* equal on all ranks, or NULL, the default */
  /* Of a family: the launch's number of rows, equal on all ranks. -1, the default: the family's bound, and the
   * only value for a plan of one shape. INVALID_ARGUMENT or OUT_OF_RANGE, field "rows": the plan has not so
   * many. */
  int64_t rows;
} tandem_launch_options;
/* Writes the defaults to *options. `struct_size` is sizeof(tandem_launch_options) of the caller's header. NULL
 * is allowed. */
TANDEM_C_API void tandem_launch_options_init(tandem_launch_options* options, size_t struct_size);
/* tandem_launch, tandem_launch_cuda and tandem_launch_cuda_pointers with options. Bindings need memory for the
 * launch's rows only. `options` NULL: the defaults. */
TANDEM_C_API tandem_status* tandem_launch_with_options(tandem_plan* plan, tandem_stream* stream,
                                                       const tandem_binding* bindings, size_t count,
                                                       const tandem_launch_options* options);
TANDEM_C_API tandem_status* tandem_launch_cuda_with_options(tandem_plan* plan, void* cuda_stream,
                                                            const tandem_binding* bindings, size_t count,
                                                            const tandem_launch_options* options);
TANDEM_C_API tandem_status* tandem_launch_cuda_pointers_with_options(tandem_plan* plan, void* cuda_stream,
                                                                     void* const* pointers, size_t count,
                                                                     const tandem_launch_options* options);
/* Launches without a stream, by the daemon: the launch arrives at once. Writes its number to *launch. What is
 * wrong with the bindings, tandem_wait_launch returns; ABORTED and UNAVAILABLE are as in tandem_launch. */
TANDEM_C_API tandem_status* tandem_launch_without_stream(tandem_plan* plan, const tandem_binding* bindings,
                                                         size_t count, int64_t deadline_ms, const char* tag,
                                                         uint64_t* launch);
/* Waits for a launch of tandem_launch_without_stream and returns its outcome, once. Default deadline:
 * TANDEM_DEFAULT_WAIT_DEADLINE_MS. DEADLINE_EXCEEDED, reason NOT_ENDED: it has not ended, and may be waited
 * for again. NOT_FOUND: no such launch of this plan, or its outcome has been returned. */
TANDEM_C_API tandem_status* tandem_wait_launch(tandem_plan* plan, uint64_t launch, int64_t deadline_ms);
/* Waits until all launches of the plan by this client have ended. Default deadline:
 * TANDEM_DEFAULT_WAIT_DEADLINE_MS. Returns the first failure that no call has returned, ABORTED before any
 * other; the other failures are dropped. DEADLINE_EXCEEDED without a launch's reason: launches have not
 * ended. */
TANDEM_C_API tandem_status* tandem_plan_wait(tandem_plan* plan, int64_t deadline_ms);
/* Writes 1 to *ended if all launches of the plan have ended, else 0. Does not wait, but asks the daemon while
 * launches without a stream are under way. Returns failures as tandem_plan_wait. */
TANDEM_C_API tandem_status* tandem_plan_query(tandem_plan* plan, int* ended);
/* Ends the plan on this rank, after its launches on streams have ended; launches without a stream end with
 * ABORTED. DEADLINE_EXCEEDED: launches have not ended within a minute, and the plan goes on.
 * FAILED_PRECONDITION: it has been released. */
TANDEM_C_API tandem_status* tandem_plan_release(tandem_plan* plan);

#ifdef __cplusplus
}
#endif

#endif /* TANDEM_C_PLAN_H_ */

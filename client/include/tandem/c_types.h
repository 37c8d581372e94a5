/* File: c_types.h
 *
 * The constants of the C interface and the types of its handles. Arguments and fields that take a constant
 * are `int`, whose size is the same for all compilers.
 */
#ifndef TANDEM_C_TYPES_H_
#define TANDEM_C_TYPES_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TANDEM_C_API __attribute__((visibility("default")))

#define TANDEM_DEFAULT_DEADLINE ((int64_t)0)
#define TANDEM_DO_NOT_WAIT ((int64_t)-1)

/* Grows with every incompatible change of this interface. A program refuses a library whose
 * tandem_abi_version() differs. */
#define TANDEM_ABI_VERSION 3
/* Returns TANDEM_ABI_VERSION of the loaded library. */
TANDEM_C_API int tandem_abi_version(void);
/* Returns the version of the loaded library, with its commit: "0.1.0+0123456789ab". Static text. */
TANDEM_C_API const char* tandem_version(void);
/* Returns the version of the protocol that the library speaks with tandemd, which speaks the one before, too. */
TANDEM_C_API int tandem_protocol_version(void);

/* Status codes: gRPC's, with gRPC's numbers. */
enum tandem_code {
  TANDEM_OK = 0,
  TANDEM_CANCELLED = 1,
  TANDEM_UNKNOWN = 2,
  TANDEM_INVALID_ARGUMENT = 3,  /* correct the call */
  TANDEM_DEADLINE_EXCEEDED = 4, /* somebody did not come in time: see tandem_status_ranks */
  TANDEM_NOT_FOUND = 5,
  TANDEM_ALREADY_EXISTS = 6,
  TANDEM_PERMISSION_DENIED = 7,   /* the daemon does not admit this user, or not to this GPU */
  TANDEM_RESOURCE_EXHAUSTED = 8,  /* a quota or memory: see tandem_status_limit and tandem_status_usage */
  TANDEM_FAILED_PRECONDITION = 9, /* the state forbids the call */
  TANDEM_ABORTED = 10, /* an engine's end cut a launch off: restore the operands, retry on all ranks */
  TANDEM_OUT_OF_RANGE = 11,
  TANDEM_UNIMPLEMENTED = 12,
  TANDEM_INTERNAL = 13,    /* a defect of Tandem: report it */
  TANDEM_UNAVAILABLE = 14, /* a rank, the group or the daemon is gone: join again */
  TANDEM_DATA_LOSS = 15,
  TANDEM_UNAUTHENTICATED = 16 /* the session is gone: connect again */
};

/* Element types. */
enum tandem_dtype {
  TANDEM_DTYPE_F32 = 0,
  TANDEM_DTYPE_F16 = 1,
  TANDEM_DTYPE_BF16 = 2,
  /* OCP FP8, saturating at +-448, without infinities */
  TANDEM_DTYPE_F8E4M3 = 3,
  /* OCP FP8 */
  TANDEM_DTYPE_F8E5M2 = 4,
  TANDEM_DTYPE_I32 = 5,
  TANDEM_DTYPE_I64 = 6,
  TANDEM_DTYPE_U8 = 7
};

/* The operations. W is the world size, s the shard's extent along `dim`, the dimension that is gathered or
 * scattered. */
enum tandem_op {
  /* output = reduction over ranks of input; equal shapes; see TANDEM_ROLE_NORM_WEIGHT */
  TANDEM_OP_ALL_REDUCE = 1,
  /* output[dim] = W*s: the shards of all ranks in rank order */
  TANDEM_OP_ALL_GATHER = 2,
  /* output = chunk `rank` along dim of the reduction over ranks of input; input[dim] divisible by W */
  TANDEM_OP_REDUCE_SCATTER = 3,
  /* C_i = gather(A, dim) * B_i for each i; the gathered A too if TANDEM_ROLE_GATHERED_A is given */
  TANDEM_OP_ALL_GATHER_MATMUL = 4,
  /* C = chunk `rank` along dim of the sum or average over ranks of A * B */
  TANDEM_OP_MATMUL_REDUCE_SCATTER = 5,
  /* C = sum or average over ranks of A * B; see TANDEM_ROLE_NORM_WEIGHT */
  TANDEM_OP_MATMUL_ALL_REDUCE = 6,
  /* output = input of rank root */
  TANDEM_OP_BROADCAST = 7,
  /* output, on root only = reduction over ranks of input */
  TANDEM_OP_REDUCE = 8,
  /* chunk r of output along dim = chunk `rank` of rank r's input; input[dim] divisible by W */
  TANDEM_OP_ALL_TO_ALL = 9,
  /* a transfer group: the `transfers` of this rank progress together and complete as a whole */
  TANDEM_OP_SEND_RECEIVE = 10,
  /* no operands */
  TANDEM_OP_BARRIER = 11,
  /* C = A * B, local; chunk i of A's rows is used once word i of TANDEM_ROLE_CHUNK_SIGNALS is 1 */
  TANDEM_OP_ASYNC_INPUT_MATMUL = 12,
  /* nothing: measures the launch path, orders streams */
  TANDEM_OP_EMPTY = 13
};

/* The meaning of a slot to its operation. Several TANDEM_ROLE_B are allowed in
 * TANDEM_OP_ALL_GATHER_MATMUL; the i-th belongs to the i-th TANDEM_ROLE_C, TANDEM_ROLE_SCALE_B,
 * TANDEM_ROLE_BIAS and TANDEM_ROLE_RESULT_SCALE. */
enum tandem_role {
  TANDEM_ROLE_INPUT = 1,
  TANDEM_ROLE_OUTPUT = 2,
  TANDEM_ROLE_A = 3,
  TANDEM_ROLE_B = 4,
  TANDEM_ROLE_C = 5,
  TANDEM_ROLE_GATHERED_A = 6,
  /* f32. One element: tensor-wise. The shard's leading dims + (1): row-wise, sharded, also where both
   * would fit. The gathered leading dims + (1): row-wise, replicated. ceil(K / 128) in place of (1): by
   * blocks. */
  TANDEM_ROLE_SCALE_A = 7,
  /* f32. One element; or (1, N); or by blocks: (ceil(K / 128), ceil(N / 128) or N). */
  TANDEM_ROLE_SCALE_B = 8,
  /* N elements, of C's dtype or f32 */
  TANDEM_ROLE_BIAS = 9,
  /* f32, one element */
  TANDEM_ROLE_RESULT_SCALE = 10,
  /* u32 words (dtype i32) of TANDEM_OP_ASYNC_INPUT_MATMUL */
  TANDEM_ROLE_CHUNK_SIGNALS = 11,
  /* Of TANDEM_OP_ALL_REDUCE and TANDEM_OP_MATMUL_ALL_REDUCE. One weight for each element of the last
   * dimension. The output is the RMSNorm of the sum over that dimension, times the weights (Zhang and
   * Sennrich, "Root Mean Square Layer Normalization", 2019):
   *   residual_output = sum + residual;
   *   output = residual_output / sqrt(mean of its squares + epsilon) * weight
   * The sum and residual_output are rounded to the output's dtype. All operands have that dtype and are
   * contiguous. Each rank uses its own weights and residual. */
  TANDEM_ROLE_NORM_WEIGHT = 12,
  /* The output's shape: added before the norm. Only together with TANDEM_ROLE_NORM_WEIGHT and
   * TANDEM_ROLE_RESIDUAL_OUTPUT. */
  TANDEM_ROLE_RESIDUAL = 13,
  /* The output's shape: gets the sum with the residual. May be in place with TANDEM_ROLE_RESIDUAL. */
  TANDEM_ROLE_RESIDUAL_OUTPUT = 14,
  /* f8e4m3, of the output's shape and contiguous: gets the norm, quantised. Only together with
   * TANDEM_ROLE_NORM_WEIGHT, and with one of TANDEM_ROLE_STATIC_SCALE and TANDEM_ROLE_SCALE_OUTPUT. The
   * norm is rounded to the output's dtype first:
   *   quantized_output = e4m3(output / scale), saturating at +-448 */
  TANDEM_ROLE_QUANTIZED_OUTPUT = 15,
  /* f32, one element: the scale of every element of TANDEM_ROLE_QUANTIZED_OUTPUT. Each rank uses its own. */
  TANDEM_ROLE_STATIC_SCALE = 16,
  /* f32: gets the scales of TANDEM_ROLE_QUANTIZED_OUTPUT, max(greatest magnitude, 1/512) / 448 each. The
   * output's leading dims + (1): a scale for each row. ceil(last extent / 128) in place of (1): a scale
   * for each 128 columns of a row. Strides may be any with which the leading dims are one dimension of
   * rows. */
  TANDEM_ROLE_SCALE_OUTPUT = 17
};

/* How values of several ranks become one, in rank order. Sums and products of floats have fp32
 * accumulators and one rounding; those of integers wrap. A minimum or maximum with a NaN is a NaN.
 * Operations with a product or a norm take sums and averages only; averages need floats, bitwise
 * reductions integers. */
enum tandem_reduce_op {
  TANDEM_REDUCE_SUM = 0,
  TANDEM_REDUCE_AVG = 1,
  TANDEM_REDUCE_MIN = 2,
  TANDEM_REDUCE_MAX = 3,
  TANDEM_REDUCE_PRODUCT = 4,
  TANDEM_REDUCE_BIT_AND = 5,
  TANDEM_REDUCE_BIT_OR = 6,
  TANDEM_REDUCE_BIT_XOR = 7
};

/* The type in which partial sums travel: the output's own (one rounding each), or fp32. */
enum tandem_wire { TANDEM_WIRE_OUTPUT = 0, TANDEM_WIRE_F32 = 1 };

/* The promise about the bits of a plan's results (docs/determinism.md). What cannot keep it is refused. */
enum tandem_determinism {
  TANDEM_DETERMINISM_OFF = 0,
  /* equal inputs and an equal plan give equal bits, in every run */
  TANDEM_DETERMINISM_RUN = 1,
  /* TANDEM_DETERMINISM_RUN, and a row's bits depend on its own inputs, the types, the row's length and the
   * group's size alone: not on the other rows, their number, the algorithm or the placement */
  TANDEM_DETERMINISM_BATCH = 2
};

/* The value behind a sum and a residual that a norm is computed from (docs/requests.md). */
enum tandem_rounding {
  /* the fp32 value that TANDEM_ROLE_RESIDUAL_OUTPUT is rounded from */
  TANDEM_ROUNDING_ONCE = 0,
  /* TANDEM_ROLE_RESIDUAL_OUTPUT as it is rounded, as in a model's own operations */
  TANDEM_ROUNDING_MODEL = 1
};

/* The algorithms, one name for all operations. TANDEM_ALGORITHM_AUTO leaves the choice to the daemon; a
 * chosen algorithm that cannot run fails the preparation. */
enum tandem_algorithm {
  TANDEM_ALGORITHM_AUTO = 0,
  TANDEM_ALGORITHM_ONE_SHOT = 1,
  TANDEM_ALGORITHM_TWO_SHOT = 2,
  TANDEM_ALGORITHM_HYBRID_CUBE_MESH = 3,
  /* packets with flags in the data; CUDA only */
  TANDEM_ALGORITHM_LOW_LATENCY = 4,
  /* on the host backend: a stand-in */
  TANDEM_ALGORITHM_NCCL = 5,
  /* copies only, no SMs: all-gather, and reduce-scatter with one local sum */
  TANDEM_ALGORITHM_COPY_ENGINE = 6,
  /* kernel on symmetric memory: all-gather, reduce-scatter, broadcast, reduce, all-to-all */
  TANDEM_ALGORITHM_SM = 7,
  /* matmul and collective one after the other */
  TANDEM_ALGORITHM_UNFUSED = 8,
  /* chunk pipeline over two lanes */
  TANDEM_ALGORITHM_PIPELINE = 9,
  /* S steps over n lanes */
  TANDEM_ALGORITHM_RING = 10,
  /* matmul all-reduce, two-shot on tiles */
  TANDEM_ALGORITHM_TILED_TWO_SHOT = 11,
  /* one fused kernel; CUDA only */
  TANDEM_ALGORITHM_FUSED = 12,
  /* send and receive, barrier, local operations: their only algorithm */
  TANDEM_ALGORITHM_DIRECT = 13
};

/* For a fused operation that only the unfused composition can serve: run it, run it with a warning in the
 * plan, in the daemon's log and as an event, or fail the preparation with reason UNFUSED_REFUSED. */
enum tandem_on_unfused {
  TANDEM_ON_UNFUSED_ALLOW = 0,
  TANDEM_ON_UNFUSED_WARN = 1,
  TANDEM_ON_UNFUSED_ERROR = 2
};

/* Where a plan's launches run (docs/client-placement.md). TANDEM_PLACEMENT_AUTO leaves it to the group's
 * option `placement`, and that to the daemon's key. */
enum tandem_placement {
  /* CUDA: the client where it is faster; host backend: TANDEM_PLACEMENT_ENGINE */
  TANDEM_PLACEMENT_AUTO = 0,
  /* on the engines' lanes */
  TANDEM_PLACEMENT_ENGINE = 1,
  /* on the ranks' own streams */
  TANDEM_PLACEMENT_CLIENT = 2
};

/* For a rank whose client and engine share no MPS server, so that their kernels take turns on the GPU
 * (about 290 us a launch): join, join with a warning, or fail the join and later plans with kernels. */
enum tandem_on_slow_placement {
  TANDEM_ON_SLOW_PLACEMENT_ALLOW = 0,
  TANDEM_ON_SLOW_PLACEMENT_WARN = 1,
  TANDEM_ON_SLOW_PLACEMENT_ERROR = 2
};

/* Events. `rank` and the status name the cause. */
enum tandem_event_kind {
  TANDEM_EVENT_RANK_LOST = 0,        /* a member's session ended without leaving */
  TANDEM_EVENT_GROUP_BROKEN = 1,     /* the group's launches fail from now on */
  TANDEM_EVENT_RANK_LEFT = 2,        /* a member has left cleanly */
  TANDEM_EVENT_ENGINE_RESTARTED = 3, /* launches in flight were aborted; plans and memory go on */
  TANDEM_EVENT_DRAINING = 4,         /* the daemon takes no new sessions and groups */
  TANDEM_EVENT_LATE = 5,             /* ranks have not arrived at a launch for a second */
  TANDEM_EVENT_DAEMON_LOST = 6,      /* this session is over: the daemon is gone, or has evicted it */
  TANDEM_EVENT_PLAN_WARNING = 7,     /* a plan was made that does less than was asked, once a plan */
  TANDEM_EVENT_GROUP_STALLED = 8,    /* a client-placed launch has failed: see tandem_group_renew */
  TANDEM_EVENT_SUSPEND_REQUESTED =
      9, /* an operator wants the groups' memory: see tandem_client_suspend_asked */
  TANDEM_EVENT_RESUME_REQUESTED = 10 /* the groups may have it again */
};

/* ---- Handles ---- */

typedef struct tandem_status tandem_status;
typedef struct tandem_client tandem_client;
typedef struct tandem_group tandem_group;
typedef struct tandem_plan tandem_plan;
typedef struct tandem_memory tandem_memory; /* registered memory, or a symmetric tensor */
typedef struct tandem_cancellation tandem_cancellation;
typedef struct tandem_stream tandem_stream; /* a stream of the host backend */
typedef struct tandem_graph tandem_graph;   /* an executable graph of the host backend */
typedef struct tandem_capture_hold tandem_capture_hold;

#ifdef __cplusplus
}
#endif

#endif /* TANDEM_C_TYPES_H_ */

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
  TANDEM_DTYPE_F8E4M3 = 3, /* OCP FP8, saturating at +-448, without infinities */
  TANDEM_DTYPE_F8E5M2 = 4, /* OCP FP8 */
  TANDEM_DTYPE_I32 = 5,
  TANDEM_DTYPE_I64 = 6,
  TANDEM_DTYPE_U8 = 7
};

/* Operations. W is the world size; tandem_request.dim is the dimension that is gathered or scattered. */
enum tandem_op {
  TANDEM_OP_ALL_REDUCE = 1,     /* output = reduction over ranks of input */
  TANDEM_OP_ALL_GATHER = 2,     /* output = the inputs of all ranks along dim, in rank order */
  TANDEM_OP_REDUCE_SCATTER = 3, /* output = this rank's chunk along dim of the reduction of input */
  TANDEM_OP_ALL_GATHER_MATMUL =
      4, /* C_i = gather(A) * B_i for each i; the gathered A too, if there is a slot for it */
  TANDEM_OP_MATMUL_REDUCE_SCATTER = 5, /* C = this rank's chunk along dim of the sum over ranks of A * B */
  TANDEM_OP_MATMUL_ALL_REDUCE = 6,     /* C = the sum over ranks of A * B */
  TANDEM_OP_BROADCAST = 7,             /* output = input of rank root */
  TANDEM_OP_REDUCE = 8,                /* output, on root only = reduction over ranks of input */
  TANDEM_OP_ALL_TO_ALL = 9,    /* chunk r of output = this rank's chunk of rank r's input, along dim */
  TANDEM_OP_SEND_RECEIVE = 10, /* tandem_request.transfers, all in progress together */
  TANDEM_OP_BARRIER = 11,      /* no operands */
  TANDEM_OP_ASYNC_INPUT_MATMUL =
      12,              /* C = A * B on this rank; chunk i of A is read once word i of the signals is 1 */
  TANDEM_OP_EMPTY = 13 /* no work: orders streams */
};

/* The meaning of an operand. B may stand several times in ALL_GATHER_MATMUL; the i-th B belongs to the i-th
 * C, SCALE_B and BIAS. */
enum tandem_role {
  TANDEM_ROLE_INPUT = 1,
  TANDEM_ROLE_OUTPUT = 2,
  TANDEM_ROLE_A = 3,
  TANDEM_ROLE_B = 4,
  TANDEM_ROLE_C = 5,
  TANDEM_ROLE_GATHERED_A = 6,
  TANDEM_ROLE_SCALE_A = 7,        /* f32: one element, one per row, or one per 128 columns of a row */
  TANDEM_ROLE_SCALE_B = 8,        /* f32: one element, one per column, or one per block of 128 rows */
  TANDEM_ROLE_BIAS = 9,           /* N elements, of C's dtype or f32 */
  TANDEM_ROLE_RESULT_SCALE = 10,  /* f32, one element */
  TANDEM_ROLE_CHUNK_SIGNALS = 11, /* i32 words, of ASYNC_INPUT_MATMUL */
  /* Of ALL_REDUCE and MATMUL_ALL_REDUCE, whose output then is the RMSNorm of the sum; see docs/requests.md */
  TANDEM_ROLE_NORM_WEIGHT = 12,    /* the output's last dimension */
  TANDEM_ROLE_RESIDUAL = 13,       /* the output's shape: added before the norm */
  TANDEM_ROLE_RESIDUAL_OUTPUT = 14 /* the output's shape: gets the sum with the residual */
};

enum tandem_reduce_op { TANDEM_REDUCE_SUM = 0, TANDEM_REDUCE_AVG = 1 };

/* The type in which partial sums travel: the output's dtype, with a rounding for each, or f32. */
enum tandem_wire { TANDEM_WIRE_OUTPUT = 0, TANDEM_WIRE_F32 = 1 };

/* Algorithms. AUTO leaves the choice to the daemon; a chosen algorithm that cannot run fails tandem_prepare.
 */
enum tandem_algorithm {
  TANDEM_ALGORITHM_AUTO = 0,
  TANDEM_ALGORITHM_ONE_SHOT = 1,
  TANDEM_ALGORITHM_TWO_SHOT = 2,
  TANDEM_ALGORITHM_HYBRID_CUBE_MESH = 3,
  TANDEM_ALGORITHM_LOW_LATENCY = 4, /* packets with flags; CUDA only */
  TANDEM_ALGORITHM_NCCL = 5,        /* on the host backend: a stand-in */
  TANDEM_ALGORITHM_COPY_ENGINE = 6, /* copies only, no SMs */
  TANDEM_ALGORITHM_SM = 7,          /* a kernel on symmetric memory */
  TANDEM_ALGORITHM_UNFUSED = 8,     /* matmul and collective one after the other */
  TANDEM_ALGORITHM_PIPELINE = 9,    /* chunks over two lanes */
  TANDEM_ALGORITHM_RING = 10,
  TANDEM_ALGORITHM_TILED_TWO_SHOT = 11,
  TANDEM_ALGORITHM_FUSED = 12, /* one kernel; CUDA only */
  TANDEM_ALGORITHM_DIRECT = 13 /* of operations with one algorithm */
};

/* For a fused operation that only the unfused composition can serve: run it, run it with a warning, or fail
 * tandem_prepare. */
enum tandem_on_unfused {
  TANDEM_ON_UNFUSED_ALLOW = 0,
  TANDEM_ON_UNFUSED_WARN = 1,
  TANDEM_ON_UNFUSED_ERROR = 2
};

/* Where a plan's launches run: the client where it is faster, the engines, or the caller's own stream. AUTO
 * leaves it to the group's option `placement`, and that to the daemon's key. */
enum tandem_placement { TANDEM_PLACEMENT_AUTO = 0, TANDEM_PLACEMENT_ENGINE = 1, TANDEM_PLACEMENT_CLIENT = 2 };

/* For a rank whose client and engine share no MPS server, so that their kernels take turns on the GPU (about
 * 290 us a launch): join, join with a warning, or fail the join and later plans with kernels. */
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
  TANDEM_EVENT_GROUP_STALLED = 8     /* a client-placed launch has failed: see tandem_group_renew */
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

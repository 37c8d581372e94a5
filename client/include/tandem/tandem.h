/* File: tandem.h
 *
 * The C interface of Tandem's client library. A process connects to the node's daemon, joins a group, gives
 * memory to it, prepares plans once, and launches them on its streams.
 *
 *   tandem_client* client;
 *   tandem_status* status = tandem_connect(NULL, NULL, TANDEM_DEFAULT_DEADLINE, &client);
 *   if (status != NULL) {
 *     puts(tandem_status_message(status));
 *     tandem_status_free(status);
 *   }
 *
 * Stability. This interface is ABI-stable; the C++ interface (tandem/client.h) is not. Within one
 * TANDEM_ABI_VERSION a program built against an older header runs with a newer library. Functions and
 * constants may be added; none changes or goes. A struct with `struct_size` may grow at its end.
 * tandem_binding and tandem_transfer never change. C++ programs may use this header, too.
 *
 * Errors. A function that can fail returns NULL on success, else a tandem_status, which the caller owns and
 * frees with tandem_status_free. An output argument is written on success. On failure an output handle is set
 * to NULL, and any other output argument is left alone. Every function that returns a status can fail with:
 * - INVALID_ARGUMENT: a handle or an output argument is NULL, or a constant is unknown. tandem_status_field
 *   names the argument.
 * - UNAVAILABLE: the daemon is gone (reason DAEMON_LOST), or the client has detached.
 * - UNAUTHENTICATED: the daemon has evicted this session, or does not know it any more.
 * - FAILED_PRECONDITION, reason FORKED: the process is the child of a fork whose parent had connected.
 * Each function names its other errors.
 *
 * Null. No function crashes on a NULL handle. A function without a status returns a neutral value for it: 0,
 * "" or NULL.
 *
 * Ownership. Handles are the caller's, and end with their tandem_*_free, in any order. A handle keeps what it
 * came from alive. Texts and structs passed in are copied before the function returns. A returned text
 * belongs to its handle and lives as long.
 *
 * Threads. Every function may be called from any thread at any time, except: nobody may use a handle while or
 * after it is freed, and one status belongs to one thread. Functions that wait do so in the calling thread
 * only.
 *
 * Deadlines. `deadline_ms` is in milliseconds from the call. 0 (TANDEM_DEFAULT_DEADLINE) is the function's
 * default, which its text names (tandem/deadlines.h has the values). Negative (TANDEM_DO_NOT_WAIT) means:
 * look once, do not wait. More than a year counts as a year.
 *
 * Fork. The child of a process that has connected cannot use this library; its parent is unharmed. In the
 * child, handles may be freed, and everything else fails with reason FORKED. Start such a child by exec or
 * spawn, or fork before connecting.
 */
#ifndef TANDEM_TANDEM_H_
#define TANDEM_TANDEM_H_

#include <stddef.h>
#include <stdint.h>

#include "tandem/deadlines.h"

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

/* ---- Constants. Arguments and fields that take one are `int`, whose size is the same for all compilers ----
 */

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
  TANDEM_ROLE_SCALE_A = 7,       /* f32: one element, one per row, or one per 128 columns of a row */
  TANDEM_ROLE_SCALE_B = 8,       /* f32: one element, one per column, or one per block of 128 rows */
  TANDEM_ROLE_BIAS = 9,          /* N elements, of C's dtype or f32 */
  TANDEM_ROLE_RESULT_SCALE = 10, /* f32, one element */
  TANDEM_ROLE_CHUNK_SIGNALS = 11 /* i32 words, of ASYNC_INPUT_MATMUL */
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
  TANDEM_EVENT_DRAINING = 4,         /* the daemon takes no new groups and plans */
  TANDEM_EVENT_LATE = 5,             /* ranks have not arrived at a launch for a second */
  TANDEM_EVENT_DAEMON_LOST = 6,      /* this session is over: the daemon is gone, or has evicted it */
  TANDEM_EVENT_PLAN_WARNING = 7      /* a plan was made that does less than was asked, once a plan */
};

/* ---- Handles ---- */

typedef struct tandem_status tandem_status;
typedef struct tandem_client tandem_client;
typedef struct tandem_group tandem_group;
typedef struct tandem_plan tandem_plan;
typedef struct tandem_memory tandem_memory; /* registered memory, or a symmetric tensor */
typedef struct tandem_stream tandem_stream; /* a stream of the host backend */
typedef struct tandem_graph tandem_graph;   /* an executable graph of the host backend */

/* ---- Statuses. NULL is a status, too: OK. One status is for one thread. ---- */

/* Returns an enum tandem_code; TANDEM_OK for NULL. */
TANDEM_C_API int tandem_status_code(const tandem_status* status);
/* Returns the text for people; "" for NULL. The text belongs to the status. */
TANDEM_C_API const char* tandem_status_message(const tandem_status* status);
/* Returns the cause for programs, in upper case: "ENGINE_RESTARTED", "RANK_LATE", … (docs/protocol.md lists
 * them); "" if there is none. The text belongs to the status. */
TANDEM_C_API const char* tandem_status_reason(const tandem_status* status);
/* Returns a text that names the rank, session, GPU or process that caused the failure; "" if there is none.
 * The text belongs to the status. */
TANDEM_C_API const char* tandem_status_who(const tandem_status* status);
/* Returns the name of the wrong argument or field, as "operands[1].shape"; "" if there is none. The text
 * belongs to the status. */
TANDEM_C_API const char* tandem_status_field(const tandem_status* status);
/* Returns whether a failed launch had started on some rank: 1 yes, 0 no, -1 unknown (also for NULL, and where
 * the status is not a launch's). 0: no operand was written. 1 and -1: every operand that the launch writes is
 * undefined; restore the operands in place before a retry. */
TANDEM_C_API int tandem_status_started(const tandem_status* status);
/* Writes up to `capacity` of the ranks that caused the failure to `ranks`, ascending, and returns their full
 * number; 0 if there is none. `ranks` may be NULL if `capacity` is 0. */
TANDEM_C_API size_t tandem_status_ranks(const tandem_status* status, int* ranks, size_t capacity);
/* Returns the process that caused the failure, as the daemon sees it; 0 if there is none. */
TANDEM_C_API int64_t tandem_status_pid(const tandem_status* status);
/* Returns the index of the GPU that caused the failure; -1 if there is none. */
TANDEM_C_API int tandem_status_gpu(const tandem_status* status);
/* Return the limit that a RESOURCE_EXHAUSTED has met, and its use at that time; 0 if there is none. */
TANDEM_C_API int64_t tandem_status_limit(const tandem_status* status);
TANDEM_C_API int64_t tandem_status_usage(const tandem_status* status);
/* Ends the status. NULL is allowed. */
TANDEM_C_API void tandem_status_free(tandem_status* status);

/* ---- Sessions ---- */

/* Connects to the daemon and opens a session. `runtime_dir` NULL: $TANDEM_RUNTIME_DIR, else /run/tandem.
 * `name`, which tandemctl shows, NULL: the program's. Default deadline: TANDEM_DEFAULT_CONNECT_DEADLINE_MS.
 * The caller owns *client. UNAVAILABLE: no daemon answers; the message names the socket. PERMISSION_DENIED:
 * the daemon does not admit this user. RESOURCE_EXHAUSTED: a quota of sessions. FAILED_PRECONDITION: the
 * library's gRPC plugin cannot be loaded. */
TANDEM_C_API tandem_status* tandem_connect(const char* runtime_dir, const char* name, int64_t deadline_ms,
                                           tandem_client** client);
/* Drops the handle. The session ends with its last handle of any kind. The event callback is not called after
 * this returns. NULL is allowed. */
TANDEM_C_API void tandem_client_free(tandem_client* client);
/* Returns the session's number, as tandemctl shows it; 0 for NULL. */
TANDEM_C_API uint64_t tandem_client_session_id(const tandem_client* client);
/* Returns "host" or "cuda"; "" for NULL. The text belongs to the client. */
TANDEM_C_API const char* tandem_client_backend(const tandem_client* client);
/* Returns the daemon's version; "" for NULL. The text belongs to the client. */
TANDEM_C_API const char* tandem_client_daemon_version(const tandem_client* client);
/* Returns the number of the daemon's GPUs; 0 for NULL. */
TANDEM_C_API int tandem_client_gpu_count(const tandem_client* client);
/* Returns the UUID of the `position`-th of the daemon's GPUs; NULL if there is no such GPU. The text belongs
 * to the client. */
TANDEM_C_API const char* tandem_client_gpu_uuid(const tandem_client* client, int position);
/* Writes the UUID of this process's CUDA device `ordinal`, as the daemon names the GPU, and a terminating
 * zero to `uuid`, which has room for `uuid_bytes`. For tandem_join_options.gpu_uuid. Needs no session.
 * OUT_OF_RANGE: too little room, or no such device. UNAVAILABLE: no CUDA driver. UNIMPLEMENTED: a library
 * without CUDA. */
TANDEM_C_API tandem_status* tandem_cuda_device_uuid(int ordinal, char* uuid, size_t uuid_bytes);
/* Asks the daemon whether it answers and knows the session. */
TANDEM_C_API tandem_status* tandem_client_check(tandem_client* client);
/* Ends the session cleanly: groups are left, plans and registrations end. Other handles of the session fail
 * with UNAVAILABLE afterwards, and must still be freed. */
TANDEM_C_API tandem_status* tandem_client_detach(tandem_client* client);
/* Called for each event, one at a time, from a thread of the library. `kind` is an enum tandem_event_kind; a
 * newer library may pass kinds that this header does not have. `group_id` 0: no group; `rank` -1: no rank.
 * `status` belongs to the library and ends with the call; it may be NULL. The callback must not block. It may
 * free handles, also the client, and set another callback. */
typedef void (*tandem_event_callback)(void* user, int kind, uint64_t group_id, int rank,
                                      const tandem_status* status);
/* Sets the callback, in place of an earlier one; NULL: none. Once this returns, the earlier callback is not
 * called any more and has returned, unless it is the caller. `user` is passed to the callback and stays the
 * caller's. NULL `client`: no effect. */
TANDEM_C_API void tandem_client_on_event(tandem_client* client, tandem_event_callback callback, void* user);

/* ---- Groups ---- */

/* Options of tandem_join_group. Set up by tandem_join_options_init. Arrays and texts stay the caller's. */
typedef struct tandem_join_options {
  size_t struct_size;  /* set by tandem_join_options_init */
  const void* job_key; /* at least 16 bytes, equal on all ranks of the job, secret to the job */
  size_t job_key_bytes;
  const char* name;           /* of the group, within the job */
  int world_size;             /* ranks of the group, 1 to 8; one GPU each. Default: 1 */
  int rank;                   /* of this process, 0 to world_size - 1 */
  const char* gpu_uuid;       /* NULL: the GPU with index `rank` */
  int64_t deadline_ms;        /* for all ranks to join. Default: TANDEM_DEFAULT_DEADLINE_MS */
  int64_t launch_deadline_ms; /* of launches, from the first rank's arrival; 0: 10 minutes. Not negative */
  const char* const* option_names;  /* `option_count` texts; must agree on all ranks */
  const char* const* option_values; /* docs/operations.md, group options */
  size_t option_count;
  int on_slow_placement; /* enum tandem_on_slow_placement. Default: ALLOW */
  int reserved;          /* 0 */
} tandem_join_options;
/* Writes the defaults to *options. `struct_size` is sizeof(tandem_join_options) of the caller's header. NULL
 * is allowed. */
TANDEM_C_API void tandem_join_options_init(tandem_join_options* options, size_t struct_size);

/* Joins the group of this job and name, and waits for all ranks. The caller owns *group.
 * DEADLINE_EXCEEDED: ranks did not join; tandem_status_ranks returns them. INVALID_ARGUMENT: a field is
 * wrong, or differs between ranks (reason FIELD_MISMATCH). ALREADY_EXISTS: the rank is taken.
 * RESOURCE_EXHAUSTED: a quota. FAILED_PRECONDITION, reason SLOW_PLACEMENT: as on_slow_placement asks.
 * UNAVAILABLE: the daemon drains, or an engine does not run. */
TANDEM_C_API tandem_status* tandem_join_group(tandem_client* client, const tandem_join_options* options,
                                              tandem_group** group);
/* Drops the handle. A group without handles (of plans and tensors, too) is left. NULL is allowed. */
TANDEM_C_API void tandem_group_free(tandem_group* group);
/* Returns the group's number, as events have it; 0 for NULL. */
TANDEM_C_API uint64_t tandem_group_id(const tandem_group* group);
/* Returns this process's rank; -1 for NULL. */
TANDEM_C_API int tandem_group_rank(const tandem_group* group);
/* Returns the number of ranks; 0 for NULL. */
TANDEM_C_API int tandem_group_world_size(const tandem_group* group);
/* Returns the count of this group name's lives, from 1; 0 for NULL. */
TANDEM_C_API uint64_t tandem_group_incarnation(const tandem_group* group);
/* Returns the UUID of this rank's GPU; "" for NULL. The text belongs to the group. */
TANDEM_C_API const char* tandem_group_gpu_uuid(const tandem_group* group);
/* Returns the kind of the GPUs' connections; "" for NULL. The text belongs to the group. */
TANDEM_C_API const char* tandem_group_topology_class(const tandem_group* group);
/* Returns the number of links between the GPUs of two ranks; 0 if there is no such rank. */
TANDEM_C_API int tandem_group_links(const tandem_group* group, int from, int to);
/* Leaves the group, after this rank's launches have ended. Later launches of the other ranks fail with this
 * rank's name. Default deadline: TANDEM_DEFAULT_DEADLINE_MS. DEADLINE_EXCEEDED: launches have not ended, and
 * the group goes on. */
TANDEM_C_API tandem_status* tandem_group_leave(tandem_group* group, int64_t deadline_ms);

/* ---- Memory. Shapes are in elements, `dims` extents; offsets and sizes are in bytes. `dtype` is an enum
 * tandem_dtype. ---- */

/* Makes a symmetric tensor: the same call on every rank of the group, each with memory on its own GPU, mapped
 * on all ranks. Waits for the other ranks. `persistent_name` not NULL: later calls with the name get the same
 * memory while the group lives. Default deadline: TANDEM_DEFAULT_DEADLINE_MS. The caller owns *tensor; the
 * memory ends with it, unless it is persistent. DEADLINE_EXCEEDED: ranks did not come. INVALID_ARGUMENT:
 * sizes differ between ranks. RESOURCE_EXHAUSTED: memory or a quota. */
TANDEM_C_API tandem_status* tandem_allocate(tandem_group* group, const int64_t* shape, size_t dims, int dtype,
                                            const char* persistent_name, int64_t deadline_ms,
                                            tandem_memory** tensor);
/* Makes a tensor without a group on the GPU `gpu_uuid`, and writes its number to *tensor. Memory comes with
 * the first tandem_rendezvous. `persistent_name` may be NULL. The tensor lives until tandem_free_tensor or
 * the session's end. NOT_FOUND: no such GPU. RESOURCE_EXHAUSTED: a quota. */
TANDEM_C_API tandem_status* tandem_empty(tandem_client* client, const int64_t* shape, size_t dims, int dtype,
                                         const char* gpu_uuid, const char* persistent_name, uint64_t* tensor);
/* Makes the tensors of all ranks of the group one symmetric tensor. Waits for the other ranks. A tensor may
 * meet in several groups. Default deadline: TANDEM_DEFAULT_DEADLINE_MS. The caller owns *memory. Errors:
 * those of tandem_allocate; NOT_FOUND for an unknown tensor. */
TANDEM_C_API tandem_status* tandem_rendezvous(tandem_client* client, uint64_t tensor, tandem_group* group,
                                              int64_t deadline_ms, tandem_memory** memory);
/* Ends a tensor of tandem_empty. Its memory goes with the last handle. NOT_FOUND: no such tensor. */
TANDEM_C_API tandem_status* tandem_free_tensor(tandem_client* client, uint64_t tensor);
/* Registers the first `bytes` of memory on the GPU behind the descriptor `fd`, which stays the caller's: on
 * the host backend a memfd sealed against shrinking, on CUDA an exported VMM allocation of `bytes`. The
 * caller owns *memory; the registration ends with it. INVALID_ARGUMENT: another kind of descriptor, or a
 * smaller one. RESOURCE_EXHAUSTED: a quota. */
TANDEM_C_API tandem_status* tandem_register_fd(tandem_client* client, int fd, size_t bytes,
                                               const char* gpu_uuid, tandem_memory** memory);
/* Makes memory of `bytes` on the GPU and registers it; on CUDA this process must see that GPU. The caller
 * owns *memory; memory and registration end with it. RESOURCE_EXHAUSTED: memory or a quota. */
TANDEM_C_API tandem_status* tandem_allocate_registered(tandem_client* client, size_t bytes,
                                                       const char* gpu_uuid, tandem_memory** memory);
/* Registers [device_pointer, device_pointer + bytes), memory of the caller's own on a GPU: cudaMalloc's, or
 * VMM memory that can be exported as POSIX descriptors. The same memory again costs a look-up. The
 * registration lasts until the memory is freed or the session ends; the handle, which the caller owns, only
 * names it. INVALID_ARGUMENT, reason NOT_REGISTRABLE: other memory; the message says which memory to use.
 * FAILED_PRECONDITION, reason MEMORY_FREED: on later use, the memory has been freed. RESOURCE_EXHAUSTED: a
 * quota. */
TANDEM_C_API tandem_status* tandem_register_cuda(tandem_client* client, const void* device_pointer,
                                                 size_t bytes, tandem_memory** memory);
/* Drops the handle. Launches in flight and graphs keep what they use. NULL is allowed. */
TANDEM_C_API void tandem_memory_free(tandem_memory* memory);
/* Returns this rank's bytes, an address of this process: of the host on the host backend, of the device on
 * CUDA. Valid while the handle lives, which must be longer than the work on streams that uses the address.
 * NULL for NULL. */
TANDEM_C_API void* tandem_memory_data(const tandem_memory* memory);
/* Returns the size in bytes; 0 for NULL. */
TANDEM_C_API size_t tandem_memory_bytes(const tandem_memory* memory);
/* Returns the registration's number; 0 for NULL. */
TANDEM_C_API uint64_t tandem_memory_registration_id(const tandem_memory* memory);

/* The following are for symmetric tensors: FAILED_PRECONDITION for other memory. */

/* Writes to *buffer the address in this process of `peer`'s tensor, `offset_bytes` on, where a tensor of the
 * shape must fit. OUT_OF_RANGE: no such rank, or beyond the tensor. */
TANDEM_C_API tandem_status* tandem_tensor_get_buffer(const tandem_memory* tensor, int peer,
                                                     const int64_t* shape, size_t dims, int dtype,
                                                     size_t offset_bytes, void** buffer);
/* Writes to *words and *count the caller's own signal pad on `peer`: 32-bit words, zero at the rendezvous,
 * which only the caller and the signal functions below change. A device address on CUDA. OUT_OF_RANGE: no
 * such rank. */
TANDEM_C_API tandem_status* tandem_tensor_signal_pad(const tandem_memory* tensor, int peer, uint32_t** words,
                                                     size_t* count);
/* Returns the number of signal channels; 0 for NULL and for memory that is not symmetric. */
TANDEM_C_API int tandem_tensor_channels(const tandem_memory* tensor);
/* Signals `peer` on `channel`, 0 to tandem_tensor_channels() - 1. Waits until the peer has taken the signal
 * before. Default deadline of these three: TANDEM_DEFAULT_DEADLINE_MS. DEADLINE_EXCEEDED: the peer has not
 * taken it; tandem_status_ranks returns the peer. OUT_OF_RANGE: no such rank or channel. */
TANDEM_C_API tandem_status* tandem_tensor_put_signal(tandem_memory* tensor, int peer, int channel,
                                                     int64_t deadline_ms);
/* Waits for the peer's signal on `channel` and takes it. Errors: those of tandem_tensor_put_signal. */
TANDEM_C_API tandem_status* tandem_tensor_wait_signal(tandem_memory* tensor, int peer, int channel,
                                                      int64_t deadline_ms);
/* Waits for all ranks on `channel`. Errors: those of tandem_tensor_put_signal; the ranks are those that did
 * not come. */
TANDEM_C_API tandem_status* tandem_tensor_barrier(tandem_memory* tensor, int channel, int64_t deadline_ms);
/* Enqueues on the stream: `count` 32-bit words of `peer`'s tensor from `offset_bytes` (a multiple of 4)
 * become `value`. OUT_OF_RANGE: no such rank, or beyond the tensor. INVALID_ARGUMENT: a crooked offset, or a
 * stream of another backend. */
TANDEM_C_API tandem_status* tandem_tensor_memset32(tandem_memory* tensor, tandem_stream* stream, int peer,
                                                   size_t offset_bytes, uint32_t value, size_t count);
/* The same on a cudaStream_t (NULL: the legacy default stream), for `count` words and for one. */
TANDEM_C_API tandem_status* tandem_tensor_memset32_cuda(tandem_memory* tensor, void* cuda_stream, int peer,
                                                        size_t offset_bytes, uint32_t value, size_t count);
TANDEM_C_API tandem_status* tandem_tensor_write32_cuda(tandem_memory* tensor, void* cuda_stream, int peer,
                                                       size_t offset_bytes, uint32_t value);

/* ---- Plans ---- */

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
 * all ranks, except `transfers` and the operands' strides.
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
  int restartable; /* not 0: launches leave the inputs as they are; see below */
  int reserved;    /* 0 */
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
 * UNAVAILABLE: the group is broken, or the daemon drains. */
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

/* The memory of a slot in a launch. Never changes. A `pointer` lies in a symmetric tensor of the group, in
 * memory of tandem_allocate_registered, or, on CUDA, in memory of the caller's own, which the first launch
 * with it registers, as tandem_register_cuda. */
typedef struct tandem_binding {
  const tandem_memory* memory; /* NULL: `pointer` is used */
  uint64_t offset;             /* in bytes, into the memory or from the pointer */
  const void* pointer;         /* an address in this process; see below */
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
 * - FAILED_PRECONDITION, reason MEMORY_FREED.
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

/* ---- Streams of the host backend: in-order queues of work for an emulated GPU ---- */

/* Makes a stream. The caller owns *stream. */
TANDEM_C_API tandem_status* tandem_stream_create(tandem_stream** stream);
/* Drops the handle. Work that is enqueued still runs. NULL is allowed. */
TANDEM_C_API void tandem_stream_free(tandem_stream* stream);
/* Calls function(user) in stream order, from a thread of the library. It must not throw, nor call functions
 * that wait. `user` stays the caller's. */
TANDEM_C_API tandem_status* tandem_stream_enqueue(tandem_stream* stream, void (*function)(void*), void* user);
/* Waits until all work of the stream is done. Default deadline: TANDEM_DEFAULT_WAIT_DEADLINE_MS.
 * DEADLINE_EXCEEDED: it is not. FAILED_PRECONDITION: the stream captures. */
TANDEM_C_API tandem_status* tandem_stream_synchronize(tandem_stream* stream, int64_t deadline_ms);
/* Records the stream's work into a graph from here on, instead of running it. FAILED_PRECONDITION: the stream
 * captures already. */
TANDEM_C_API tandem_status* tandem_stream_begin_capture(tandem_stream* stream);
/* Ends the capture and makes its graph executable. The caller owns *graph. FAILED_PRECONDITION: the stream
 * does not capture. */
TANDEM_C_API tandem_status* tandem_stream_end_capture(tandem_stream* stream, tandem_graph** graph);
/* Enqueues a replay of the graph on the stream. Replays of one graph run one after another. */
TANDEM_C_API tandem_status* tandem_graph_launch(tandem_graph* graph, tandem_stream* stream);
/* Drops the handle. Replays that are enqueued still run. NULL is allowed. */
TANDEM_C_API void tandem_graph_free(tandem_graph* graph);

#ifdef __cplusplus
}
#endif

#endif /* TANDEM_TANDEM_H_ */

/* File: c_session.h
 *
 * Sessions, their events, and groups of the C interface.
 */
#ifndef TANDEM_C_SESSION_H_
#define TANDEM_C_SESSION_H_

#include <stddef.h>
#include <stdint.h>

#include "tandem/c_types.h"
#include "tandem/deadlines.h"

#ifdef __cplusplus
extern "C" {
#endif

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
 * wrong, or differs between ranks (reason JOIN_MISMATCH). ALREADY_EXISTS: the rank is taken.
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
/* Lets launches go on after one of them has stalled the group, with the same plans, memory and graphs. All
 * ranks call it; it waits for them. Until it returns, this rank launches no plan of the group and replays no
 * graph with one. All ranks agree first on the launch to go on with. Failures that no call has returned yet
 * are dropped. Default deadline: TANDEM_DEFAULT_DEADLINE_MS. DEADLINE_EXCEEDED: ranks did not call it
 * (tandem_status_ranks), or launches of this rank's have not ended; all ranks may call it again. UNAVAILABLE:
 * the group is broken. */
TANDEM_C_API tandem_status* tandem_group_renew(tandem_group* group, int64_t deadline_ms);
/* Gives up the group's memory, on this rank and on the engines, until tandem_group_resume. All ranks call it; it
 * waits for them. Addresses stay, so that plans, families, graphs and symmetric tensors are valid afterwards.
 * Until tandem_group_resume returns, this rank reads no memory of the group and replays no graph with one of its
 * plans; a launch fails with reason SUSPENDED. `keep` not 0: this rank's symmetric tensors keep their contents;
 * else they are zero afterwards. Nothing for a suspended group. Default deadline: TANDEM_DEFAULT_DEADLINE_MS.
 * DEADLINE_EXCEEDED: ranks did not call it (tandem_status_ranks), or launches of this rank's have not ended.
 * FAILED_PRECONDITION: a stalled group, or a tensor of another group in this one's memory (TENSOR_SHARED).
 * RESOURCE_EXHAUSTED: no memory for the contents. UNAVAILABLE: the group is broken. UNIMPLEMENTED: an older daemon.
 * After an error the group runs on; if this rank had stopped already, it is suspended, and both calls may be made
 * again. */
TANDEM_C_API tandem_status* tandem_group_suspend(tandem_group* group, int keep, int64_t deadline_ms);
/* Makes the memory of a suspended group again, at the same addresses. All ranks call it; it waits for them. Nothing
 * for a group that is not suspended. Default deadline: TANDEM_DEFAULT_DEADLINE_MS. RESOURCE_EXHAUSTED: memory or a
 * quota. DEADLINE_EXCEEDED: ranks did not call it. UNAVAILABLE: the group is broken; a rank that has ended meanwhile
 * is named. After an error the group is suspended still, and the call may be made again. */
TANDEM_C_API tandem_status* tandem_group_resume(tandem_group* group, int64_t deadline_ms);

/* Suspends all groups of the client, as tandem_group_suspend each. All ranks of all groups call it, whatever groups each of
 * them has, and it waits for them; `deadline_ms` is for all groups together. Nothing where all sleep. An error is that of
 * the first group that does not sleep, and names it. The groups that this call has put to sleep are woken up, which
 * takes as long as the deadline again at most; a group of a rank that has suspended all its groups by
 * then sleeps on, and is named: all ranks call tandem_client_resume. CANCELLED: groups may sleep on; either call may be made. Default
 * deadline: TANDEM_DEFAULT_DEADLINE_MS. */
TANDEM_C_API tandem_status* tandem_client_suspend(tandem_client* client, int keep, int64_t deadline_ms);
/* Resumes all groups of the client, as tandem_group_resume each. All ranks call it. Nothing where all are awake. An error is
 * that of the first group that does not wake up, and names all that sleep on; the others are awake. The call may be made
 * again. Default deadline: TANDEM_DEFAULT_DEADLINE_MS. */
TANDEM_C_API tandem_status* tandem_client_resume(tandem_client* client, int64_t deadline_ms);

/* Called between two steps of the program, on every rank: a step is a part of the work that all ranks of the job begin
 * and end alike. *asked is 1 where an operator asks the job to give up its GPU memory: then call
 * tandem_client_suspend_as_asked before the step. The job takes such requests once all its processes have made the first
 * call (docs/suspend.md). `step`: the number of the step that begins, the same on all ranks, larger each time; -1: calls of
 * this client are counted, for jobs whose processes make the first call at the same step. One thread calls it. It waits
 * for the daemon in the first call alone, and for no rank. */
TANDEM_C_API tandem_status* tandem_client_suspend_asked(tandem_client* client, int64_t step, int* asked);
/* Suspends all groups of the client where all ranks are at the agreed step, waits until an operator resumes the job, and
 * resumes them. Before the call, the program's own kernels that use memory of groups have ended, and none begins on
 * another thread before it returns. `keep`: as tandem_group_suspend's. *slept is 1 where the groups have slept; 0 where
 * the agreed step comes later, and where the operator has given up. UNAVAILABLE: a group has broken meanwhile, or the
 * daemon is lost. CANCELLED: the groups may sleep on; the call may be made again. */
TANDEM_C_API tandem_status* tandem_client_suspend_as_asked(tandem_client* client, int keep, int* slept);

/* Before a checkpoint of the process's memory, on the host backend: all groups sleep, and the process gives up its
 * connections to the daemon. A process that is restored from the checkpoint, or this one, takes the session back by
 * tandem_client_end_checkpoint, or tandem_group_resume. In between, no handle of the client is used or dropped, and its end
 * ends no session (docs/suspend.md). Idempotent. Default deadline: TANDEM_DEFAULT_DEADLINE_MS. FAILED_PRECONDITION: reason
 * NOT_SUSPENDED, or HAS_CHANNELS for graphs with launches that engines run. UNIMPLEMENTED: the CUDA backend. */
TANDEM_C_API tandem_status* tandem_client_begin_checkpoint(tandem_client* client, int64_t deadline_ms);
/* Default deadline: TANDEM_DEFAULT_DEADLINE_MS. UNAVAILABLE: no daemon answers. UNAUTHENTICATED, FAILED_PRECONDITION: the
 * session has ended, or another process has restored it. Idempotent, also after an error. */
TANDEM_C_API tandem_status* tandem_client_end_checkpoint(tandem_client* client, int64_t deadline_ms);

#ifdef __cplusplus
}
#endif

#endif /* TANDEM_C_SESSION_H_ */

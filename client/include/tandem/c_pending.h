/* File: c_pending.h
 *
 * Calls that wait for other ranks, made in the background, and the end of a stream's work, both as descriptors
 * for an event loop, in the C interface.
 */
#ifndef TANDEM_C_PENDING_H_
#define TANDEM_C_PENDING_H_

#include <stdint.h>

#include "tandem/c_plan.h"
#include "tandem/c_session.h"
#include "tandem/c_types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tandem_pending tandem_pending; /* a join or a preparation in the background */

/* Begins tandem_join_group in a thread of its own. The caller owns *pending. What is wrong with `options`
 * comes from this call, all else from tandem_pending_take_group. RESOURCE_EXHAUSTED: no thread or no
 * descriptor. */
TANDEM_C_API tandem_status* tandem_join_group_start(tandem_client* client, const tandem_join_options* options,
                                                    tandem_pending** pending);
/* Begins tandem_prepare likewise; the plan comes from tandem_pending_take_plan. */
TANDEM_C_API tandem_status* tandem_prepare_start(tandem_group* group, const char* key,
                                                 const tandem_request* request, int64_t deadline_ms,
                                                 tandem_pending** pending);
/* Returns a descriptor that is readable, for poll and epoll, once the call has ended, and from then on. It
 * belongs to the handle, and is not to be read. -1 for NULL. */
TANDEM_C_API int tandem_pending_fd(const tandem_pending* pending);
/* Returns 1 once the call has ended, else 0; 1 for NULL. */
TANDEM_C_API int tandem_pending_ended(const tandem_pending* pending);
/* Ends the call with CANCELLED, where it waits for other ranks. It may succeed all the same. From any thread,
 * any number of times. NULL: no effect. */
TANDEM_C_API void tandem_pending_cancel(tandem_pending* pending);
/* Takes what the call has returned, once: its handle, which the caller then owns, or its error.
 * FAILED_PRECONDITION, reason NOT_ENDED: it has not ended. NOT_FOUND: the result has been taken.
 * INVALID_ARGUMENT: a call of the other kind. */
TANDEM_C_API tandem_status* tandem_pending_take_group(tandem_pending* pending, tandem_group** group);
TANDEM_C_API tandem_status* tandem_pending_take_plan(tandem_pending* pending, tandem_plan** plan);
/* Drops the handle, with a result that was not taken. A call that has not ended is cancelled, and not waited
 * for. NULL is allowed. */
TANDEM_C_API void tandem_pending_free(tandem_pending* pending);

/* Adds 1 to the eventfd `event_fd` behind all work that is on the stream, launches and others; in a capture at
 * each replay. tandem_plan_query and tandem_collectives_query then have the outcome of the launches without
 * waiting. `stream` is a cudaStream_t (NULL: the legacy default stream) on CUDA, and a tandem_stream on the
 * host backend. The descriptor is the caller's, who keeps it open until then. INVALID_ARGUMENT: no stream or
 * no descriptor. */
TANDEM_C_API tandem_status* tandem_group_notify(tandem_group* group, void* stream, int event_fd);

#ifdef __cplusplus
}
#endif

#endif /* TANDEM_C_PENDING_H_ */

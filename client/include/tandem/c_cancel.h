/* File: c_cancel.h
 *
 * Cancellation of calls that wait for other ranks, in the C interface.
 */
#ifndef TANDEM_C_CANCEL_H_
#define TANDEM_C_CANCEL_H_

#include "tandem/c_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a cancellation. The caller owns *cancellation. */
TANDEM_C_API tandem_status* tandem_cancellation_create(tandem_cancellation** cancellation);
/* Drops the handle, also while it is in use. NULL is allowed. */
TANDEM_C_API void tandem_cancellation_free(tandem_cancellation* cancellation);
/* Puts the cancellation in use for calls of this thread, in place of an earlier one; NULL: none. One thread
 * at a time may use it. These calls can be cancelled while they wait for other ranks: tandem_join_group,
 * tandem_prepare, tandem_group_renew, tandem_group_suspend, tandem_group_resume, tandem_group_leave,
 * tandem_client_suspend_as_asked, and collectives that prepare. So can tandem_client_detach, which ends the session all the same. */
TANDEM_C_API void tandem_cancellation_use(tandem_cancellation* cancellation);
/* Ends such a call of the thread with CANCELLED, and each later one. From any thread, any number of times.
 * The other ranks do not hear of it: they wait on, and the rank may make the call again. A call that all
 * ranks have come to may succeed all the same. NULL: no effect. */
TANDEM_C_API void tandem_cancellation_cancel(tandem_cancellation* cancellation);

#ifdef __cplusplus
}
#endif

#endif /* TANDEM_C_CANCEL_H_ */

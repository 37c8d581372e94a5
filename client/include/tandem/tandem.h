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
 * This header includes the interface's parts. Include this header, not a part:
 *   tandem/version.h    the version of these headers
 *   tandem/c_types.h    constants, and the types of handles
 *   tandem/c_status.h   statuses
 *   tandem/c_session.h  sessions, events and groups
 *   tandem/c_memory.h   symmetric tensors and registered memory
 *   tandem/c_dlpack.h   memory handed on by DLPack, for bindings
 *   tandem/c_collectives.h  collectives of any count in one call each
 *   tandem/c_plan.h     requests, plans and launches
 *   tandem/c_stream.h   streams and graphs of the host backend
 *   tandem/c_pending.h  joins and preparations in the background, descriptors for event loops
 *   tandem/c_log.h      the library's lines for a log
 *   tandem/c_cancel.h   cancellation of calls that wait for other ranks
 *   tandem/c_capture.h  holds for CUDA graphs
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
 * - UNAVAILABLE or UNAUTHENTICATED, reason EVICTED: an operator has ended this session. A call that reaches
 * the daemon before the library hears of the eviction gets UNAUTHENTICATED.
 * - UNAUTHENTICATED, reason SESSION_LOST: the daemon does not know this session. It is a new daemon.
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

#include "tandem/c_cancel.h"
#include "tandem/c_capture.h"
#include "tandem/c_collectives.h"
#include "tandem/c_dlpack.h"
#include "tandem/c_log.h"
#include "tandem/c_memory.h"
#include "tandem/c_pending.h"
#include "tandem/c_plan.h"
#include "tandem/c_session.h"
#include "tandem/c_status.h"
#include "tandem/c_stream.h"
#include "tandem/c_types.h"
#include "tandem/deadlines.h"
#include "tandem/version.h"

#endif /* TANDEM_TANDEM_H_ */

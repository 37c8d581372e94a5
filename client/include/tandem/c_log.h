/* File: c_log.h
 *
 * The library's lines for a log, in the C interface: what sessions, groups and plans do, and what gRPC and
 * libprotobuf have to say. Without a callback the library writes nothing; failures are in statuses all the
 * same.
 */
#ifndef TANDEM_C_LOG_H_
#define TANDEM_C_LOG_H_

#include "tandem/c_types.h"

#ifdef __cplusplus
extern "C" {
#endif

enum tandem_log_level {
  TANDEM_LOG_DEBUG = 0,   /* also gRPC's own steps, many lines a call */
  TANDEM_LOG_INFO = 1,    /* sessions, groups, plans and the reasons of their choice */
  TANDEM_LOG_WARNING = 2, /* events, a plan that does less than was asked, errors of gRPC and libprotobuf */
  TANDEM_LOG_ERROR = 3    /* a session that is over */
};

/* Called with each line, from any thread, several at a time. It must not block, nor call this library. `text`
 * has no newline at its end, and belongs to the library. `level` is an enum tandem_log_level. */
typedef void (*tandem_log_callback)(void* user, int level, const char* text);

/* Sets the process's callback for lines of `least_level` and above, in place of an earlier one; NULL: none.
 * Once this returns, the earlier callback is not called any more, and has returned. `user` is passed to the
 * callback and stays the caller's. Needs no session.
 *
 * Lines of gRPC and libprotobuf come here, or go nowhere. Two cases differ. With GRPC_VERBOSITY in the
 * environment and no callback gRPC writes to standard error. Where the program shares its own gRPC with this
 * library, that gRPC's lines are the program's.
 *
 * INVALID_ARGUMENT: no such level. FAILED_PRECONDITION: called by the callback. */
TANDEM_C_API tandem_status* tandem_set_log_callback(tandem_log_callback callback, void* user,
                                                    int least_level);

#ifdef __cplusplus
}
#endif

#endif /* TANDEM_C_LOG_H_ */

/* File: c_status.h
 *
 * The statuses of the C interface. NULL is a status, too: OK. One status is for one thread.
 */
#ifndef TANDEM_C_STATUS_H_
#define TANDEM_C_STATUS_H_

#include <stddef.h>
#include <stdint.h>

#include "tandem/c_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns an enum tandem_code; TANDEM_OK for NULL. */
TANDEM_C_API int tandem_status_code(const tandem_status* status);
/* Returns the text for people; "" for NULL. The text belongs to the status. */
TANDEM_C_API const char* tandem_status_message(const tandem_status* status);
/* Returns the cause for programs, in upper case: "ENGINE_RESTARTED", "RANK_LATE", … (docs/recovery.md lists
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

#ifdef __cplusplus
}
#endif

#endif /* TANDEM_C_STATUS_H_ */

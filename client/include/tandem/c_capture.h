/* File: c_capture.h
 *
 * Holds for CUDA graphs, whose replays then run ahead of the GPU.
 */
#ifndef TANDEM_C_CAPTURE_H_
#define TANDEM_C_CAPTURE_H_

#include "tandem/c_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Keeps what the client-placed launches need that are captured from here on, on any stream of the capture
 * that `cuda_stream` (a cudaStream_t) is in. Without a hold the graph keeps it by a user object, and CUDA
 * does not enqueue a replay of such a graph before the replay before it has ended. Launches in engines stay
 * with the graph.
 *
 * The caller owns *hold, and frees it once the graph's last replay has been enqueued and neither the graph
 * nor an executable graph of it is used again. Replays that still run then are waited for in the background.
 * FAILED_PRECONDITION: the stream does not capture, or its capture has a hold. UNIMPLEMENTED: the library was
 * built without CUDA. */
TANDEM_C_API tandem_status* tandem_capture_hold_begin(void* cuda_stream, tandem_capture_hold** hold);
/* Ends the hold. NULL is allowed. */
TANDEM_C_API void tandem_capture_hold_free(tandem_capture_hold* hold);

#ifdef __cplusplus
}
#endif

#endif /* TANDEM_C_CAPTURE_H_ */

/* File: c_stream.h
 *
 * Streams and graphs of the host backend: in-order queues of work for an emulated GPU.
 */
#ifndef TANDEM_C_STREAM_H_
#define TANDEM_C_STREAM_H_

#include <stdint.h>

#include "tandem/c_types.h"
#include "tandem/deadlines.h"

#ifdef __cplusplus
extern "C" {
#endif

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

#endif /* TANDEM_C_STREAM_H_ */

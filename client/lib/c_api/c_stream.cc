// The host backend's streams and graphs in the C interface.
#include "client/lib/c_api/c_handles.h"
#include "common/deadline.h"

using namespace tandem;     // NOLINT: this file is all glue
using namespace tandem::c;  // NOLINT

extern "C" {

tandem_status* tandem_stream_create(tandem_stream** stream) try {
  Clear(stream);
  TANDEM_C_RETURN_IF_NULL({"stream", stream});
  auto made = HostStream::Create();
  TANDEM_C_RETURN_IF_ERROR(made);
  *stream = new tandem_stream{*std::move(made)};
  return nullptr;
}
TANDEM_C_CATCH
void tandem_stream_free(tandem_stream* stream) { delete stream; }
tandem_status* tandem_stream_enqueue(tandem_stream* stream, void (*function)(void*), void* user) try {
  TANDEM_C_RETURN_IF_NULL({"stream", stream});
  if (function == nullptr) return ToC(BadField("function", "is NULL"));
  return ToC(stream->stream->Enqueue([function, user] { function(user); }));
}
TANDEM_C_CATCH
tandem_status* tandem_stream_synchronize(tandem_stream* stream, int64_t deadline_ms) try {
  TANDEM_C_RETURN_IF_NULL({"stream", stream});
  return ToC(stream->stream->Synchronize(Bounded(ToDeadline(deadline_ms, kDefaultWaitDeadline))));
}
TANDEM_C_CATCH
tandem_status* tandem_stream_begin_capture(tandem_stream* stream) try {
  TANDEM_C_RETURN_IF_NULL({"stream", stream});
  return ToC(stream->stream->BeginCapture());
}
TANDEM_C_CATCH
tandem_status* tandem_stream_end_capture(tandem_stream* stream, tandem_graph** graph) try {
  Clear(graph);
  TANDEM_C_RETURN_IF_NULL({"stream", stream}, {"graph", graph});
  auto captured = stream->stream->EndCapture();
  TANDEM_C_RETURN_IF_ERROR(captured);
  auto exec = captured->Instantiate();
  TANDEM_C_RETURN_IF_ERROR(exec);
  *graph = new tandem_graph{*std::move(exec)};
  return nullptr;
}
TANDEM_C_CATCH
tandem_status* tandem_graph_launch(tandem_graph* graph, tandem_stream* stream) try {
  TANDEM_C_RETURN_IF_NULL({"graph", graph}, {"stream", stream});
  return ToC(graph->exec.Launch(*stream->stream));
}
TANDEM_C_CATCH
void tandem_graph_free(tandem_graph* graph) { delete graph; }

}  // extern "C"

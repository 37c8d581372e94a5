#include "client/device/plan_timer.h"

#include <algorithm>
#include <memory>

namespace tandem {

Status PlanTimer::Launch(Plan& plan, std::span<const Binding> bindings, int launches) const {
  for (int i = 0; i < launches; ++i) TANDEM_RETURN_IF_ERROR(plan.Launch(stream.ref(), bindings));
  return Status::Ok();
}

Result<double> PlanTimer::Time(Plan& plan, std::span<const Binding> bindings, int launches) const {
  std::unique_ptr<RankGraph> graph;
  if (plan.info().placement.starts_with("client")) {
    launches = std::max(1, launches / 2);  // the first replay is not timed: it brings the graph to the GPU
    TANDEM_RETURN_IF_ERROR(stream.BeginCapture());
    const Status captured = Launch(plan, bindings, launches);
    // A capture that failed ends too, or the stream would take no other work.
    Result<std::unique_ptr<RankGraph>> ended = stream.EndCapture();
    TANDEM_RETURN_IF_ERROR(captured);
    TANDEM_ASSIGN_OR_RETURN(graph, std::move(ended));
  }
  const auto put = [&](int count) { return graph ? stream.Replay(*graph) : Launch(plan, bindings, count); };
  Status status = put(1);
  if (status.ok()) status = stream.Record(start);
  if (status.ok()) status = put(launches);
  if (status.ok()) status = stream.Record(end);
  if (status.ok()) status = stream.Synchronize(deadline);
  if (!status.ok()) {
    (void)graph.release();  // a replay may still run
    return status;
  }
  TANDEM_RETURN_IF_ERROR(plan.Wait(deadline));
  TANDEM_ASSIGN_OR_RETURN(const double us, end.MicrosecondsSince(start));
  return us / launches;
}

}  // namespace tandem

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
  TANDEM_RETURN_IF_ERROR(put(1));
  TANDEM_RETURN_IF_ERROR(stream.Record(start));
  TANDEM_RETURN_IF_ERROR(put(launches));
  TANDEM_RETURN_IF_ERROR(stream.Record(end));
  const Status reached = stream.Synchronize(deadline);
  if (!reached.ok()) {
    (void)graph.release();  // a replay may still run
    return reached;
  }
  TANDEM_RETURN_IF_ERROR(plan.Wait(deadline));
  TANDEM_ASSIGN_OR_RETURN(const double us, end.MicrosecondsSince(start));
  return us / launches;
}

}  // namespace tandem

// Calls in the background, in the C interface.
#include <optional>

#include "client/lib/c_api/c_handles.h"
#include "tandem/pending.h"

using namespace tandem;     // NOLINT: this file is all glue
using namespace tandem::c;  // NOLINT

// One of the two.
struct tandem_pending {
  std::optional<Pending<std::shared_ptr<Group>>> join;
  std::optional<Pending<std::shared_ptr<Plan>>> prepare;
  bool is_cuda = false;
};

extern "C" {

tandem_status* tandem_join_group_start(tandem_client* client, const tandem_join_options* options,
                                       tandem_pending** pending) try {
  Clear(pending);
  TANDEM_C_RETURN_IF_NULL({"client", client}, {"options", options}, {"pending", pending});
  auto join = ToJoinOptions(*options);
  TANDEM_C_RETURN_IF_ERROR(join);
  auto started = StartJoin(client->client, *std::move(join));
  TANDEM_C_RETURN_IF_ERROR(started);
  *pending = new tandem_pending{*std::move(started), std::nullopt, client->client->backend() == "cuda"};
  return nullptr;
}
TANDEM_C_CATCH
tandem_status* tandem_prepare_start(tandem_group* group, const char* key, const tandem_request* request,
                                    int64_t deadline_ms, tandem_pending** pending) try {
  Clear(pending);
  TANDEM_C_RETURN_IF_NULL({"group", group}, {"key", key}, {"request", request}, {"pending", pending});
  auto op = ToRequest(*request);
  TANDEM_C_RETURN_IF_ERROR(op);
  auto started =
      StartPrepare(group->group, Text(key), *std::move(op), ToDeadline(deadline_ms, kDefaultDeadline));
  TANDEM_C_RETURN_IF_ERROR(started);
  *pending = new tandem_pending{std::nullopt, *std::move(started), false};
  return nullptr;
}
TANDEM_C_CATCH
int tandem_pending_fd(const tandem_pending* pending) {
  if (pending == nullptr) return -1;
  return pending->join.has_value() ? pending->join->fd() : pending->prepare->fd();
}
int tandem_pending_ended(const tandem_pending* pending) {
  if (pending == nullptr) return 1;
  return pending->join.has_value() ? pending->join->HasEnded() : pending->prepare->HasEnded();
}
void tandem_pending_cancel(tandem_pending* pending) {
  if (pending == nullptr) return;
  if (pending->join.has_value()) {
    pending->join->Cancel();
  } else {
    pending->prepare->Cancel();
  }
}
tandem_status* tandem_pending_take_group(tandem_pending* pending, tandem_group** group) try {
  Clear(group);
  TANDEM_C_RETURN_IF_NULL({"pending", pending}, {"group", group});
  if (!pending->join.has_value()) return ToC(BadField("pending", "is a preparation"));
  return Give(pending->join->Take(), pending->is_cuda, group);
}
TANDEM_C_CATCH
tandem_status* tandem_pending_take_plan(tandem_pending* pending, tandem_plan** plan) try {
  Clear(plan);
  TANDEM_C_RETURN_IF_NULL({"pending", pending}, {"plan", plan});
  if (!pending->prepare.has_value()) return ToC(BadField("pending", "is a join"));
  auto prepared = pending->prepare->Take();
  TANDEM_C_RETURN_IF_ERROR(prepared);
  *plan = new tandem_plan{*std::move(prepared)};
  return nullptr;
}
TANDEM_C_CATCH
void tandem_pending_free(tandem_pending* pending) { delete pending; }

tandem_status* tandem_group_notify(tandem_group* group, void* stream, int event_fd) try {
  TANDEM_C_RETURN_IF_NULL({"group", group});
  if (group->is_cuda) return ToC(NotifyAfter(*group->group, StreamRef::Cuda(stream), event_fd));
  TANDEM_C_RETURN_IF_NULL({"stream", stream});
  return ToC(NotifyAfter(*group->group, static_cast<tandem_stream*>(stream)->stream.get(), event_fd));
}
TANDEM_C_CATCH

}  // extern "C"

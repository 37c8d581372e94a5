// Sessions and groups of the C interface.
#include <cstring>

#include "client/lib/c_api/c_handles.h"

using namespace tandem;     // NOLINT: this file is all glue
using namespace tandem::c;  // NOLINT

extern "C" {

tandem_status* tandem_connect(const char* runtime_dir, const char* name, int64_t deadline_ms,
                              tandem_client** client) try {
  Clear(client);
  TANDEM_C_RETURN_IF_NULL({"client", client});
  ConnectOptions options;
  options.runtime_dir = Text(runtime_dir);
  options.deadline = ToDeadline(deadline_ms, kDefaultConnectDeadline);
  options.name = Text(name);
  auto connected = Client::Connect(options);
  TANDEM_C_RETURN_IF_ERROR(connected);
  *client = new tandem_client{.client = *std::move(connected)};
  return nullptr;
}
TANDEM_C_CATCH
void tandem_client_free(tandem_client* client) {
  // Other handles may keep the session alive, longer than the callback's `user`.
  if (client != nullptr && client->has_callback) client->client->OnEvent(nullptr);
  delete client;
}
uint64_t tandem_client_session_id(const tandem_client* client) {
  return client == nullptr ? 0 : client->client->session_id();
}
const char* tandem_client_backend(const tandem_client* client) {
  return client == nullptr ? "" : client->client->backend().c_str();
}
const char* tandem_client_daemon_version(const tandem_client* client) {
  return client == nullptr ? "" : client->client->daemon_version().c_str();
}
int tandem_client_gpu_count(const tandem_client* client) {
  return client == nullptr ? 0 : static_cast<int>(client->client->gpus().size());
}
const char* tandem_client_gpu_uuid(const tandem_client* client, int position) {
  if (position < 0 || position >= tandem_client_gpu_count(client)) return nullptr;
  return client->client->gpus()[static_cast<size_t>(position)].uuid.c_str();
}
tandem_status* tandem_cuda_device_uuid(int ordinal, char* uuid, size_t uuid_bytes) try {
  TANDEM_C_RETURN_IF_NULL({"uuid", uuid});
  auto found = Client::CudaDeviceUuid(ordinal);
  TANDEM_C_RETURN_IF_ERROR(found);
  if (found->size() >= uuid_bytes) {
    return ToC(OutOfRange("a UUID needs " + std::to_string(found->size() + 1) + " bytes, uuid has " +
                          std::to_string(uuid_bytes)));
  }
  std::memcpy(uuid, found->c_str(), found->size() + 1);
  return nullptr;
}
TANDEM_C_CATCH
tandem_status* tandem_client_check(tandem_client* client) try {
  TANDEM_C_RETURN_IF_NULL({"client", client});
  return ToC(client->client->Check());
}
TANDEM_C_CATCH
tandem_status* tandem_client_detach(tandem_client* client) try {
  TANDEM_C_RETURN_IF_NULL({"client", client});
  return ToC(client->client->Detach());
}
TANDEM_C_CATCH
void tandem_client_on_event(tandem_client* client, tandem_event_callback callback, void* user) {
  if (client == nullptr) return;
  client->has_callback = callback != nullptr;
  if (callback == nullptr) return client->client->OnEvent(nullptr);
  client->client->OnEvent([callback, user](const ClientEvent& event) {
    tandem_status status{event.status};
    callback(user, static_cast<int>(event.kind), event.group_id, event.rank,
             event.status.ok() ? nullptr : &status);
  });
}

tandem_status* tandem_join_group(tandem_client* client, const tandem_join_options* options,
                                 tandem_group** group) try {
  Clear(group);
  TANDEM_C_RETURN_IF_NULL({"client", client}, {"options", options}, {"group", group});
  auto join = ToJoinOptions(*options);
  TANDEM_C_RETURN_IF_ERROR(join);
  return Give(client->client->JoinGroup(*join), client->client->backend() == "cuda", group);
}
TANDEM_C_CATCH
void tandem_group_free(tandem_group* group) { delete group; }
uint64_t tandem_group_id(const tandem_group* group) { return group == nullptr ? 0 : group->group->id(); }
int tandem_group_rank(const tandem_group* group) { return group == nullptr ? -1 : group->group->rank(); }
int tandem_group_world_size(const tandem_group* group) {
  return group == nullptr ? 0 : group->group->world_size();
}
uint64_t tandem_group_incarnation(const tandem_group* group) {
  return group == nullptr ? 0 : group->group->incarnation();
}
const char* tandem_group_gpu_uuid(const tandem_group* group) {
  return group == nullptr ? "" : group->group->gpu_uuid().c_str();
}
const char* tandem_group_topology_class(const tandem_group* group) {
  return group == nullptr ? "" : group->group->topology_class().c_str();
}
int tandem_group_links(const tandem_group* group, int from, int to) {
  const int world = tandem_group_world_size(group);
  if (from < 0 || to < 0 || from >= world || to >= world) return 0;
  return group->group->link_counts()[static_cast<size_t>(from)][static_cast<size_t>(to)];
}
tandem_status* tandem_group_leave(tandem_group* group, int64_t deadline_ms) try {
  TANDEM_C_RETURN_IF_NULL({"group", group});
  return ToC(group->group->Leave(ToDeadline(deadline_ms, kDefaultDeadline)));
}
TANDEM_C_CATCH
tandem_status* tandem_group_renew(tandem_group* group, int64_t deadline_ms) try {
  TANDEM_C_RETURN_IF_NULL({"group", group});
  return ToC(group->group->Renew(ToDeadline(deadline_ms, kDefaultDeadline)));
}
TANDEM_C_CATCH
tandem_status* tandem_group_suspend(tandem_group* group, int keep, int64_t deadline_ms) try {
  TANDEM_C_RETURN_IF_NULL({"group", group});
  return ToC(group->group->Suspend(keep != 0, ToDeadline(deadline_ms, kDefaultDeadline)));
}
TANDEM_C_CATCH
tandem_status* tandem_group_resume(tandem_group* group, int64_t deadline_ms) try {
  TANDEM_C_RETURN_IF_NULL({"group", group});
  return ToC(group->group->Resume(ToDeadline(deadline_ms, kDefaultDeadline)));
}
TANDEM_C_CATCH
tandem_status* tandem_client_suspend(tandem_client* client, int keep, int64_t deadline_ms) try {
  TANDEM_C_RETURN_IF_NULL({"client", client});
  return ToC(client->client->Suspend(keep != 0, ToDeadline(deadline_ms, kDefaultDeadline)));
}
TANDEM_C_CATCH
tandem_status* tandem_client_resume(tandem_client* client, int64_t deadline_ms) try {
  TANDEM_C_RETURN_IF_NULL({"client", client});
  return ToC(client->client->Resume(ToDeadline(deadline_ms, kDefaultDeadline)));
}
TANDEM_C_CATCH
tandem_status* tandem_client_suspend_asked(tandem_client* client, int64_t step, int* asked) try {
  TANDEM_C_RETURN_IF_NULL({"client", client}, {"asked", asked});
  *asked = client->client->IsAskedToSuspend(step) ? 1 : 0;
  return nullptr;
}
TANDEM_C_CATCH
tandem_status* tandem_client_suspend_as_asked(tandem_client* client, int keep, int* slept) try {
  TANDEM_C_RETURN_IF_NULL({"client", client}, {"slept", slept});
  const Result<bool> has_slept = client->client->SuspendAsAsked(keep != 0);
  *slept = has_slept.ok() && *has_slept ? 1 : 0;
  return ToC(has_slept.status());
}
TANDEM_C_CATCH
tandem_status* tandem_client_begin_checkpoint(tandem_client* client, int64_t deadline_ms) try {
  TANDEM_C_RETURN_IF_NULL({"client", client});
  return ToC(client->client->BeginCheckpoint(ToDeadline(deadline_ms, kDefaultDeadline)));
}
TANDEM_C_CATCH
tandem_status* tandem_client_end_checkpoint(tandem_client* client, int64_t deadline_ms) try {
  TANDEM_C_RETURN_IF_NULL({"client", client});
  return ToC(client->client->EndCheckpoint(ToDeadline(deadline_ms, kDefaultDeadline)));
}
TANDEM_C_CATCH

}  // extern "C"

#include "client/nccl/family_group.h"

#include <cstdlib>
#include <string_view>
#include <utility>

namespace tandem::nccl {
namespace {

// For late ranks. NCCL has none, and its programs watch their calls themselves.
int64_t DeadlineMs() {
  static const int64_t deadline = [] {
    const char* given = std::getenv("TANDEM_NCCL_DEADLINE_S");
    const int64_t seconds = given == nullptr ? 0 : std::strtoll(given, nullptr, 10);
    return seconds > 0 ? seconds * 1000 : int64_t{24} * 3600 * 1000;
  }();
  return deadline;
}

constexpr char kCaptured[] = "no call before the capture has prepared its family";

// Errors of a preparation that every rank gets.
bool IsRefusal(const Status& status) {
  return status.code() == Code::kInvalidArgument || status.code() == Code::kFailedPrecondition ||
         status.code() == Code::kResourceExhausted || status.code() == Code::kUnimplemented ||
         status.code() == Code::kOutOfRange;
}

}  // namespace

Result<std::unique_ptr<FamilyGroup>> FamilyGroup::Join(Session session, const Place& place) {
  const TandemLibrary& library = *session.library;
  tandem_join_options options;
  library.tandem_join_options_init(&options, sizeof(options));
  options.job_key = place.key.data();
  options.job_key_bytes = place.key.size();
  options.name = "nccl";
  options.world_size = place.ranks;
  options.rank = place.rank;
  options.gpu_uuid = place.gpu.c_str();
  options.launch_deadline_ms = DeadlineMs();
  tandem_group* group = nullptr;
  TANDEM_RETURN_IF_ERROR(library.Take(library.tandem_join_group(session.client.get(), &options, &group)));
  return std::unique_ptr<FamilyGroup>(new FamilyGroup(std::move(session), OwnedGroup(group)));
}

Result<std::string> FamilyGroup::Run(const NcclCall& call, NcclDevice& device) {
  tandem_collective collective;
  library_.tandem_collective_init(&collective, sizeof(collective));
  Describe(call, &collective);
  // The default stream has no answer while another stream captures.
  const Result<bool> looked = device.IsCapturing(call.stream);
  const bool capturing = !looked.ok() || *looked;
  const Status prepared = library_.Take(library_.tandem_collective_prepare(
      group_.get(), &collective, capturing ? TANDEM_DO_NOT_WAIT : DeadlineMs()));
  if (!prepared.ok()) {
    if (prepared.detail().reason == "NOT_PREPARED") return std::string(kCaptured);
    if (!IsRefusal(prepared)) return prepared;
    return "Tandem has no plan for it: " + prepared.message();
  }
  if (capturing) {
    if (OwnedHold hold = device.Hold(library_, call.stream)) holds_.push_back(std::move(hold));
  }
  TANDEM_RETURN_IF_ERROR(device.Launch(library_, group_.get(), call.stream, collective));
  return std::string();
}

Status FamilyGroup::TakeFailure() {
  int ended = 0;
  return library_.Take(library_.tandem_collectives_query(group_.get(), &ended));
}

Status FamilyGroup::Suspend() {
  return library_.Take(library_.tandem_group_suspend(group_.get(), 0, DeadlineMs()));
}

Status FamilyGroup::Resume() {
  return library_.Take(library_.tandem_group_resume(group_.get(), DeadlineMs()));
}

void FamilyGroup::Leave(int64_t deadline_ms) {
  (void)library_.Take(library_.tandem_group_leave(group_.get(), deadline_ms));
  Detach();
}

void FamilyGroup::Detach() { (void)library_.Take(library_.tandem_client_detach(session_.client.get())); }

}  // namespace tandem::nccl

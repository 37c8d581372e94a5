// ClientPlan: launching on the caller's stream.
#include "client/lib/client_plan.h"

#include <optional>
#include <string>

#include "client/lib/handles.h"
#include "common/digest.h"
#include "common/exceptions.h"

namespace tandem::client {

Status ClientPlan::Launch(StreamRef ref, std::span<const Binding> bindings,
                          const LaunchOptions& options) try {
  TANDEM_RETURN_IF_ERROR(session().CheckLaunchable());
  TANDEM_RETURN_IF_ERROR(CheckNotReleased());
  TANDEM_RETURN_IF_ERROR(mapped_->group().queue().Failed());
  TANDEM_RETURN_IF_ERROR(group().state()->Broken());
  TANDEM_ASSIGN_OR_RETURN(ClientDevice * device, session().device());
  LaunchStreamStorage storage;
  TANDEM_ASSIGN_OR_RETURN(LaunchStream * stream, device->Open(ref, group().gpu_uuid(), &storage));
  TANDEM_ASSIGN_OR_RETURN(const bool capturing, stream->IsCapturing());
  uint64_t stream_id = kReplays;
  if (capturing) {
    mapped_->group().NoteCaptured();
  } else {
    TANDEM_ASSIGN_OR_RETURN(stream_id, stream->Id());
  }
  const Result<std::shared_ptr<const PlanMember>> member = mapped_->Member(options.rows);
  Result<ClientBindings> bound = member.ok() ? BindAddresses(bindings, options, **member) : member.status();
  if (!bound.ok()) {
    // Nothing was captured: no replay will be missing. A launch is missing from now on.
    if (!capturing) mapped_->group().Refuse(info().plan_id, bound.status());
    return bound.status();
  }
  return mapped_->Launch(*stream, capturing, stream_id, *std::move(bound), *member, options.deadline, state(),
                         capturing ? shared_from_this() : nullptr);
}
TANDEM_CATCH_TO_STATUS

Result<uint64_t> ClientPlan::LaunchWithoutStream(std::span<const Binding>, const LaunchOptions&) try {
  return FailedPrecondition("plan '" + info().key + "' is placed in the client: launch it on a stream")
      .WithDetail({.reason = "CLIENT_PLACED"});
}
TANDEM_CATCH_TO_STATUS

Status ClientPlan::WaitLaunch(uint64_t launch, Milliseconds) try {
  TANDEM_RETURN_IF_ERROR(session().CheckUsable());
  return NoSuchLaunch(launch);
}
TANDEM_CATCH_TO_STATUS

void ClientPlan::DropFailures() {
  while (state()->TakeFailure(kAnyStream)) continue;
}

Result<runtime::SlotAddress> ClientPlan::ResolveAddress(size_t i, const Binding& binding, uint64_t needed,
                                                        ClientTag* tag) const {
  std::byte* start = nullptr;
  if (binding.memory == nullptr) {
    if (binding.pointer == nullptr) return NotBound();
    start = const_cast<std::byte*>(static_cast<const std::byte*>(binding.pointer)) + binding.offset;
  } else {
    TANDEM_RETURN_IF_ERROR(CheckRoom(*binding.memory, binding.offset, needed));
    TANDEM_RETURN_IF_ERROR(CheckDevice(*binding.memory));
    start = binding.memory->data() + binding.offset;
  }
  TANDEM_RETURN_IF_ERROR(CheckAlignment(i, start));
  runtime::SlotAddress address;
  address.own = start;
  if (!IsSymmetric(i)) return address;
  const std::shared_ptr<TensorHandle> tensor = group().FindTensor(start, needed);
  if (tensor == nullptr) return NotSymmetric();
  for (int peer = 0; peer < group().world_size(); ++peer) {
    address.peer[static_cast<size_t>(peer)] = tensor->PeerOf(start, peer);
  }
  tag->Add(tensor->registration_id());
  tag->Add(static_cast<uint64_t>(start - tensor->data()));
  return address;
}

Result<ClientBindings> ClientPlan::BindAddresses(std::span<const Binding> bindings,
                                                 const LaunchOptions& options,
                                                 const PlanMember& member) const {
  TANDEM_RETURN_IF_ERROR(CheckCount(bindings.size()));
  ClientBindings bound;
  ClientTag tag;
  tag.Add(info().plan_id);
  tag.Add(TagDigest(options.tag));
  tag.Add(static_cast<uint64_t>(member.rows));
  SlotAddresses addresses{};
  for (size_t i = 0; i < bindings.size(); ++i) {
    bound.slots.emplace_back();
    if (member.slot_bytes[i] == 0) continue;
    Result<runtime::SlotAddress> address = ResolveAddress(i, bindings[i], member.slot_bytes[i], &tag);
    if (!address.ok()) return OfSlot(i, address.status());
    bound.slots.back() = *address;
    addresses[i] = reinterpret_cast<uintptr_t>(address->own);
  }
  if (const auto shared = member.overlap.Find(addresses); shared.has_value()) {
    return OfSlot(static_cast<size_t>(shared->second), Overlaps(*shared));
  }
  bound.tag = tag.Fold();
  return bound;
}

}  // namespace tandem::client

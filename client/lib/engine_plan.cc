// EnginePlan: launching by channels and by gRPC.
#include "client/lib/engine_plan.h"

#include <algorithm>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>

#include "client/lib/base/backoff.h"
#include "client/lib/client_launch/plan_members.h"
#include "client/lib/handles.h"
#include "common/deadline.h"
#include "common/digest.h"
#include "common/exceptions.h"

namespace tandem::client {
namespace {

// How long a launch waits for engines that are being restarted.
constexpr Milliseconds kRestartDeadline(30000);

Milliseconds Until(std::chrono::steady_clock::time_point deadline) {
  return std::max(std::chrono::duration_cast<Milliseconds>(deadline - std::chrono::steady_clock::now()),
                  Milliseconds(1));
}

}  // namespace

Status EnginePlan::BeforeLaunch() {
  TANDEM_RETURN_IF_ERROR(session().CheckLaunchable());
  TANDEM_RETURN_IF_ERROR(CheckNotReleased());
  ClientGroupState& generations = *group().state();
  TANDEM_RETURN_IF_ERROR(generations.Broken());
  const uint64_t reported = generations.generation();
  if (!generations.Outdated()) return Status::Ok();
  // Every launch up to here belongs to engines that are gone. Reported once; launches in flight say the same.
  // Other failures are no reason not to make a launch: a later call returns them.
  session().ReapAll();
  if (std::optional<Status> failure = state()->TakeAborted(kAnyStream)) return *failure;
  if (!generations.MoveOn(reported)) return Status::Ok();
  return Aborted(
             "an engine of the group was restarted: launches made before it have ended, this one was not "
             "made")
      .WithDetail({.reason = "ENGINE_RESTARTED", .started = false});
}

Status EnginePlan::Launch(StreamRef ref, std::span<const Binding> bindings,
                          const LaunchOptions& options) try {
  if (options.rows != LaunchOptions::kBoundRows) return NotAFamily();
  TANDEM_RETURN_IF_ERROR(BeforeLaunch());
  TANDEM_ASSIGN_OR_RETURN(ClientDevice * device, session().device());
  LaunchStreamStorage storage;
  TANDEM_ASSIGN_OR_RETURN(LaunchStream * stream, device->Open(ref, group().gpu_uuid(), &storage));
  TANDEM_ASSIGN_OR_RETURN(bool capturing, stream->IsCapturing());
  LaunchEntry entry;
  BoundRegistrations bound;
  Status wrong = FillEntry(*device, bindings, options, &entry, &bound);
  if (capturing && !wrong.ok()) return wrong;
  uint64_t stream_id = kReplays, captures = 0;
  if (!capturing) {
    TANDEM_ASSIGN_OR_RETURN(stream_id, stream->Id());
  }
  Clock::time_point deadline{};
  PollBackoff backoff;
  while (true) {
    TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<StreamChannel> channel,
                            capturing ? session().ChannelForCaptures(captures, group().gpu_uuid())
                                      : session().ChannelFor(stream_id, group().gpu_uuid()));
    channel->Reap();
    if (!capturing) session().ReapReplays();
    // Launches that a restart cut off: this one is not made, so that all ranks go on from the same count.
    if (state()->HasFailed()) session().ReapAll();  // `started` is about the plan's launches on all streams
    if (std::optional<Status> aborted = state()->TakeAborted(stream_id)) return *aborted;
    TANDEM_ASSIGN_OR_RETURN(entry.group_generation, group().state()->ForLaunch(kRestartDeadline));
    Status pushed = capturing ? channel->Capture(&entry, state(), stream, shared_from_this(), &bound)
                              : channel->Launch(&entry, state(), stream, !wrong.ok(), &bound);
    if (pushed.ok()) {
      // Only now: a failure that is taken has to be returned, and until here this launch may have to wait, or
      // end without being made.
      std::optional<Status> earlier = state()->TakeOther(stream_id);
      return earlier.has_value() ? *earlier : wrong;
    }
    if (pushed.detail().reason == "SLOTS_FULL") {
      ++captures;
      continue;
    }
    bool full = pushed.detail().reason == "RING_FULL";
    if (!full && !channel->Released()) return pushed;
    TANDEM_RETURN_IF_ERROR(session().CheckLaunchable());
    TANDEM_RETURN_IF_ERROR(group().state()->Broken());
    if (deadline == Clock::time_point{}) {
      const Milliseconds groups =
          group().launch_deadline().count() > 0 ? group().launch_deadline() : kDefaultLaunchDeadline;
      deadline = Clock::now() + (options.deadline.count() > 0 ? Bounded(options.deadline) : groups);
    }
    if (Clock::now() >= deadline) return pushed;
    backoff.Pause();
  }
}
TANDEM_CATCH_TO_STATUS

Result<uint64_t> EnginePlan::LaunchWithoutStream(std::span<const Binding> bindings,
                                                 const LaunchOptions& options) try {
  if (options.rows != LaunchOptions::kBoundRows) return NotAFamily();
  TANDEM_RETURN_IF_ERROR(BeforeLaunch());
  DirectLaunch launch;
  launch.plan_id = info().plan_id;
  launch.deadline_ms = static_cast<uint64_t>(Bounded(options.deadline).count());
  launch.tag = options.tag;
  TANDEM_ASSIGN_OR_RETURN(launch.generation, group().state()->ForLaunch(kRestartDeadline));
  TANDEM_ASSIGN_OR_RETURN(ClientDevice * device, session().device());
  LaunchEntry entry;
  Direct direct{launch.generation, {}, {}};
  // A launch with wrong bindings arrives all the same, and is refused for all ranks. Bindings beyond an
  // entry's length are not bound at all.
  direct.wrong = FillEntry(*device, bindings, options, &entry, &direct.bound);
  for (size_t i = 0; i < bindings.size(); ++i) {
    LaunchBinding binding = i < entry.binding_count ? entry.bindings[i] : LaunchBinding{};
    launch.bindings.emplace_back(binding.registration_id, binding.offset);
  }
  TANDEM_ASSIGN_OR_RETURN(uint64_t id, session().control().Launch(launch));
  std::lock_guard lock(direct_mutex_);
  direct_.emplace(id, std::move(direct));
  return id;
}
TANDEM_CATCH_TO_STATUS

Status EnginePlan::WaitLaunch(uint64_t launch, Milliseconds deadline) try {
  TANDEM_RETURN_IF_ERROR(session().CheckUsable());
  // Launches of other plans are reported by those plans.
  if (!IsUnderWay(launch)) return NoSuchLaunch(launch);
  Status status = session().control().WaitLaunch(launch, Bounded(deadline));
  if (status.code() == Code::kDeadlineExceeded && status.detail().reason.empty()) {
    // This call's deadline, or the launch's own? The daemon forgets a launch once it has returned the
    // outcome.
    Status again = session().control().WaitLaunch(launch, Milliseconds(0));
    if (again.code() != Code::kNotFound) status = again;
    if (again.code() == Code::kDeadlineExceeded) return status;
  }
  if (status.detail().reason == kNotEnded) return status;
  // The outcome of a launch that has ended is returned here, and once.
  uint64_t generation = 0;
  {
    std::lock_guard lock(direct_mutex_);
    auto it = direct_.find(launch);
    if (it == direct_.end()) return status;
    generation = it->second.generation;
    // The daemon knows the slots' registrations only; this side knows what was wrong with the bindings.
    if (!status.ok() && status.code() != Code::kAborted && !it->second.wrong.ok()) status = it->second.wrong;
    direct_.erase(it);
  }
  state()->Told(generation, status);
  return status;
}
TANDEM_CATCH_TO_STATUS

bool EnginePlan::IsUnderWay(uint64_t launch) {
  std::lock_guard lock(direct_mutex_);
  return direct_.contains(launch);
}

std::vector<uint64_t> EnginePlan::DirectLaunches() {
  std::vector<uint64_t> launches;
  std::lock_guard lock(direct_mutex_);
  for (const auto& [launch, direct] : direct_) launches.push_back(launch);
  return launches;
}

Status EnginePlan::WaitDirect(Clock::time_point deadline) {
  Status reported;
  for (uint64_t launch : DirectLaunches()) {
    Status status = WaitLaunch(launch, Until(deadline));
    const bool late = status.detail().reason == kNotEnded;
    // NOT_FOUND: another call has returned the outcome.
    if (status.code() != Code::kNotFound) reported = MoreSevere(std::move(reported), std::move(status));
    if (late) break;  // the deadline has passed
  }
  return reported;
}

Result<bool> EnginePlan::QueryDirect() {
  for (uint64_t launch : DirectLaunches()) {
    Status status = WaitLaunch(launch, Milliseconds(0));
    if (status.code() == Code::kDeadlineExceeded && IsUnderWay(launch)) return false;
    if (!status.ok() && status.code() != Code::kNotFound) return status;
  }
  return true;
}

void EnginePlan::DropFailures() {
  while (state()->TakeOther(kAnyStream)) continue;
}

Status EnginePlan::OfOtherGroup(const std::string& other) const {
  return BindingError(
      FailedPrecondition("the memory is a symmetric tensor of group '" + other + "', the plan is of group '" +
                         group().name() +
                         "': make it by Empty and Rendezvous it with both groups, or use registered memory"),
      "OTHER_GROUP");
}

Status EnginePlan::CheckOwner(size_t i, const Memory& memory) const {
  const ClientSession* owner = nullptr;
  const bool tensor = typeid(memory) == typeid(TensorHandle);
  const bool registered = typeid(memory) == typeid(RegisteredMemory);
  const bool foreign = typeid(memory) == typeid(ForeignClientMemory);
  if (tensor) owner = static_cast<const TensorHandle&>(memory).group().session().get();
  if (registered) owner = static_cast<const RegisteredMemory&>(memory).session().get();
  if (foreign) owner = static_cast<const ForeignClientMemory&>(memory).session().get();
  if (owner != nullptr && owner != &session()) {
    return BindingError(
        FailedPrecondition(
            "the memory is of another client of this process, which the engine does not open to "
            "this one: allocate or register it by the client that launches"),
        "OTHER_CLIENT");
  }
  if (tensor && static_cast<const TensorHandle&>(memory).group().id() != group().id())
    return OfOtherGroup(static_cast<const TensorHandle&>(memory).group().name());
  return (registered || foreign) && IsSymmetric(i) ? NotSymmetric() : Status::Ok();
}

Result<LaunchBinding> EnginePlan::Resolve(ClientDevice& device, size_t i, const Binding& binding,
                                          BoundRegistrations* bound) const {
  uint64_t needed = info().slot_bytes[i];
  if (binding.memory == nullptr) {
    if (binding.pointer == nullptr) return NotBound();
    const auto* start = static_cast<const std::byte*>(binding.pointer) + binding.offset;
    Result<LaunchBinding> found = session().registrations().Resolve(session().control(), device, group().id(),
                                                                    group().gpu_uuid(), start, needed, bound);
    if (found.ok()) {
      TANDEM_RETURN_IF_ERROR(CheckAlignment(i, start));
      return found;
    }
    const std::optional<std::string> other = session().registrations().OtherGroup(start, group().id());
    return other.has_value() ? OfOtherGroup(*other) : found.status();
  }
  const Memory& memory = *binding.memory;
  TANDEM_RETURN_IF_ERROR(CheckRoom(memory, binding.offset, needed));
  TANDEM_RETURN_IF_ERROR(CheckDevice(memory));
  TANDEM_RETURN_IF_ERROR(CheckOwner(i, memory));
  TANDEM_RETURN_IF_ERROR(CheckAlignment(i, memory.data() + binding.offset));
  // Such a handle only names the memory: the user may drop it at once.
  if (auto* foreign = dynamic_cast<const ForeignClientMemory*>(&memory)) bound->Add(foreign->registration());
  return LaunchBinding{memory.registration_id(), memory.registration_offset() + binding.offset};
}

Status EnginePlan::FillEntry(ClientDevice& device, std::span<const Binding> bindings,
                             const LaunchOptions& options, LaunchEntry* entry,
                             BoundRegistrations* bound) const {
  entry->plan_id = info().plan_id;
  entry->deadline_ns = static_cast<uint64_t>(Bounded(options.deadline).count()) * 1'000'000;
  entry->tag_digest = TagDigest(options.tag);
  entry->binding_count = static_cast<uint32_t>(std::min(bindings.size(), static_cast<size_t>(kMaxBindings)));
  Status status = CheckCount(bindings.size());
  SlotAddresses addresses{};
  for (size_t i = 0; i < entry->binding_count; ++i) {
    entry->bindings[i] = {};
    if (i >= info().slot_bytes.size() || info().slot_bytes[i] == 0) continue;
    const Memory* memory = bindings[i].memory;
    Result<LaunchBinding> binding = Resolve(device, i, bindings[i], bound);
    if (binding.ok()) {
      entry->bindings[i] = *binding;
      const auto* start =
          memory != nullptr ? memory->data() : static_cast<const std::byte*>(bindings[i].pointer);
      addresses[i] = reinterpret_cast<uintptr_t>(start) + bindings[i].offset;
    } else if (binding.status().code() == Code::kOutOfRange && memory != nullptr) {
      // The engine finds the same. Any other slot stays unbound, which it refuses too: the launch fails on
      // all ranks.
      entry->bindings[i] = {memory->registration_id(), memory->registration_offset() + bindings[i].offset};
    }
    if (!binding.ok() && status.ok()) status = OfSlot(i, binding.status());
  }
  const std::optional<SlotOverlap::Pair> shared = overlap_.Find(addresses);
  if (!shared.has_value()) return status;
  const auto second = static_cast<size_t>(shared->second);
  entry->bindings[second] = {};
  return status.ok() ? OfSlot(second, Overlaps(*shared)) : status;
}

}  // namespace tandem::client

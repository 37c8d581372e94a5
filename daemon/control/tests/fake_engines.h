// File: fake_engines.h
//
// `FakeEngines`: engines that remember their commands, for tests of the control plane. Segments are memfds.
// An engine can be killed and brought back, and a kind of command can be made to fail.
#pragma once

#include <fcntl.h>

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/shared_memory.h"
#include "daemon/supervisor/engine_holdings.h"
#include "daemon/supervisor/engines.h"
#include "tandem/engine/v1/engine.pb.h"

namespace tandem::daemon {

class FakeEngines final : public Engines {
 public:
  explicit FakeEngines(int count) : state_(static_cast<size_t>(count)) {}

  int count() const override { return static_cast<int>(state_.size()); }
  EngineStatus StatusOf(int gpu) const override {
    std::lock_guard lock(mutex_);
    const State& state = state_[static_cast<size_t>(gpu)];
    EngineStatus status{state.up ? EngineState::kReady : EngineState::kDown, 1, state.generation, 0, ""};
    status.context_lost = state.context_lost;
    if (held_down.contains(gpu)) {
      status.state = EngineState::kCrashLooped;
      status.last_exit = "signal 11";
    }
    status.mps = mps;
    const auto own = capabilities_of.find(gpu);
    status.capabilities = own == capabilities_of.end() ? capabilities : own->second;
    if (auto sms = kernel_sms.find(gpu); sms != kernel_sms.end()) status.kernel_sms = sms->second;
    auto none = no_fused_kernels.find(gpu);
    status.no_fused_kernels = none == no_fused_kernels.end() ? "" : none->second;
    return status;
  }
  void DemandAnswer(int gpu, std::chrono::milliseconds limit) override {
    std::lock_guard lock(mutex_);
    demanded[gpu] = limit;
  }
  void Wake(int gpu) override {
    std::lock_guard lock(mutex_);
    ++woken_[gpu];
  }
  // How often somebody has asked for the engine of `gpu`.
  int Woken(int gpu) const {
    std::lock_guard lock(mutex_);
    const auto found = woken_.find(gpu);
    return found == woken_.end() ? 0 : found->second;
  }
  // Asks the listener, as the supervisor does; the engine goes if it may.
  bool Rest(int gpu) {
    if (!listener->MayRest(gpu, Look(gpu).generation)) return false;
    Lose(gpu);
    return true;
  }
  std::map<int, std::chrono::milliseconds> demanded;  // of whom DemandAnswer asked, and the limit
  Status Call(int gpu, engine::v1::Command command, const std::vector<int>& fds,
              std::chrono::milliseconds) override {
    if (before) before(gpu, command);
    std::lock_guard lock(mutex_);
    State& state = state_[static_cast<size_t>(gpu)];
    if (!state.up) return Unavailable("engine down");
    if (fail && !fail(gpu, command).ok()) return fail(gpu, command);
    using C = engine::v1::Command;
    using Held = engine::v1::Held;
    switch (command.command_case()) {
      case C::kAddSegment:
        if (fds.size() != 1) return InvalidArgument("a segment has one descriptor");
        state.segments.insert(command.add_segment().segment_id());
        Keep(state, Held::SEGMENT, command.add_segment().segment_id(), fds);
        break;
      case C::kRemoveSegment:
        state.segments.erase(command.remove_segment().segment_id());
        state.fds.erase({Held::SEGMENT, command.remove_segment().segment_id()});
        break;
      case C::kAddGroup:
        for (uint64_t id : command.add_group().signal_segments()) {
          if (!state.segments.contains(id)) return NotFound("signal segment is not mapped");
        }
        state.groups[command.add_group().group_id()] = command.add_group();
        state.fds.erase({Held::ARRIVALS, command.add_group().group_id()});
        Keep(state, Held::ARRIVALS, command.add_group().group_id(), fds);
        break;
      case C::kRemoveGroup:
        state.groups.erase(command.remove_group().group_id());
        state.fds.erase({Held::ARRIVALS, command.remove_group().group_id()});
        break;
      case C::kKeepPages:
        state.fds.erase({Held::PAGES, command.keep_pages().group_id()});
        if (!fds.empty()) Keep(state, Held::PAGES, command.keep_pages().group_id(), fds);
        break;
      case C::kBreakGroup: state.broken[command.break_group().group_id()] = command.break_group(); break;
      case C::kAddChunks:
        state.arriving[command.add_chunks().registration_id()].push_back(fds.size());
        Keep(state, Held::REGISTRATION, command.add_chunks().registration_id(), fds);
        break;
      case C::kAddRegistration: {
        size_t chunks = fds.size();
        for (size_t part : state.arriving[command.add_registration().registration_id()]) chunks += part;
        if (chunks != static_cast<size_t>(command.add_registration().chunk_bytes_size())) {
          return InvalidArgument("descriptors and chunks differ");
        }
        for (uint64_t id : command.add_registration().segments()) {
          if (!state.segments.contains(id)) return NotFound("segment is not mapped");
        }
        state.registrations[command.add_registration().registration_id()] = command.add_registration();
        Keep(state, Held::REGISTRATION, command.add_registration().registration_id(), fds);
        break;
      }
      case C::kRemoveRegistration:
        state.registrations.erase(command.remove_registration().registration_id());
        state.fds.erase({Held::REGISTRATION, command.remove_registration().registration_id()});
        break;
      case C::kAddPlan:
        if (!state.groups.contains(command.add_plan().group_id())) return NotFound("no group");
        state.plans[command.add_plan().plan_id()] = command.add_plan();
        break;
      case C::kRemovePlan: state.plans.erase(command.remove_plan().plan_id()); break;
      case C::kSetWorkspace:
        state.workspace[command.set_workspace().group_id()] = command.set_workspace();
        break;
      case C::kOpenChannel:
        state.channels.insert(command.open_channel().channel_id());
        Keep(state, Held::CHANNEL, command.open_channel().channel_id(), fds);
        break;
      case C::kCloseChannel:
        state.channels.erase(command.close_channel().channel_id());
        state.fds.erase({Held::CHANNEL, command.close_channel().channel_id()});
        break;
      case C::kLaunch: state.launches.push_back(command.launch()); break;
      default: break;
    }
    return Status::Ok();
  }
  Result<std::string> Ask(int gpu, engine::v1::Command command, std::chrono::milliseconds deadline) override {
    TANDEM_RETURN_IF_ERROR(Call(gpu, std::move(command), {}, deadline));
    return std::string();
  }
  Result<UniqueFd> AllocateSegment(int gpu, uint64_t segment_id, uint64_t bytes) override {
    std::lock_guard lock(mutex_);
    State& state = state_[static_cast<size_t>(gpu)];
    if (!state.up) return Unavailable("engine down");
    if (bytes > memory_bytes) return ResourceExhausted("no room for memory");
    state.segments.insert(segment_id);
    TANDEM_ASSIGN_OR_RETURN(UniqueFd fd, CreateSealedMemfd("fake-segment", bytes));
    Keep(state, engine::v1::Held::SEGMENT, segment_id, {fd.get()});
    return fd;
  }
  Result<std::unique_ptr<engine::v1::Queue>> QueueSnapshot(int) override {
    return std::make_unique<engine::v1::Queue>();
  }

  // The engine has ended too often, and is not started again.
  void HoldDown(int gpu) {
    {
      std::lock_guard lock(mutex_);
      held_down.insert(gpu);
    }
    Kill(gpu);
  }
  // The engine's process ends, and another one comes up.
  void Kill(int gpu, bool context_lost = false) {
    listener->OnEngineDown(gpu, Lose(gpu, context_lost), "signal 9");
  }
  // The same before anybody has noticed: its generation.
  uint64_t Lose(int gpu, bool context_lost = false) {
    std::lock_guard lock(mutex_);
    State& state = state_[static_cast<size_t>(gpu)];
    const uint64_t generation = state.generation;
    state = State{};
    state.up = false;
    state.generation = generation;
    state.context_lost = context_lost;
    return generation;
  }
  void Restart(int gpu) {
    uint64_t generation;
    {
      std::lock_guard lock(mutex_);
      State& state = state_[static_cast<size_t>(gpu)];
      state.up = true;
      generation = ++state.generation;
    }
    listener->OnEngineUp(gpu, generation);
  }

  // From now on engines keep descriptors for the next tandemd; before threads start.
  bool keeps = false;
  // The inventory that an engine would send to the next tandemd; nothing if the engine is down.
  std::optional<EngineHoldings> HoldingsOf(int gpu) const {
    std::lock_guard lock(mutex_);
    const State& state = state_[static_cast<size_t>(gpu)];
    if (!state.up) return std::nullopt;
    EngineHoldings holdings;
    holdings.generation = state.generation;
    holdings.segments = state.segments;
    holdings.channels = state.channels;
    for (const auto& [id, registration] : state.registrations) holdings.registrations.insert(id);
    for (const auto& [id, group] : state.groups) {
      EngineHoldings::HeldGroup& held = holdings.groups[id];
      held.generation = group.generation();
      if (const auto set = state.workspace.find(id); set != state.workspace.end())
        held.workspace = set->second.SerializeAsString();
    }
    for (const auto& [id, plan] : state.plans) holdings.groups[plan.group_id()].plans.insert(id);
    holdings.fds = state.fds;
    return holdings;
  }

  struct State {
    bool up = true;
    uint64_t generation = 1;
    bool context_lost = false;
    std::set<uint64_t> segments, channels;
    std::map<uint64_t, engine::v1::AddGroup> groups;
    std::map<uint64_t, engine::v1::BreakGroup> broken;
    std::map<uint64_t, engine::v1::AddRegistration> registrations;
    std::map<uint64_t, std::vector<size_t>> arriving;  // descriptors of each AddChunks, by registration
    std::map<uint64_t, engine::v1::AddPlan> plans;
    std::map<uint64_t, engine::v1::SetWorkspace> workspace;
    std::vector<engine::v1::Launch> launches;
    std::map<std::pair<EngineHoldings::Kind, uint64_t>, std::vector<SharedFd>> fds;  // that it keeps
  };
  State Look(int gpu) const {
    std::lock_guard lock(mutex_);
    return state_[static_cast<size_t>(gpu)];
  }

  EngineListener* listener = nullptr;
  std::set<int> held_down;
  uint64_t memory_bytes = uint64_t{1} << 40;
  MpsEndpoint mps;                                         // of all engines; set before threads start
  EngineCapabilities capabilities;                         // set before threads start
  std::map<int, EngineCapabilities> capabilities_of = {};  // by GPU, of those that have others
  std::map<int, uint32_t> kernel_sms;                      // by GPU; set before threads start
  std::map<int, std::string> no_fused_kernels;  // by GPU, of those that have none; set before threads start
  // Set before threads start: the answer to a command, instead of doing it.
  std::function<Status(int, const engine::v1::Command&)> fail;
  // Set before threads start: called before a command, without a lock. It may block, and kill engines.
  std::function<void(int, const engine::v1::Command&)> before;

 private:
  void Keep(State& state, EngineHoldings::Kind kind, uint64_t id, const std::vector<int>& fds) const {
    for (const int fd : fds) {
      if (keeps)
        state.fds[{kind, id}].push_back(std::make_shared<const UniqueFd>(::fcntl(fd, F_DUPFD_CLOEXEC, 0)));
    }
  }

  mutable std::mutex mutex_;
  std::map<int, int> woken_;
  std::vector<State> state_;
};

}  // namespace tandem::daemon

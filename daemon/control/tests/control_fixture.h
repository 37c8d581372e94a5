// File: control_fixture.h
//
// A control plane over fake engines, and ranks that call it from threads of their own.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/protocol.h"
#include "daemon/control/base/validate.h"
#include "daemon/control/control.h"
#include "daemon/control/tests/fake_engines.h"

namespace tandem::daemon {

// Holds whoever passes, from Shut on until Open. Thread-safe.
class Gate {
 public:
  void Shut() { shut_ = true; }
  void Open() { shut_ = false; }
  void Pass() {
    if (!shut_) return;
    ++held_;
    while (shut_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  int held() const { return held_; }

 private:
  std::atomic<bool> shut_ = false;
  std::atomic<int> held_ = 0;
};

class FakeLease final : public LeasePort {
 public:
  Status Send(uint64_t session_id, uint64_t, const std::vector<SharedFd>& fds) override {
    std::lock_guard lock(mutex_);
    for (const SharedFd& fd : fds) {
      if (!fd || !fd->valid()) return Internal("a descriptor is missing");
    }
    sent_ += fds.size();
    last_ = fds;
    last_of_[session_id] = fds;
    return Status::Ok();
  }
  void Close(uint64_t, const Status& why) override {
    std::lock_guard lock(mutex_);
    if (!why.ok()) reasons_.push_back(why);
  }
  // With which sessions were closed, where there was one.
  std::vector<Status> reasons() {
    std::lock_guard lock(mutex_);
    return reasons_;
  }
  size_t sent() {
    std::lock_guard lock(mutex_);
    return sent_;
  }
  // Closes what was sent.
  void Forget() {
    std::lock_guard lock(mutex_);
    last_.clear();
    last_of_.clear();
  }
  // Descriptors of the last Send to a session.
  std::vector<SharedFd> last_of(uint64_t session_id) {
    std::lock_guard lock(mutex_);
    return last_of_[session_id];
  }
  // Descriptors of the last Send.
  std::vector<SharedFd> last() {
    std::lock_guard lock(mutex_);
    return last_;
  }

 private:
  std::mutex mutex_;
  size_t sent_ = 0;
  std::vector<Status> reasons_;
  std::vector<SharedFd> last_;
  std::map<uint64_t, std::vector<SharedFd>> last_of_;
};

class ControlTest : public ::testing::Test {
 protected:
  static constexpr auto kWaitBudget = std::chrono::seconds(30);

  // `gpus` emulated ones, unless the options have a topology, of as many.
  void Start(int gpus, ControlOptions options = {}) {
    engines = std::make_unique<FakeEngines>(gpus);
    engines->capabilities = CapabilitiesOfBackend(options.backend);
    if (options.topology.size() == 0) options.topology = EmulatedTopology(gpus);
    options.illegal_transition = [](const std::string& text) { ADD_FAILURE() << text; };
    options.journal_difference = [](const std::string& name) {
      ADD_FAILURE() << "the journal's record of " << name << " is not like the registry";
    };
    control = std::make_unique<Control>(options, *engines);
    // Every test sees that each change comes into the journal.
    journal = *Journal::Create();
    control->KeepState(*Journal::Open(UniqueFd(::dup(journal.get()))));
    engines->listener = control.get();
    control->SetLeasePort(&lease);
  }
  void TearDown() override { control.reset(); }

  // A process that was started at `started`.
  SessionRef Attach(int pid = 1000, Waiter::Clock::time_point started = Waiter::Clock::now()) {
    v1::AttachRequest request;
    request.set_protocol_min(kProtocol);
    request.set_protocol_max(kProtocol);
    request.set_name("test");
    Result<v1::AttachReply> reply =
        control->Attach({.uid = 7, .gid = 7, .pid = pid, .started = started}, request);
    EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    if (!reply.ok()) return nullptr;
    ids[pid] = reply->session_id();
    return *control->Authenticate(reply->token());
  }
  std::vector<SessionRef> AttachAll(int world) {
    std::vector<SessionRef> sessions;
    for (int rank = 0; rank < world; ++rank) sessions.push_back(Attach(1000 + rank));
    return sessions;
  }
  uint64_t IdOf(int rank) { return ids[1000 + rank]; }

  v1::JoinGroupRequest JoinRequest(int world, int rank, const std::string& name = "tp") {
    v1::JoinGroupRequest request;
    request.set_job_key("0123456789abcdef");
    request.set_name(name);
    request.set_world_size(world);
    request.set_rank(rank);
    const auto& gpus = control->options().topology.gpus;
    request.set_gpu_uuid(gpus[static_cast<size_t>(rank >= 0 ? rank : 0) % gpus.size()].uuid);
    return request;
  }
  // Runs `work(rank)` for all ranks at once.
  template <typename Work>
  auto Together(int world, Work work) {
    using R = decltype(work(0));
    std::vector<std::future<R>> futures;
    for (int rank = 0; rank < world; ++rank) futures.push_back(std::async(std::launch::async, work, rank));
    std::vector<R> results;
    for (auto& future : futures) results.push_back(future.get());
    return results;
  }
  // The id of a new group of `world` ranks.
  uint64_t Join(const std::vector<SessionRef>& sessions, const std::string& name = "tp") {
    const int world = static_cast<int>(sessions.size());
    auto replies = Together(world, [&](int rank) {
      return control->JoinGroup(sessions[static_cast<size_t>(rank)], JoinRequest(world, rank, name),
                                Waiter::For(kWaitBudget));
    });
    for (auto& reply : replies) EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    return replies[0].ok() ? replies[0]->group_id() : 0;
  }
  // A group with one rank on each of `gpus` (positions): the reply to rank 0.
  v1::JoinGroupReply JoinOn(const std::vector<int>& gpus, const std::vector<SessionRef>& sessions,
                            const std::string& name) {
    auto replies = Together(static_cast<int>(gpus.size()), [&](int rank) {
      v1::JoinGroupRequest request = JoinRequest(static_cast<int>(gpus.size()), rank, name);
      request.set_gpu_uuid(
          control->options().topology.gpus[static_cast<size_t>(gpus[static_cast<size_t>(rank)])].uuid);
      return control->JoinGroup(sessions[static_cast<size_t>(rank)], request, Waiter::For(kWaitBudget));
    });
    for (auto& reply : replies) EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    return replies[0].ok() ? *replies[0] : v1::JoinGroupReply();
  }
  // The first one of this algorithm.
  static v1::Offer OfferOf(const v1::JoinGroupReply& reply, Algorithm algorithm) {
    for (const v1::Offer& offer : reply.offers()) {
      if (offer.algorithm() == static_cast<uint32_t>(algorithm)) return offer;
    }
    ADD_FAILURE() << "no offer";
    return v1::Offer();
  }
  static v1::PrepareRequest PrepareRequestOf(uint64_t group, const std::string& key,
                                             const OpRequest& request) {
    v1::PrepareRequest proto;
    proto.set_group_id(group);
    proto.set_key(key);
    *proto.mutable_request() = OpRequestToProto(request);
    return proto;
  }
  v1::PrepareRequest AllReduce(uint64_t group, const std::string& key, int64_t elements = 1024) {
    OpRequest request;
    request.op = Op::kAllReduce;
    request.operands = {{Role::kInput, {DType::kF32, {elements}, {}}, false, -1},
                        {Role::kOutput, {DType::kF32, {elements}, {}}, false, -1}};
    return PrepareRequestOf(group, key, request);
  }
  // A new tensor's id.
  uint64_t Empty(const SessionRef& session, int gpu, int64_t bytes = 4096, const std::string& name = {}) {
    v1::EmptyRequest request;
    request.mutable_spec()->set_dtype(static_cast<uint32_t>(DType::kU8));
    request.mutable_spec()->add_shape(bytes);
    request.set_gpu_uuid(control->options().topology.gpus[static_cast<size_t>(gpu)].uuid);
    request.set_persistent_name(name);
    auto reply = control->Empty(session, request);
    EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    return reply.ok() ? reply->tensor_id() : 0;
  }
  Result<v1::RendezvousReply> Rendezvous(const SessionRef& session, uint64_t tensor, uint64_t group,
                                         const Waiter& waiter) {
    v1::RendezvousRequest request;
    request.set_tensor_id(tensor);
    request.set_group_id(group);
    return control->Rendezvous(session, request, waiter);
  }
  // Commands of `kind` to `gpu` wait at the gate while it is shut. Before threads start.
  void HoldAt(engine::v1::Command::CommandCase kind, int at_gpu) {
    engines->before = [this, kind, at_gpu](int gpu, const engine::v1::Command& command) {
      if (gpu == at_gpu && command.command_case() == kind) gate.Pass();
    };
  }
  // Waits until `holds`, for what mailboxes do after a call has returned.
  static bool Eventually(const std::function<bool()>& holds) {
    const auto deadline = std::chrono::steady_clock::now() + kWaitBudget;
    while (!holds()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }
  static size_t OpenDescriptors() {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
    return count;
  }
  // The next event of this kind.
  Result<v1::Event> NextOfKind(const SessionRef& session, v1::Event::Kind kind) {
    for (;;) {
      auto event = control->NextEvent(session, control->OpenEvents(session), Waiter::For(kWaitBudget));
      if (!event.ok()) return event.status();
      if (!event->has_value()) return DeadlineExceeded("no such event");
      if ((*event)->kind() == kind) return **event;
    }
  }

  UniqueFd journal;
  Gate gate;
  FakeLease lease;
  std::unique_ptr<FakeEngines> engines;
  std::unique_ptr<Control> control;
  std::map<int, uint64_t> ids;
};

}  // namespace tandem::daemon

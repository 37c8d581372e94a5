// File: wrapped_backend.h
//
// `WrappedBackend`: another backend, with lanes that a test has put something around. `WrappedLane`: such a
// lane, which does nothing but pass everything on. `HeldBackend`: one that holds its engine in a command.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "kernels/backend.h"

namespace tandem::engine {

class WrappedLane : public Lane {
 public:
  explicit WrappedLane(std::unique_ptr<Lane> wrapped) : lane_(std::move(wrapped)) {}
  Status WriteWord(Word* word, uint64_t value) override { return lane().WriteWord(word, value); }
  Status WaitWord(const Word* word, uint64_t value) override { return lane().WaitWord(word, value); }
  Status Copy(const CopyArgs& args) override { return lane().Copy(args); }
  Status Matmul(const MatmulArgs& args) override { return lane().Matmul(args); }
  Status Reduce(const ReduceArgs& args) override { return lane().Reduce(args); }
  Status Norm(const NormArgs& args) override { return lane().Norm(args); }
  Status Nccl(const NcclArgs& args) override { return lane().Nccl(args); }
  Status Collective(const CollectiveArgs& args) override { return lane().Collective(args); }
  Status Record(Event* event) override { return lane().Record(event); }
  Status Wait(Event* event) override { return lane().Wait(event); }
  void HoldWords() override { lane().HoldWords(); }
  Status FlushWords() override { return lane().FlushWords(); }

 protected:
  virtual Lane& lane() { return *lane_; }

 private:
  std::unique_ptr<Lane> lane_;
};

class WrappedBackend : public Backend {
 public:
  // Makes what the engine gets instead of the `index`-th lane.
  using LaneWrapper =
      std::function<std::unique_ptr<Lane>(std::unique_ptr<Lane> lane, int index, WrappedBackend& from)>;

  WrappedBackend(std::unique_ptr<Backend> backend, LaneWrapper wrap)
      : backend_(std::move(backend)), wrap_(std::move(wrap)) {}

  std::string Name() const override { return backend_->Name(); }
  Result<UniqueFd> AllocateSegment(size_t bytes) override { return backend_->AllocateSegment(bytes); }
  size_t SegmentGranularity() const override { return backend_->SegmentGranularity(); }
  Result<std::unique_ptr<Segment>> MapSegment(int fd, size_t bytes) override {
    return backend_->MapSegment(fd, bytes);
  }
  Result<std::unique_ptr<Segment>> ImportMemory(int fd, size_t bytes) override {
    return backend_->ImportMemory(fd, bytes);
  }
  Result<std::unique_ptr<Lane>> MakeLane(int priority) override {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Lane> lane, backend_->MakeLane(priority));
    return wrap_(std::move(lane), lanes_++, *this);
  }
  Result<std::unique_ptr<Event>> MakeEvent() override { return backend_->MakeEvent(); }
  Result<std::unique_ptr<Communicator>> MakeCommunicator(const CommunicatorOptions& options) override {
    return backend_->MakeCommunicator(options);
  }
  Status FusedKernels() const override { return backend_->FusedKernels(); }
  bool HonoursGuard(Guarded what) const override { return backend_->HonoursGuard(what); }
  Status RegisterHostMemory(void* address, size_t bytes) override {
    if (own_words_ == nullptr)
      own_words_ = static_cast<Word*>(address);  // the first that an engine registers
    return backend_->RegisterHostMemory(address, bytes);
  }
  size_t MemoryBytes() const override { return backend_->MemoryBytes(); }

  // The engine's own page of words; it is there before anything is given to a lane.
  Word* own_words() const { return own_words_; }
  // Whether it lies in the engine's own page of words. A lane waits for one of them only before the
  // first kernel of a speculative launch.
  bool IsOwnWord(const Word* word) const {
    constexpr ptrdiff_t kWordsOfPage = 512;
    return own_words_ != nullptr && word >= own_words_ && word < own_words_ + kWordsOfPage;
  }
  Backend& backend() { return *backend_; }

 private:
  std::unique_ptr<Backend> backend_;
  LaneWrapper wrap_;
  int lanes_ = 0;
  Word* own_words_ = nullptr;
};

// Where an engine is held: in MakeUniqueId, from the moment at which it has come there.
struct EngineGate {
  std::atomic<bool> open{false}, reached{false};
  void AwaitReached() const {
    while (!reached) std::this_thread::yield();
  }
};

class HeldBackend : public WrappedBackend {
 public:
  HeldBackend(std::unique_ptr<Backend> backend, EngineGate* gate)
      : WrappedBackend(std::move(backend),
                       [](std::unique_ptr<Lane> lane, int, WrappedBackend&) { return lane; }),
        gate_(gate) {}
  // Gives an EngineNode's engines such backends.
  static auto Wrapper(EngineGate* gate) {
    return [gate](std::unique_ptr<Backend> backend) {
      return std::make_unique<HeldBackend>(std::move(backend), gate);
    };
  }
  Result<std::string> MakeUniqueId() override {
    gate_->reached = true;
    while (!gate_->open) std::this_thread::yield();
    return std::string();
  }

 private:
  EngineGate* gate_;
};

}  // namespace tandem::engine

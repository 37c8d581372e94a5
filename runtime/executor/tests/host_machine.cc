#include <cstring>
#include <deque>
#include <vector>

#include "kernels/host/host_backend.h"
#include "runtime/executor/tests/test_machine.h"

namespace tandem::runtime {
namespace {

class HostMachine : public TestMachine {
 public:
  explicit HostMachine(const HostMachineOptions& options) : options_(options) {
    for (int rank = 0; rank < options.world_size; ++rank) {
      backends_.push_back(std::move(*MakeHostBackend({.gpu = rank,
                                                      .hardware_queues = options.hardware_queues,
                                                      .visibility_delay_us = options.visibility_delay_us,
                                                      .seed = options.seed})));
    }
    CommunicatorOptions communicator;
    communicator.world_size = options.world_size;
    communicator.scratch_bytes = 64 << 10;
    communicator.abort_word = &abort_word_;
    for (int rank = 0; rank < options.world_size; ++rank) {
      communicator.scratch.push_back(Allocate(rank, communicator.scratch_bytes).at[0]);
    }
    for (int rank = 0; rank < options.world_size; ++rank) {
      communicator.rank = rank;
      communicators_.push_back(
          std::move(*backends_[static_cast<size_t>(rank)]->MakeCommunicator(communicator)));
    }
  }
  // Blocked lanes and collectives use the memory: they end first.
  ~HostMachine() override { backends_.clear(); }

  Backend& backend(int rank) override { return *backends_[static_cast<size_t>(rank)]; }
  SharedMemory Allocate(int, size_t bytes) override {
    storage_.emplace_back(bytes + 256);
    auto address = reinterpret_cast<uintptr_t>(storage_.back().data());
    SharedMemory memory;
    memory.at.fill(reinterpret_cast<std::byte*>((address + 255) / 256 * 256));
    return memory;
  }
  Word* AllocateWord() override { return &words_.emplace_back(0); }
  Communicator* GetCommunicator(int rank, int) override {
    return communicators_[static_cast<size_t>(rank)].get();
  }
  void Upload(const SharedMemory& to, int rank, const void* from, size_t bytes) override {
    std::memcpy(to.at[static_cast<size_t>(rank)], from, bytes);
  }
  void Download(void* to, const SharedMemory& from, int rank, size_t bytes) override {
    std::memcpy(to, from.at[static_cast<size_t>(rank)], bytes);
  }

 private:
  HostMachineOptions options_;
  std::deque<std::vector<uint8_t>> storage_;
  std::deque<Word> words_;
  Word abort_word_{0};
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<std::unique_ptr<Backend>> backends_;
};

}  // namespace

std::unique_ptr<TestMachine> MakeHostMachine(const HostMachineOptions& options) {
  return std::make_unique<HostMachine>(options);
}

}  // namespace tandem::runtime

// SharedMachine on real GPUs: one backend a GPU in one process, memory exported and imported as engines do
// it.
#include "tests/gpu/cuda_machine.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "drivers/cuda/cuda_driver.h"
#include "kernels/cuda/cuda_backend.h"

namespace tandem::runtime {
namespace {

constexpr size_t kWordBytes = size_t{1} << 16;

// Without its machine no test can say anything.
template <typename Value>
Value Must(Result<Value> result, const char* what) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s: %s\n", what, result.status().ToString().c_str());
    std::abort();
  }
  return std::move(result).value();
}
void Must(const Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s: %s\n", what, status.ToString().c_str());
  std::abort();
}

class CudaMachine : public TestMachine {
 public:
  CudaMachine(int ranks, size_t arena_bytes)
      : driver_(Must(cuda::LoadCudaDriver(), "driver")), arena_bytes_(arena_bytes) {
    words_ = static_cast<Word*>(
        ::mmap(nullptr, kWordBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    const int gpus = CudaDeviceCount();
    for (int rank = 0; rank < ranks; ++rank) {
      backends_.push_back(Must(MakeCudaBackend({.device = rank % gpus}), "backend"));
    }
    // Portable registration: once for all contexts of the process.
    Must(backends_[0]->RegisterHostMemory(words_, kWordBytes), "words");
    arenas_.resize(backends_.size());
    for (size_t owner = 0; owner < backends_.size(); ++owner) {
      UniqueFd fd = Must(backends_[owner]->AllocateSegment(arena_bytes_), "segment");
      for (auto& viewer : backends_) {
        arenas_[owner].views.push_back(Must(viewer->MapSegment(fd.get(), arena_bytes_), "mapping"));
      }
    }
  }

  Backend& backend(int rank) override { return *backends_[static_cast<size_t>(rank)]; }
  SharedMemory Allocate(int rank, size_t bytes) override {
    Arena& arena = arenas_[static_cast<size_t>(rank)];
    SharedMemory memory;
    if (arena.used + bytes + 256 > arena_bytes_) {
      std::fprintf(stderr, "the tests' arena is too small\n");
      std::abort();
    }
    for (size_t viewer = 0; viewer < arena.views.size(); ++viewer) {
      memory.at[viewer] = arena.views[viewer]->data() + arena.used;
    }
    arena.used += (bytes + 256 + 255) / 256 * 256;
    return memory;
  }
  Word* AllocateWord() override { return &words_[8 * words_used_++]; }
  Communicator* GetCommunicator(int rank, int world_size) override {
    std::lock_guard lock(mutex_);
    auto& group = communicators_[world_size];
    if (group.empty()) {
      CommunicatorOptions options;
      options.world_size = world_size;
      options.unique_id = Must(MakeNcclUniqueId(), "NCCL id");
      for (options.rank = 0; options.rank < world_size; ++options.rank) {
        group.push_back(Must(backend(options.rank).MakeCommunicator(options), "communicator"));
      }
    }
    return group[static_cast<size_t>(rank)].get();
  }
  void Upload(const SharedMemory& to, int rank, const void* from, size_t bytes) override {
    Transfer(rank, Address(to, rank), reinterpret_cast<CUdeviceptr>(from), bytes);
  }
  void Download(void* to, const SharedMemory& from, int rank, size_t bytes) override {
    Transfer(rank, reinterpret_cast<CUdeviceptr>(to), Address(from, rank), bytes);
  }
  bool launches_in_parallel() const override { return true; }
  void Reset() override {
    for (size_t rank = 0; rank < arenas_.size(); ++rank) {
      Enter(static_cast<int>(rank));
      auto address = reinterpret_cast<CUdeviceptr>(arenas_[rank].views[rank]->data());
      Must(driver_->MemsetD8Async(address, 0, arenas_[rank].used, nullptr), "memset");
      Must(driver_->StreamSynchronize(nullptr), "memset");
      arenas_[rank].used = 0;
    }
    std::memset(static_cast<void*>(words_), 0, kWordBytes);
    words_used_ = 0;
  }

 private:
  struct Arena {
    std::vector<std::unique_ptr<Segment>> views;  // by viewing rank
    size_t used = 0;
  };
  static CUdeviceptr Address(const SharedMemory& memory, int rank) {
    return reinterpret_cast<CUdeviceptr>(memory.at[static_cast<size_t>(rank)]);
  }
  // Any call of a backend makes its context current.
  void Enter(int rank) { (void)*backend(rank).MakeEvent(); }
  void Transfer(int rank, CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    if (bytes == 0) return;
    Enter(rank);
    Must(driver_->MemcpyAsync(to, from, bytes, nullptr), "copy");
    Must(driver_->StreamSynchronize(nullptr), "copy");
  }

  cuda::CudaDriver* driver_;
  const size_t arena_bytes_;
  Word* words_ = nullptr;
  size_t words_used_ = 0;
  std::vector<std::unique_ptr<Backend>> backends_;
  std::vector<Arena> arenas_;
  std::mutex mutex_;
  std::map<int, std::vector<std::unique_ptr<Communicator>>> communicators_;
};

}  // namespace

std::unique_ptr<TestMachine> MakeCudaMachine(int ranks, size_t arena_bytes) {
  return std::make_unique<CudaMachine>(ranks, arena_bytes);
}

TestMachine* SharedMachine() {
  // Never destroyed: the driver may be gone when static objects end.
  static TestMachine* machine = MakeCudaMachine(MostRanks(), size_t{512} << 20).release();
  return machine;
}

int MostRanks() {
  static const int gpus = [] {
    int visible = CudaDeviceCount();
    if (visible == 0) {
      std::fprintf(stderr, "no GPU\n");
      std::exit(1);
    }
    return visible < plan::kMaxWorldSize ? visible : plan::kMaxWorldSize;
  }();
  return gpus;
}

}  // namespace tandem::runtime

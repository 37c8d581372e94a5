#include "daemon/engine/peer_probe.h"

#include <sys/mman.h>

#include <cerrno>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/engine/launch.h"

namespace tandem::engine {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 20;
constexpr uint64_t kMostWaitNs = 5'000'000'000;

// Host memory that lanes copy from and to.
class Buffer {
 public:
  static Result<std::unique_ptr<Buffer>> Create(Backend* backend, size_t bytes) {
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return SystemError("mmap", errno);
    std::unique_ptr<Buffer> buffer(new Buffer(memory, bytes));
    TANDEM_RETURN_IF_ERROR(backend->RegisterHostMemory(memory, bytes));
    return buffer;
  }
  ~Buffer() { ::munmap(memory_, bytes_); }
  void* memory() const { return memory_; }
  uint64_t* words() const { return static_cast<uint64_t*>(memory_); }

 private:
  Buffer(void* memory, size_t bytes) : memory_(memory), bytes_(bytes) {}
  void* memory_;
  size_t bytes_;
};

DeviceView WordsAt(void* address, uint64_t bytes) {
  return {.data = static_cast<std::byte*>(address),
          .dtype = DType::kI64,
          .extent = {static_cast<int64_t>(bytes / sizeof(uint64_t))},
          .stride = {1}};
}

Status Await(const Event& event) {
  const uint64_t deadline = NowNs() + kMostWaitNs;
  while (!event.Done()) {
    if (NowNs() > deadline) return DeadlineExceeded("the copy has not ended after 5 s");
    std::this_thread::yield();
  }
  return Status::Ok();
}

}  // namespace

uint64_t ProbeWord(uint64_t seed, uint64_t index) {
  // SplitMix64: every bit of every word changes with the seed.
  uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

Status RunProbe(const v1::Probe& probe, Backend* backend, const MemoryTable& memory, DeferredRelease* dead) {
  const uint64_t bytes = probe.bytes();
  if (bytes == 0 || bytes > kMostBytes || bytes % 4096 != 0) return InvalidArgument("a probe has 1 to 256 pages");
  auto pins = std::make_shared<std::vector<std::shared_ptr<Segment>>>();
  TANDEM_ASSIGN_OR_RETURN(std::byte * probed, memory.Locate(probe.segment_id(), probe.offset(), bytes, pins.get()));
  std::byte* staging = nullptr;
  if (!probe.check()) {
    TANDEM_ASSIGN_OR_RETURN(staging,
                            memory.Locate(probe.staging_segment(), probe.staging_offset(), bytes, pins.get()));
  }
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Lane> lane, backend->MakeLane(1));
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Event> event, backend->MakeEvent());
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> buffer, Buffer::Create(backend, bytes));
  // Let go of when no lane can be using it: also after a time-out.
  dead->Add([lane, event, buffer, pins](Backend* alive) {
    if (alive != nullptr) (void)alive->UnregisterHostMemory(buffer->memory());
  });
  const uint64_t words = bytes / sizeof(uint64_t);
  CopyArgs copy;
  if (probe.check()) {
    copy = {.src = WordsAt(probed, bytes), .dst = WordsAt(buffer->memory(), bytes), .copy_engine = probe.copy_engine()};
    TANDEM_RETURN_IF_ERROR(lane->Copy(copy));
  } else {
    for (uint64_t i = 0; i < words; ++i) buffer->words()[i] = ProbeWord(probe.seed(), i);
    copy = {.src = WordsAt(buffer->memory(), bytes), .dst = WordsAt(staging, bytes), .copy_engine = true};
    TANDEM_RETURN_IF_ERROR(lane->Copy(copy));
    copy = {.src = WordsAt(staging, bytes), .dst = WordsAt(probed, bytes), .copy_engine = probe.copy_engine()};
    TANDEM_RETURN_IF_ERROR(lane->Copy(copy));
  }
  TANDEM_RETURN_IF_ERROR(lane->Record(event.get()));
  TANDEM_RETURN_IF_ERROR(Await(*event));
  for (uint64_t i = 0; probe.check() && i < words; ++i) {
    if (buffer->words()[i] != ProbeWord(probe.seed(), i)) {
      return Status(Code::kDataLoss, "word " + std::to_string(i) + " of " + std::to_string(words) +
                                         " differs from what was written");
    }
  }
  return Status::Ok();
}

}  // namespace tandem::engine

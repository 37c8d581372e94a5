#include "engine/peer_probe.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/launch/launch.h"

namespace tandem::engine {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{1} << 20;
constexpr uint64_t kMaxWaitNs = 5'000'000'000;
constexpr uint64_t kMaxMeasuredBytes = uint64_t{64} << 20;
constexpr int kMeasuredRounds = 3, kCopiesPerRound = 8;

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
  const uint64_t deadline = NowNs() + kMaxWaitNs;
  while (!event.Done()) {
    if (NowNs() > deadline) return DeadlineExceeded("the copy has not ended after 5 s");
    std::this_thread::yield();
  }
  return Status::Ok();
}

Status CopyAndAwait(Lane& lane, Event* event, void* from, void* to, uint64_t bytes, bool copy_engine) {
  CopyArgs copy{{.src = WordsAt(from, bytes), .dst = WordsAt(to, bytes), .copy_engine = copy_engine}};
  TANDEM_RETURN_IF_ERROR(lane.Copy(copy));
  TANDEM_RETURN_IF_ERROR(lane.Record(event));
  return Await(*event);
}

Status Write(std::byte* target, std::byte* staging, uint64_t seed, uint64_t bytes, bool copy_engine,
             Lane& lane, Event* event, const Buffer& buffer) {
  for (uint64_t i = 0; i < bytes / sizeof(uint64_t); ++i) buffer.words()[i] = ProbeWord(seed, i);
  TANDEM_RETURN_IF_ERROR(CopyAndAwait(lane, event, buffer.memory(), staging, bytes, true));
  return CopyAndAwait(lane, event, staging, target, bytes, copy_engine);
}

Status Check(std::byte* target, uint64_t seed, uint64_t bytes, bool copy_engine, Lane& lane, Event* event,
             const Buffer& buffer) {
  TANDEM_RETURN_IF_ERROR(CopyAndAwait(lane, event, target, buffer.memory(), bytes, copy_engine));
  const uint64_t words = bytes / sizeof(uint64_t);
  for (uint64_t i = 0; i < words; ++i) {
    if (buffer.words()[i] == ProbeWord(seed, i)) continue;
    return Status(Code::kDataLoss, "word " + std::to_string(i) + " of " + std::to_string(words) +
                                       " differs from what was written");
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
  if (bytes == 0 || bytes > kMaxBytes || bytes % 4096 != 0)
    return InvalidArgument("a probe has 1 to 256 pages");
  auto pins = std::make_shared<std::vector<std::shared_ptr<Segment>>>();
  std::vector<std::byte*> targets;
  for (const v1::ProbeTarget& target : probe.targets()) {
    TANDEM_ASSIGN_OR_RETURN(std::byte * at,
                            memory.Locate(target.segment_id(), target.offset(), bytes, pins.get()));
    targets.push_back(at);
  }
  std::byte* staging = nullptr;
  if (!probe.check()) {
    TANDEM_ASSIGN_OR_RETURN(
        staging, memory.Locate(probe.staging_segment(), probe.staging_offset(), bytes, pins.get()));
  }
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Lane> lane, backend->MakeLane(1));
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Event> event, backend->MakeEvent());
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> buffer, Buffer::Create(backend, bytes));
  // Let go of when no lane can be using it: also after a time-out.
  dead->Add([lane, event, buffer, pins](Backend* alive) {
    if (alive != nullptr) (void)alive->UnregisterHostMemory(buffer->memory());
  });
  for (size_t i = 0; i < targets.size(); ++i) {
    const uint64_t seed = probe.targets(static_cast<int>(i)).seed();
    Status status =
        probe.check()
            ? Check(targets[i], seed, bytes, probe.copy_engine(), *lane, event.get(), *buffer)
            : Write(targets[i], staging, seed, bytes, probe.copy_engine(), *lane, event.get(), *buffer);
    if (!status.ok()) {
      return status.WithDetail({.reason = "PROBE_FAILED", .who = {}, .field = std::to_string(i)});
    }
  }
  return Status::Ok();
}

Result<uint64_t> MeasureLink(const v1::MeasureLink& link, Backend* backend, const MemoryTable& memory,
                             DeferredRelease* dead) {
  const uint64_t bytes = link.bytes();
  if (bytes == 0 || bytes > kMaxMeasuredBytes || bytes % 4096 != 0) {
    return InvalidArgument("a link is measured with 1 to 16384 pages");
  }
  auto pins = std::make_shared<std::vector<std::shared_ptr<Segment>>>();
  TANDEM_ASSIGN_OR_RETURN(std::byte * to, memory.Locate(link.segment_id(), link.offset(), bytes, pins.get()));
  TANDEM_ASSIGN_OR_RETURN(std::byte * from,
                          memory.Locate(link.staging_segment(), link.staging_offset(), bytes, pins.get()));
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Lane> lane, backend->MakeLane(1));
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Event> begin, backend->MakeEvent());
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Event> end, backend->MakeEvent());
  dead->Add([lane, begin, end, pins](Backend*) {});
  const CopyArgs copy{{.src = WordsAt(from, bytes), .dst = WordsAt(to, bytes), .copy_engine = true}};
  int64_t least_ns = 0;
  // The first round touches memory and wakes the link: it does not count.
  for (int round = 0; round <= kMeasuredRounds; ++round) {
    TANDEM_RETURN_IF_ERROR(lane->Record(begin.get()));
    for (int i = 0; i < kCopiesPerRound; ++i) TANDEM_RETURN_IF_ERROR(lane->Copy(copy));
    TANDEM_RETURN_IF_ERROR(lane->Record(end.get()));
    TANDEM_RETURN_IF_ERROR(Await(*end));
    const int64_t ns = end->TimeNs() - begin->TimeNs();
    if (round > 0 && ns > 0 && (least_ns == 0 || ns < least_ns)) least_ns = ns;
  }
  if (least_ns == 0) return Internal("the device's events have no times");
  return static_cast<uint64_t>(static_cast<double>(bytes) * kCopiesPerRound * 1e9 /
                               static_cast<double>(least_ns));
}

}  // namespace tandem::engine

#include "kernels/host/host_backend.h"

#include <sys/stat.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "common/shared_memory.h"
#include "kernels/host/host_lane.h"
#include "kernels/host/host_queue.h"
#include "kernels/host/nccl_standin.h"

namespace tandem {
namespace host {
namespace {

constexpr size_t kGranularity = size_t{2} << 20;

// The emulated GPU's memory: the segments that its backend allocated, by inode.
class MemoryLedger {
 public:
  explicit MemoryLedger(size_t limit) : limit_(limit) {}

  Status Reserve(size_t bytes) {
    std::lock_guard lock(mutex_);
    if (bytes > limit_ - used_) {
      StatusDetail detail;
      detail.reason = "GPU_MEMORY";
      detail.limit = static_cast<long long>(limit_);
      detail.usage = static_cast<long long>(used_);
      return ResourceExhausted("a segment of " + std::to_string(bytes) + " bytes: " + std::to_string(used_) +
                               " of " + std::to_string(limit_) + " bytes of the emulated GPU are in use")
          .WithDetail(detail);
    }
    used_ += bytes;
    return Status::Ok();
  }
  void Unreserve(size_t bytes) {
    std::lock_guard lock(mutex_);
    used_ -= bytes;
  }
  void Own(ino_t inode, size_t bytes) {
    std::lock_guard lock(mutex_);
    owned_[inode] = {bytes, 0};
  }
  void Mapped(ino_t inode) {
    std::lock_guard lock(mutex_);
    auto entry = owned_.find(inode);
    if (entry != owned_.end()) ++entry->second.mappings;
  }
  void Unmapped(ino_t inode) {
    std::lock_guard lock(mutex_);
    auto entry = owned_.find(inode);
    if (entry == owned_.end() || --entry->second.mappings > 0) return;
    used_ -= entry->second.bytes;
    owned_.erase(entry);
  }

 private:
  struct Allocation {
    size_t bytes = 0;
    int mappings = 0;
  };
  const size_t limit_;
  std::mutex mutex_;
  size_t used_ = 0;
  std::map<ino_t, Allocation> owned_;
};

class HostSegment : public Segment {
 public:
  HostSegment(Mapping mapping, std::shared_ptr<MemoryLedger> ledger, ino_t inode)
      : mapping_(std::move(mapping)), ledger_(std::move(ledger)), inode_(inode) {
    ledger_->Mapped(inode_);
  }
  ~HostSegment() override {
    mapping_ = Mapping();
    ledger_->Unmapped(inode_);
  }
  std::byte* data() const override { return mapping_.data(); }
  size_t bytes() const override { return mapping_.size(); }

 private:
  Mapping mapping_;
  std::shared_ptr<MemoryLedger> ledger_;
  ino_t inode_;
};

Result<ino_t> InodeOf(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return SystemError("fstat", errno);
  return status.st_ino;
}

class HostBackend : public Backend {
 public:
  HostBackend(const HostBackendOptions& options, std::shared_ptr<HostQueueSet> queues)
      : options_(options),
        queues_(std::move(queues)),
        ledger_(std::make_shared<MemoryLedger>(options.memory_bytes)) {}
  ~HostBackend() override { queues_->Shutdown(); }

  std::string Name() const override { return "host"; }
  size_t SegmentGranularity() const override { return kGranularity; }
  size_t MemoryBytes() const override { return options_.memory_bytes; }

  Result<UniqueFd> AllocateSegment(size_t bytes) override {
    if (bytes == 0 || bytes % kGranularity != 0) {
      return InvalidArgument("a segment of " + std::to_string(bytes) + " bytes is no multiple of 2 MiB");
    }
    TANDEM_RETURN_IF_ERROR(ledger_->Reserve(bytes));
    Result<UniqueFd> fd = CreateSealedMemfd("tandem-gpu" + std::to_string(options_.gpu), bytes);
    if (!fd.ok()) {
      ledger_->Unreserve(bytes);
      return fd.status();
    }
    Result<ino_t> inode = InodeOf(fd->get());
    if (!inode.ok()) {
      ledger_->Unreserve(bytes);
      return inode.status();
    }
    ledger_->Own(*inode, bytes);
    return fd;
  }

  Result<std::unique_ptr<Segment>> MapSegment(int fd, size_t bytes) override {
    // A mapping beyond the end of the file would fault when it is touched.
    TANDEM_ASSIGN_OR_RETURN(size_t size, FileSize(fd));
    if (size < bytes) {
      return InvalidArgument("the segment has " + std::to_string(size) + " bytes, not " +
                             std::to_string(bytes));
    }
    TANDEM_ASSIGN_OR_RETURN(ino_t inode, InodeOf(fd));
    TANDEM_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Map(fd, 0, bytes, true));
    return std::unique_ptr<Segment>(std::make_unique<HostSegment>(std::move(mapping), ledger_, inode));
  }

  Result<std::unique_ptr<Segment>> ImportMemory(int fd, size_t bytes) override {
    TANDEM_RETURN_IF_ERROR(CheckForeignMemfd(fd, bytes));
    return MapSegment(fd, bytes);
  }

  Result<std::unique_ptr<Lane>> MakeLane(int priority) override {
    return std::unique_ptr<Lane>(std::make_unique<HostLane>(queues_, queues_->Next(priority)));
  }

  Status FusedKernels() const override {
    return options_.emulated_fused ? Status::Ok() : Backend::FusedKernels();
  }

  Result<std::unique_ptr<Event>> MakeEvent() override {
    return std::unique_ptr<Event>(std::make_unique<HostLaneEvent>());
  }

  bool HonoursGuard(Guarded) const override { return true; }

  Result<std::unique_ptr<Communicator>> MakeCommunicator(const CommunicatorOptions& options) override {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<HostCommunicator> communicator,
                            HostCommunicator::Create(options));
    return std::unique_ptr<Communicator>(std::move(communicator));
  }

 private:
  HostBackendOptions options_;
  std::shared_ptr<HostQueueSet> queues_;
  std::shared_ptr<MemoryLedger> ledger_;
};

}  // namespace
}  // namespace host

Result<std::unique_ptr<Backend>> MakeHostBackend(const HostBackendOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<host::HostQueueSet> queues,
                          host::HostQueueSet::Create(options.hardware_queues, options.visibility_delay_us,
                                                     options.seed * 64 + static_cast<uint64_t>(options.gpu)));
  return std::unique_ptr<Backend>(std::make_unique<host::HostBackend>(options, std::move(queues)));
}

}  // namespace tandem

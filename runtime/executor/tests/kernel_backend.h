// File: kernel_backend.h
//
// `KernelBackend`: one that says that it has a kernel for every collective, and has nothing else.
#pragma once

#include <memory>
#include <string>

#include "kernels/backend.h"

namespace tandem::runtime {

class KernelBackend : public Backend {
 public:
  std::string Name() const override { return "kernels"; }
  Result<UniqueFd> AllocateSegment(size_t) override { return Unimplemented(""); }
  size_t SegmentGranularity() const override { return 4096; }
  Result<std::unique_ptr<Segment>> MapSegment(int, size_t) override { return Unimplemented(""); }
  Result<std::unique_ptr<Segment>> ImportMemory(int, size_t) override { return Unimplemented(""); }
  Result<std::unique_ptr<Lane>> MakeLane(int) override { return Unimplemented(""); }
  Result<std::unique_ptr<Event>> MakeEvent() override { return Unimplemented(""); }
  Result<std::unique_ptr<Communicator>> MakeCommunicator(const CommunicatorOptions&) override {
    return Unimplemented("");
  }
  bool HasCollective(const CollectiveArgs&) const override { return true; }
  size_t MemoryBytes() const override { return 0; }
};

}  // namespace tandem::runtime

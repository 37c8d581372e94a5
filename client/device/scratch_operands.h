// File: scratch_operands.h
//
// Memory for the operands of a request that is measured and not used: random numbers in what is read, since a
// GPU that multiplies zeros runs faster.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "client/device/rank_device.h"
#include "tandem/client.h"
#include "tandem/op_request.h"

namespace tandem {

// One rank's. Used by one thread at a time.
class ScratchOperands {
 public:
  // Registered memory of so many bytes on the rank's GPU, as Client::AllocateRegistered makes.
  using Allocate = std::function<Result<std::shared_ptr<Memory>>(size_t bytes)>;

  // Makes and fills the operands that are not symmetric. No other rank takes part. `seed`: another one gives
  // other numbers. `device` and `stream` must outlive the object. Errors: those of `allocate`, and
  // INVALID_ARGUMENT for a request whose operands have no size.
  static Result<std::unique_ptr<ScratchOperands>> Make(const OpRequest& request, RankDevice& device,
                                                       RankStream& stream, const Allocate& allocate,
                                                       uint32_t seed, Milliseconds deadline);
  // Makes and fills the symmetric ones, if there are any: all ranks of `group` call it. Errors: those of
  // Group::Allocate.
  Status AddSymmetric(Group& group, Milliseconds deadline);

  // For Plan::Launch, by slot; complete after AddSymmetric. Valid while this object lives.
  std::span<const Binding> bindings() const { return bindings_; }

 private:
  ScratchOperands(const OpRequest& request, RankDevice& device, RankStream& stream, uint32_t seed)
      : request_(request), device_(device), stream_(stream), seed_(seed) {}
  Status Fill(const Memory& memory, bool symmetric, Milliseconds deadline);

  const OpRequest request_;
  RankDevice& device_;
  RankStream& stream_;
  const uint32_t seed_;
  size_t symmetric_bytes_ = 0;
  std::vector<Binding> bindings_;
  std::shared_ptr<Memory> own_, symmetric_;
};

}  // namespace tandem

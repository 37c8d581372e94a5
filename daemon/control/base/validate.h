// File: validate.h
//
// The checks that a request from outside must pass whatever the state: ids that may exist, lengths, shapes,
// overflow, enumerations. Pure functions of the request, safe on any bytes that parse; every one answers
// INVALID_ARGUMENT (or OUT_OF_RANGE) with detail.field set.
#pragma once

#include <cstdint>
#include <string>

#include "ipc/channel_layout.h"
#include "tandem/op_request.h"
#include "tandem/status.h"

namespace tandem::v1 {
class AttachRequest;
class EmptyRequest;
class FdTransfer;
class JoinGroupRequest;
class LaunchRequest;
class OpenChannelRequest;
class OpRequest;
class PrepareRequest;
class PreviewRequest;
class RegisterTensorRequest;
class TensorSpec;
}  // namespace tandem::v1

namespace tandem::daemon {

inline constexpr int kMaxDimensions = 8;
inline constexpr int kMaxOperands = kMaxBindings;  // each is bound by a launch
inline constexpr int kMaxTransfers = 64;
inline constexpr int64_t kMaxTensorBytes = int64_t{1} << 46;
inline constexpr uint32_t kMinRequestedEntries = 2;
inline constexpr uint32_t kMaxRequestedEntries = 16384;

// The rank and world size of a join are checked by the barrier, since every rank must hear of them.
Status ValidateAttach(const v1::AttachRequest& request);
Status ValidateJoin(const v1::JoinGroupRequest& request);
Status ValidateRegister(const v1::RegisterTensorRequest& request);
Status ValidateOpenChannel(const v1::OpenChannelRequest& request);
Status ValidateLaunch(const v1::LaunchRequest& request);
Status ValidatePrepare(const v1::PrepareRequest& request);
Status ValidatePreview(const v1::PreviewRequest& request);

// A tensor's specification, as ours. `field` is the prefix of detail.field.
Result<TensorSpec> ParseTensorSpec(const v1::TensorSpec& spec, const std::string& field);
// The bytes of a contiguous tensor for Empty; at least one.
Result<uint64_t> ParseEmpty(const v1::EmptyRequest& request);
// A request for an operation in a group of `world_size`, and back.
Result<OpRequest> ParseOpRequest(const v1::OpRequest& request, int world_size);
v1::OpRequest OpRequestToProto(const OpRequest& request);

}  // namespace tandem::daemon

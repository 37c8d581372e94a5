// Fuzzes the clients' requests: bytes that parse are validated; what passes is compared, planned, verified,
// encoded and compiled. A request may be refused at every stage, but a program that was planned must pass all
// that follow.
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <string>
#include <vector>

#include "daemon/control/base/validate.h"
#include "daemon/planner/planner.h"
#include "program/program_codec.h"
#include "program/verifier/verifier.h"
#include "runtime/executor/executor.h"
#include "tandem/program/v1/program.pb.h"
#include "tandem/v1/tandem.pb.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_request.h"

namespace {

using namespace tandem;

// Larger ones are right or wrong for the same reasons, but take seconds.
constexpr int kMaxSteps = 32;
constexpr size_t kMaxProgramSteps = 600;

template <typename Message, typename Check>
void CheckMessage(std::string_view bytes, Check check) {
  Message message;
  if (message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) check(message).ok();
}

std::string Describe(const std::vector<OpRequest>& requests) {
  std::string text;
  for (const OpRequest& request : requests)
    text += daemon::OpRequestToProto(request).ShortDebugString() + "\n";
  return text;
}

void CheckPlan(const plan::OperationPlan& plan, const std::vector<OpRequest>& requests) {
  size_t steps = 0;
  for (const plan::RankProgram& program : plan.programs) steps += program.steps.size();
  const std::string what = std::string(AlgorithmName(plan.algorithm)) + " of " + Describe(requests);
  fuzz::Expect(plan.programs.size() == requests.size(), "a program for each rank: " + what);
  Result<plan::VerifyContext> context = plan::ContextOf(requests);
  fuzz::Expect(context.ok(),
               "a planned request has no context: " + context.status().ToString() + "\n" + what);
  if (steps <= kMaxProgramSteps) {
    Status verified = plan::VerifyPrograms(plan.programs, *context,
                                           {.launches = 2, .hardware_queues = 0, .alternate_parity = true});
    fuzz::Expect(verified.ok(), "a planned program does not verify: " + verified.ToString() + "\n" + what);
  }
  for (size_t rank = 0; rank < plan.programs.size(); ++rank) {
    program::v1::RankProgram message;
    plan::EncodeProgram(plan.programs[rank], &message);
    Result<plan::RankProgram> decoded = plan::DecodeProgram(message);
    fuzz::Expect(decoded.ok(),
                 "a planned program does not decode: " + decoded.status().ToString() + "\n" + what);
    runtime::ProgramLimits limits;
    limits.rank = static_cast<int>(rank);
    limits.world_size = static_cast<int>(requests.size());
    limits.workspace_bytes = plan.workspace_bytes;
    limits.bulk_bytes = plan.bulk_bytes;
    for (size_t slot = 0; slot < context->symmetric.size(); ++slot) {
      limits.slots.push_back(
          {.bytes = context->operand_bytes[rank][slot], .symmetric = context->symmetric[slot]});
    }
    auto compiled = runtime::CompiledProgram::Compile(*decoded, limits);
    fuzz::Expect(compiled.ok(),
                 "a planned program does not compile: " + compiled.status().ToString() + "\n" + what);
  }
}

void CheckRequests(const std::vector<OpRequest>& requests, const plan::GroupContext& group) {
  for (const OpRequest& request : requests) {
    if (request.steps > kMaxSteps) return;
  }
  if (!plan::CompareRequests(requests).ok()) return;
  Result<plan::OperationPlan> plan = plan::MakePlan(requests, group);
  if (plan.ok()) CheckPlan(*plan, requests);
}

// One serialized PrepareRequest a rank; ranks without one repeat the last.
void CheckPrepare(fuzz::FuzzInput& input) {
  const plan::GroupContext group = fuzz::TakeGroup(input);
  const int world = group.topology.size();
  std::vector<OpRequest> requests;
  while (static_cast<int>(requests.size()) < world && !input.Empty()) {
    v1::PrepareRequest message;
    const std::string_view bytes = input.TakeBlock();
    if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
    if (!daemon::ValidatePrepare(message).ok()) return;
    Result<OpRequest> request = daemon::ParseOpRequest(message.request(), world);
    if (!request.ok()) {
      fuzz::Expect(
          request.status().code() == Code::kInvalidArgument || request.status().code() == Code::kOutOfRange,
          "an odd refusal: " + request.status().ToString());
      return;
    }
    Result<OpRequest> again = daemon::ParseOpRequest(daemon::OpRequestToProto(*request), world);
    fuzz::Expect(again.ok() && *again == *request, "the request changes on its way: " + Describe({*request}));
    requests.push_back(std::move(*request));
  }
  if (requests.empty()) return;
  requests.resize(static_cast<size_t>(world), requests.back());
  CheckRequests(requests, group);
}

// Requests that are nearly right, to get past the first checks.
void CheckBuilt(fuzz::FuzzInput& input) {
  const plan::GroupContext group = fuzz::TakeGroup(input);
  const int world = group.topology.size();
  std::vector<OpRequest> requests = fuzz::TakeRequests(input, world);
  for (const OpRequest& request : requests) {
    if (!daemon::ParseOpRequest(daemon::OpRequestToProto(request), world).ok()) return;
  }
  CheckRequests(requests, group);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  google::protobuf::SetLogHandler(nullptr);
  fuzz::FuzzInput input(data, size);
  switch (input.Byte() % 10) {
    case 0: CheckMessage<v1::AttachRequest>(input.Rest(), daemon::ValidateAttach); break;
    case 1: CheckMessage<v1::JoinGroupRequest>(input.Rest(), daemon::ValidateJoin); break;
    case 2: CheckMessage<v1::RegisterTensorRequest>(input.Rest(), daemon::ValidateRegister); break;
    case 3: CheckMessage<v1::OpenChannelRequest>(input.Rest(), daemon::ValidateOpenChannel); break;
    case 4: CheckMessage<v1::LaunchRequest>(input.Rest(), daemon::ValidateLaunch); break;
    case 5:
      CheckMessage<v1::EmptyRequest>(input.Rest(), [](const v1::EmptyRequest& request) {
        Result<uint64_t> bytes = daemon::ParseEmpty(request);
        fuzz::Expect(!bytes.ok() || (*bytes > 0 && *bytes <= uint64_t{daemon::kMaxTensorBytes}),
                     "an odd size passed");
        return bytes.status();
      });
      break;
    case 6: CheckPrepare(input); break;
    default: CheckBuilt(input);
  }
  return 0;
}

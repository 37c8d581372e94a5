#include "client/lib/client_launch/client_lane.h"

#include <atomic>
#include <string>

#include "kernels/host/copy.h"
#include "kernels/host/matmul.h"
#include "kernels/host/norm.h"
#include "kernels/host/reduce.h"
#include "kernels/host/word_wait.h"
#include "program/program.h"

namespace tandem::client {
namespace {

// A client's queues live as long as the process: no task is abandoned.
const std::atomic<bool> kNeverAbandoned{false};
const host::TaskContext kContext{&kNeverAbandoned, nullptr};

Status OfEnginesOnly(const char* work) {
  return Unimplemented(std::string("a launch in the client cannot run ") + work);
}

StatusDetail Awaiting(const char* reason, int rank) {
  return {.reason = reason, .who = "rank " + std::to_string(rank), .ranks = {static_cast<uint32_t>(rank)}};
}

}  // namespace

Status ClientLane::WriteWord(Word* word, uint64_t number) {
  word->store(number << kLaunchTagBits | launch_.tag, std::memory_order_release);
  return Status::Ok();
}

Status ClientLane::WaitWord(const Word* word, uint64_t number) {
  constexpr int64_t kOneLaunch = int64_t{1} << kLaunchTagBits;
  const auto peer = static_cast<int>((word - launch_.own_words) / plan::kSignalsPerWriter);
  const auto context = [&] { return "launch " + std::to_string(number); };
  const auto rank = [&] { return "rank " + std::to_string(peer); };
  host::Backoff backoff;
  while (true) {
    const uint64_t value = word->load(std::memory_order_acquire);
    const auto ahead = static_cast<int64_t>(value - (number << kLaunchTagBits));
    if (ahead >= 2 * kOneLaunch) {
      return FailedPrecondition(context() + ": " + rank() + " is " + std::to_string(ahead >> kLaunchTagBits) +
                                " launches ahead")
          .WithDetail(Awaiting("DESYNC", peer));
    }
    if (ahead >= kOneLaunch) return Status::Ok();  // its next launch: this one has ended there
    if (ahead >= 0) {
      if ((value & (kOneLaunch - 1)) == launch_.tag) return Status::Ok();
      return InvalidArgument(context() + ": " + rank() +
                             " launched another plan, or its rows, tag or symmetric operands differ")
          .WithDetail(Awaiting("LAUNCH_MISMATCH", peer));
    }
    if (launch_.page->Aborts(number)) return launch_.page->Reason();
    if (ClientLaunch::Clock::now() >= launch_.deadline) {
      return DeadlineExceeded(context() + " ended by its deadline: it waited for " + rank())
          .WithDetail(Awaiting("RANK_LATE", peer));
    }
    backoff.Pause();
  }
}

Status ClientLane::Copy(const CopyArgs& args) {
  TANDEM_ASSIGN_OR_RETURN(const host::BoxCopy copy, host::PrepareCopy(args));
  if (copy.box.count > 0) host::RunCopy(copy, kContext);
  return Status::Ok();
}

Status ClientLane::Matmul(const MatmulArgs& args) {
  TANDEM_RETURN_IF_ERROR(host::CheckMatmul(args));
  host::RunMatmul(args, kContext);
  return Status::Ok();
}

Status ClientLane::Reduce(const ReduceArgs& args) {
  TANDEM_ASSIGN_OR_RETURN(const host::BoxReduce reduce, host::PrepareReduce(args));
  if (reduce.box.count > 0) host::RunReduce(reduce, kContext);
  return Status::Ok();
}

Status ClientLane::Norm(const NormArgs& args) {
  TANDEM_RETURN_IF_ERROR(host::CheckNorm(args));
  host::RunNorm(args);
  return Status::Ok();
}

Status ClientLane::Nccl(const NcclArgs&) { return OfEnginesOnly("collectives of NCCL"); }
Status ClientLane::Record(Event*) { return OfEnginesOnly("work on several lanes"); }
Status ClientLane::Wait(Event*) { return OfEnginesOnly("work on several lanes"); }

}  // namespace tandem::client

// File: communicators.h
//
// `CommunicatorState`: what this library knows of one communicator of NCCL. Whether Tandem serves it is agreed on
// by all ranks with its first collective that Tandem might run.
#pragma once

#include <nccl.h>
#include <sys/types.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "client/nccl/call.h"
#include "client/nccl/family_group.h"
#include "client/nccl/nccl_device.h"
#include "client/nccl/offer.h"

namespace tandem::nccl {

// Thread-safe.
class CommunicatorState {
 public:
  // `reason`: why NCCL has to run the call; empty: `result` is the call's.
  struct Outcome {
    ncclResult_t result = ncclSuccess;
    std::string reason = {};
  };

  // NCCL must have completed the communicator.
  CommunicatorState(ncclComm_t communicator, int rank, int ranks);

  // Runs a call that WhyNot lets pass, or leaves it to NCCL.
  Outcome Run(const NcclCall& call);

  // Looks for a failure. ncclSuccess: none.
  ncclResult_t PollFailure();
  // The failure in words; "" before one. Good until the thread's next call of this function.
  const char* FailureText();

  // Gives up Tandem's memory for it, and then NCCL's with `suspend`, NCCL's own. All ranks call it. An error of Tandem's
  // leaves both awake.
  template <typename NcclSuspend>
  ncclResult_t Suspend(const NcclSuspend& suspend);
  // Brings both back, NCCL's first. May be called again after an error.
  template <typename NcclResume>
  ncclResult_t Resume(const NcclResume& resume);

  // Ends what Tandem has for it, after its launches. Later calls are NCCL's.
  void Close();
  // The same at the process's end, if no thread is in a call.
  void CloseAtExit();
  // The same at once, with `abort`, NCCL's own. Launches that wait for other ranks end with a failure.
  template <typename NcclAbort>
  ncclResult_t Abort(const NcclAbort& abort);

 private:
  enum class Standing { kUndecided, kServed, kDeclined };

  // Lets Abort end the waits of this thread's calls of Tandem, while it lives.
  class CancellableWaits {
   public:
    explicit CancellableWaits(CommunicatorState& communicator);
    ~CancellableWaits();
    CancellableWaits(const CancellableWaits&) = delete;
    CancellableWaits& operator=(const CancellableWaits&) = delete;
  };

  // Suspends or resumes Tandem's group, if there is one.
  ncclResult_t SetAsleep(bool asleep);
  Outcome Decline(std::string reason);
  Status Agree();
  Status Exchange(const Offer& own, std::vector<Offer>* all);
  Offer MakeOffer(Result<Session>* session);
  std::string Join(const std::vector<Offer>& offers, Session session);
  void Fail(const Status& status);
  ncclResult_t Failed();
  // Ends the waits of a call that a thread is in. True: it waits in NCCL, which alone can end that.
  bool CancelWaits();
  // Returns false where the communicator is being aborted.
  bool SetExchanging(bool exchanging);
  void GiveUp();

  const ncclComm_t communicator_;
  const int rank_, ranks_;
  const pid_t process_;  // a child of a fork must not end what its parent has

  std::mutex mutex_;  // of a call, also while it waits for other ranks
  Standing standing_ = Standing::kUndecided;
  std::string reason_;  // of kDeclined
  std::unique_ptr<NcclDevice> device_;
  std::unique_ptr<FamilyGroup> group_;

  std::mutex failure_mutex_;
  ncclResult_t failure_ = ncclSuccess;
  std::string failure_text_;
  OwnedCancellation cancellation_;  // of the call that waits; guarded by failure_mutex_
  bool aborted_ = false;            // guarded by failure_mutex_
  bool exchanging_ = false;         // guarded by failure_mutex_: a thread waits in NCCL
};

template <typename NcclAbort>
ncclResult_t CommunicatorState::Abort(const NcclAbort& abort) {
  // A thread that waits in NCCL comes back when NCCL has aborted.
  const std::optional<ncclResult_t> result = CancelWaits() ? std::optional(abort()) : std::nullopt;
  const std::lock_guard lock(mutex_);
  GiveUp();
  // Else NCCL comes last: it waits for the device, on which launches of Tandem may wait for ranks.
  return result ? *result : abort();
}

template <typename NcclSuspend>
ncclResult_t CommunicatorState::Suspend(const NcclSuspend& suspend) {
  const ncclResult_t result = SetAsleep(true);
  return result == ncclSuccess ? suspend() : result;
}

template <typename NcclResume>
ncclResult_t CommunicatorState::Resume(const NcclResume& resume) {
  const ncclResult_t result = resume();
  return result == ncclSuccess ? SetAsleep(false) : result;
}

// The state of a communicator, made on first use; null before NCCL has completed it. Thread-safe.
std::shared_ptr<CommunicatorState> CommunicatorOf(ncclComm_t communicator);
// The state if there is one.
std::shared_ptr<CommunicatorState> KnownCommunicator(ncclComm_t communicator);
// The same, and forgets it: NCCL may give the handle to another communicator.
std::shared_ptr<CommunicatorState> TakeCommunicator(ncclComm_t communicator);

}  // namespace tandem::nccl

#include "client/nccl/communicators.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

#include "client/nccl/messages.h"
#include "client/nccl/real_nccl.h"
#include "tandem/deadlines.h"

namespace tandem::nccl {
namespace {

constexpr int kMaxRanks = 8;
constexpr int64_t kExitDeadlineMs = 2000;

bool IsSwitchedOff() {
  const char* given = std::getenv("TANDEM_NCCL");
  return given != nullptr && std::string_view(given) == "0";
}

Status NcclError(const char* call, ncclResult_t result) {
  const char* text = Real().GetErrorString(result);
  return Unavailable(std::string(call) + ": " + (text == nullptr ? "NCCL error" : text));
}

// Waits until a communicator that does not block has done its last call.
Status Settle(ncclComm_t communicator, const char* call, ncclResult_t result) {
  while (result == ncclInProgress) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = Real().CommGetAsyncError(communicator, &state);
    result = asked == ncclSuccess ? state : asked;
  }
  return result == ncclSuccess ? Status::Ok() : NcclError(call, result);
}

// NCCL's codes know a remote rank, and all else.
ncclResult_t CodeOf(const Status& status) {
  const bool remote = status.code() == Code::kUnavailable || status.code() == Code::kDeadlineExceeded;
  return remote ? ncclRemoteError : ncclSystemError;
}

}  // namespace

CommunicatorState::CommunicatorState(ncclComm_t communicator, int rank, int ranks)
    : communicator_(communicator), rank_(rank), ranks_(ranks), process_(::getpid()) {
  if (ranks == 1) reason_ = "the communicator has one rank";
  if (ranks > kMaxRanks) reason_ = "the communicator has more than 8 ranks";
  if (!reason_.empty()) standing_ = Standing::kDeclined;
}

CommunicatorState::Outcome CommunicatorState::Run(const NcclCall& call) {
  const std::lock_guard lock(mutex_);
  if (standing_ == Standing::kDeclined) return {.reason = reason_};
  if (device_ == nullptr) {
    int device = 0;
    (void)Real().CommCuDevice(communicator_, &device);
    Result<std::unique_ptr<NcclDevice>> made = MakeNcclDevice(device);
    if (!made.ok()) return Decline(made.status().message());
    device_ = *std::move(made);
  }
  const CancellableWaits cancellable(*this);
  if (standing_ == Standing::kUndecided) {
    const Result<bool> capturing = device_->IsCapturing(call.stream);
    if (!capturing.ok() || *capturing) return {.reason = "the communicator's first collective is captured"};
    if (const Status agreed = Agree(); !agreed.ok())
      return Decline("the ranks could not agree: " + agreed.message());
    if (standing_ == Standing::kDeclined) return Decline(reason_);
  }
  if (const ncclResult_t failed = Failed(); failed != ncclSuccess) return {.result = failed};
  Result<std::string> ran = group_->Run(call, *device_);
  if (ran.ok()) return {.reason = *std::move(ran)};
  Fail(ran.status());
  return {.result = Failed()};
}

ncclResult_t CommunicatorState::SetAsleep(bool asleep) {
  const std::lock_guard lock(mutex_);
  if (group_ == nullptr) return ncclSuccess;
  const CancellableWaits cancellable(*this);
  if (const ncclResult_t failed = Failed(); failed != ncclSuccess) return failed;
  const Status status = asleep ? group_->Suspend() : group_->Resume();
  if (status.ok()) return ncclSuccess;
  SetLastError("Tandem: " + tandem::nccl::Describe(status));
  return CodeOf(status);
}

CommunicatorState::Outcome CommunicatorState::Decline(std::string reason) {
  if (rank_ == 0) SayOnce("NCCL runs a communicator's collectives, since " + reason);
  standing_ = Standing::kDeclined;
  reason_ = std::move(reason);
  return {.reason = reason_};
}

Status CommunicatorState::Exchange(const Offer& own, std::vector<Offer>* all) {
  all->assign(static_cast<size_t>(ranks_), Offer{});
  const auto gather = [this](const void* send, void* receive, cudaStream_t stream) {
    return Settle(communicator_, "ncclAllGather",
                  Real().AllGather(send, receive, sizeof(Offer), ncclInt8, communicator_, stream));
  };
  if (!SetExchanging(true)) return FailedPrecondition("the communicator is being aborted");
  Status gathered =
      device_->Gather(gather, std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(*all)));
  (void)SetExchanging(false);
  return gathered;
}

Offer CommunicatorState::MakeOffer(Result<Session>* session) {
  Offer offer;
  SetText(&offer.process, ProcessIdentity());
  SetText(&offer.key, RandomKey());
  const auto refuse = [&offer](std::string_view why) { SetText(&offer.refused, why); };
  if (IsSwitchedOff()) {
    refuse("it has TANDEM_NCCL=0");
    return offer;
  }
  *session = Connect();
  if (!session->ok()) {
    refuse(session->status().message());
    return offer;
  }
  const Session& mine = **session;
  SetText(&offer.daemon, mine.daemon);
  const std::string backend = mine.library->tandem_client_backend(mine.client.get());
  if (backend != device_->backend()) {
    refuse("the node's daemon has the backend " + backend);
    return offer;
  }
  const Result<std::string> gpu = device_->Gpu(*mine.library, mine.client.get());
  if (!gpu.ok())
    refuse(gpu.status().message());
  else
    SetText(&offer.gpu, *gpu);
  return offer;
}

// Why the ranks have no group; empty: all of them have joined it.
std::string CommunicatorState::Join(const std::vector<Offer>& offers, Session session) {
  const FamilyGroup::Place place = {.key = TextOf(offers[0].key),
                                    .gpu = TextOf(offers[static_cast<size_t>(rank_)].gpu),
                                    .rank = rank_,
                                    .ranks = ranks_};
  Result<std::unique_ptr<FamilyGroup>> joined = FamilyGroup::Join(std::move(session), place);
  if (!joined.ok()) return joined.status().message();
  group_ = *std::move(joined);
  return {};
}

Status CommunicatorState::Agree() {
  Result<Session> session = Unavailable("no session");
  std::vector<Offer> offers;
  Offer own = MakeOffer(&session);
  TANDEM_RETURN_IF_ERROR(Exchange(own, &offers));
  reason_ = WhyNotServed(offers);
  if (reason_.empty()) {
    // A rank that could not join must not be waited for by launches.
    const std::string why = Join(offers, *std::move(session));
    SetText(&own.refused, why);
    const Status exchanged = Exchange(own, &offers);
    reason_ = exchanged.ok() ? WhyNotServed(offers) : exchanged.message();
  }
  standing_ = reason_.empty() ? Standing::kServed : Standing::kDeclined;
  if (standing_ == Standing::kDeclined) group_.reset();
  return Status::Ok();
}

void CommunicatorState::Fail(const Status& status) {
  const std::lock_guard lock(failure_mutex_);
  if (failure_ != ncclSuccess) return;
  failure_ = CodeOf(status);
  failure_text_ = "Tandem: " + Describe(status);
}

ncclResult_t CommunicatorState::Failed() {
  const std::lock_guard lock(failure_mutex_);
  return failure_;
}

ncclResult_t CommunicatorState::PollFailure() {
  if (const ncclResult_t failed = Failed(); failed != ncclSuccess) return failed;
  // A call that waits for ranks returns its failure itself.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || group_ == nullptr) return ncclSuccess;
  if (const Status failure = group_->TakeFailure(); !failure.ok()) Fail(failure);
  return Failed();
}

const char* CommunicatorState::FailureText() {
  thread_local std::string mine;
  const std::lock_guard lock(failure_mutex_);
  mine = failure_text_;
  return mine.c_str();
}

void CommunicatorState::Close() {
  const std::lock_guard lock(mutex_);
  if (group_ != nullptr) group_->Leave(TANDEM_DEFAULT_DEADLINE_MS);
  GiveUp();
}

void CommunicatorState::CloseAtExit() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock() && group_ != nullptr && process_ == ::getpid()) group_->Leave(kExitDeadlineMs);
}

void CommunicatorState::GiveUp() {
  if (group_ != nullptr) group_->Detach();
  group_.reset();
  standing_ = Standing::kDeclined;
  reason_ = "the communicator has been finalized, revoked or aborted";
}

bool CommunicatorState::CancelWaits() {
  const std::lock_guard lock(failure_mutex_);
  aborted_ = true;
  const Result<const TandemLibrary*> library = LoadTandem();
  if (cancellation_ != nullptr && library.ok()) (*library)->tandem_cancellation_cancel(cancellation_.get());
  return exchanging_;
}

bool CommunicatorState::SetExchanging(bool exchanging) {
  const std::lock_guard lock(failure_mutex_);
  exchanging_ = exchanging && !aborted_;
  return exchanging_;
}

CommunicatorState::CancellableWaits::CancellableWaits(CommunicatorState& communicator) {
  const Result<const TandemLibrary*> library = LoadTandem();
  if (!library.ok()) return;
  const std::lock_guard lock(communicator.failure_mutex_);
  if (communicator.cancellation_ == nullptr) {
    tandem_cancellation* made = nullptr;
    (void)(*library)->Take((*library)->tandem_cancellation_create(&made));
    communicator.cancellation_.reset(made);
    if (communicator.aborted_) (*library)->tandem_cancellation_cancel(made);
  }
  (*library)->tandem_cancellation_use(communicator.cancellation_.get());
}

CommunicatorState::CancellableWaits::~CancellableWaits() {
  if (const Result<const TandemLibrary*> library = LoadTandem(); library.ok())
    (*library)->tandem_cancellation_use(nullptr);
}

namespace {

struct Known {
  std::mutex mutex;
  std::unordered_map<ncclComm_t, std::shared_ptr<CommunicatorState>> communicators;
};
Known& TheKnown();

// A rank that ends without leaving counts as lost.
void CloseAll() {
  Known& known = TheKnown();
  const std::lock_guard lock(known.mutex);
  for (const auto& [communicator, state] : known.communicators) state->CloseAtExit();
}

Known& TheKnown() {
  static auto* const known = [] {
    std::atexit(CloseAll);
    return new Known;
  }();
  return *known;
}

}  // namespace

std::shared_ptr<CommunicatorState> KnownCommunicator(ncclComm_t communicator) {
  Known& known = TheKnown();
  const std::lock_guard lock(known.mutex);
  const auto found = known.communicators.find(communicator);
  return found == known.communicators.end() ? nullptr : found->second;
}

std::shared_ptr<CommunicatorState> CommunicatorOf(ncclComm_t communicator) {
  if (auto known = KnownCommunicator(communicator)) return known;
  int rank = 0, ranks = 0;
  if (Real().CommUserRank(communicator, &rank) != ncclSuccess ||
      Real().CommCount(communicator, &ranks) != ncclSuccess)
    return nullptr;
  Known& known = TheKnown();
  const std::lock_guard lock(known.mutex);
  std::shared_ptr<CommunicatorState>& state = known.communicators[communicator];
  if (state == nullptr) state = std::make_shared<CommunicatorState>(communicator, rank, ranks);
  return state;
}

std::shared_ptr<CommunicatorState> TakeCommunicator(ncclComm_t communicator) {
  Known& known = TheKnown();
  const std::lock_guard lock(known.mutex);
  const auto found = known.communicators.find(communicator);
  if (found == known.communicators.end()) return nullptr;
  std::shared_ptr<CommunicatorState> taken = std::move(found->second);
  known.communicators.erase(found);
  return taken;
}

}  // namespace tandem::nccl

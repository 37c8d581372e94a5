// File: bounded_admin.h
//
// `BoundedAdmin`: the operators' calls of `Admin` for a socket where anybody may call. A call may take a while:
// it waits for engines or jobs, and has a thread of the server meanwhile. No session's quota counts it. A bound over
// all of them keeps threads for the sessions' calls, and one of each uid keeps calls for the other users.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "tandem/admin/v1/admin.grpc.pb.h"

namespace tandem::daemon {

// Under way at once; one more is answered with RESOURCE_EXHAUSTED. The administrators' socket has no such
// bound.
inline constexpr int kMaxAdminCalls = 32, kMaxAdminCallsOfUid = 8;

// Thread-safe. `admin` outlives it.
class BoundedAdmin final : public admin::v1::Admin::Service {
 public:
  // The uid of a connection, as grpc::ServerContext::peer() names it; none if nobody knows.
  using UidOf = std::function<std::optional<uint32_t>(const std::string& peer)>;
  explicit BoundedAdmin(admin::v1::Admin::Service& admin, UidOf uid_of = nullptr)
      : admin_(admin), uid_of_(std::move(uid_of)) {}

#define TANDEM_BOUNDED(Name)                                                               \
  grpc::Status Name(grpc::ServerContext* context, const admin::v1::Name##Request* request, \
                    admin::v1::Name##Reply* reply) override {                              \
    return Bounded(context, [&] { return admin_.Name(context, request, reply); });         \
  }
  TANDEM_BOUNDED(GetTopology)
  TANDEM_BOUNDED(Doctor)
  TANDEM_BOUNDED(ListSessions)
  TANDEM_BOUNDED(ListGroups)
  TANDEM_BOUNDED(ListPools)
  TANDEM_BOUNDED(ListPlans)
  TANDEM_BOUNDED(GetQueue)
  TANDEM_BOUNDED(GetStats)
  TANDEM_BOUNDED(GetTrace)
  TANDEM_BOUNDED(ListTuning)
  TANDEM_BOUNDED(Suspend)
  TANDEM_BOUNDED(Resume)
#undef TANDEM_BOUNDED

  // Not bounded: it waits for nothing, and orchestrators that hear no answer restart what works.
  grpc::Status GetHealth(grpc::ServerContext* context, const admin::v1::GetHealthRequest* request,
                         admin::v1::GetHealthReply* reply) override {
    return admin_.GetHealth(context, request, reply);
  }

 private:
  template <typename Call>
  grpc::Status Bounded(const grpc::ServerContext* context, Call call) {
    std::optional<uint32_t> uid;
    if (context != nullptr && uid_of_) uid = uid_of_(context->peer());
    const Place place(*this, uid);
    if (place.of_uid > kMaxAdminCallsOfUid && uid.has_value()) {
      return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                          "uid " + std::to_string(*uid) + " has " + std::to_string(kMaxAdminCallsOfUid) +
                              " calls of operators under way on this socket");
    }
    if (place.of_all > kMaxAdminCalls) {
      return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                          "too many calls of operators are under way on this socket");
    }
    return call();
  }

  // One call under way. The numbers include it.
  struct Place {
    Place(BoundedAdmin& admin, std::optional<uint32_t> uid) : admin(admin), uid(uid) {
      std::lock_guard<std::mutex> lock(admin.mutex_);
      of_uid = ++admin.calls_[uid];
      of_all = ++admin.all_calls_;
    }
    ~Place() {
      std::lock_guard<std::mutex> lock(admin.mutex_);
      --admin.all_calls_;
      if (--admin.calls_[uid] == 0) admin.calls_.erase(uid);
    }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    BoundedAdmin& admin;
    const std::optional<uint32_t> uid;
    int of_uid = 0, of_all = 0;
  };

  admin::v1::Admin::Service& admin_;
  const UidOf uid_of_;
  std::mutex mutex_;
  std::map<std::optional<uint32_t>, int> calls_;  // by uid; under mutex_
  int all_calls_ = 0;                             // under mutex_
};

}  // namespace tandem::daemon

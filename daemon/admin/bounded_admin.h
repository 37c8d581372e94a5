// File: bounded_admin.h
//
// `BoundedAdmin`: the operators' reading calls for a socket where anybody may call. A call may take a while:
// it waits for engines, and has a thread of the server meanwhile. No session's quota counts it. A bound over
// all of them keeps threads for the sessions' calls.
#pragma once

#include <atomic>

#include "tandem/admin/v1/admin.grpc.pb.h"

namespace tandem::daemon {

// Under way at once; one more is answered with RESOURCE_EXHAUSTED. The administrators' socket has no such
// bound.
inline constexpr int kMaxAdminCalls = 32;

// Thread-safe. `admin` outlives it.
class BoundedAdmin final : public admin::v1::Admin::Service {
 public:
  explicit BoundedAdmin(admin::v1::Admin::Service& admin) : admin_(admin) {}

#define TANDEM_BOUNDED(Name)                                                               \
  grpc::Status Name(grpc::ServerContext* context, const admin::v1::Name##Request* request, \
                    admin::v1::Name##Reply* reply) override {                              \
    return Bounded([&] { return admin_.Name(context, request, reply); });                  \
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
#undef TANDEM_BOUNDED

  // Not bounded: it waits for nothing, and orchestrators that hear no answer restart what works.
  grpc::Status GetHealth(grpc::ServerContext* context, const admin::v1::GetHealthRequest* request,
                         admin::v1::GetHealthReply* reply) override {
    return admin_.GetHealth(context, request, reply);
  }

 private:
  template <typename Call>
  grpc::Status Bounded(Call call) {
    struct Place {
      explicit Place(std::atomic<int>& taken) : taken(taken), number(++taken) {}
      ~Place() { --taken; }
      std::atomic<int>& taken;
      const int number;
    };
    const Place place(calls_);
    if (place.number > kMaxAdminCalls) {
      return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                          "too many calls of operators are under way on this socket");
    }
    return call();
  }

  admin::v1::Admin::Service& admin_;
  std::atomic<int> calls_ = 0;
};

}  // namespace tandem::daemon

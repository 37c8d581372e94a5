#include "daemon/admin/bounded_admin.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <mutex>
#include <vector>

namespace tandem::daemon {
namespace {

// Its calls take until Answer.
class SlowAdmin final : public admin::v1::Admin::Service {
 public:
  grpc::Status GetQueue(grpc::ServerContext*, const admin::v1::GetQueueRequest*,
                        admin::v1::GetQueueReply*) override {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return answer_; });
    return grpc::Status::OK;
  }
  bool AwaitWaiting(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] { return waiting_ == count; });
  }
  void Answer() {
    std::lock_guard lock(mutex_);
    answer_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0;
  bool answer_ = false;
};

TEST(BoundedAdmin, OneCallTooManyIsRefusedWhileTheOthersWait) {
  SlowAdmin slow;
  BoundedAdmin bounded(slow);
  const auto call = [&] {
    admin::v1::GetQueueReply reply;
    return bounded.GetQueue(nullptr, nullptr, &reply).error_code();
  };
  std::vector<std::future<grpc::StatusCode>> calls;
  for (int i = 0; i < kMaxAdminCalls; ++i) calls.push_back(std::async(std::launch::async, call));
  EXPECT_TRUE(slow.AwaitWaiting(kMaxAdminCalls));
  auto refused = std::async(std::launch::async, call);
  const bool at_once = refused.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  slow.Answer();
  EXPECT_TRUE(at_once);
  EXPECT_EQ(refused.get(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  for (auto& waiting : calls) EXPECT_EQ(waiting.get(), grpc::StatusCode::OK);
  EXPECT_EQ(call(), grpc::StatusCode::OK);
}

}  // namespace
}  // namespace tandem::daemon

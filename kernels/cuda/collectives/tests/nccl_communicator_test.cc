// A communicator with a mocked NCCL: what calls go to which communicator, and that an abort ends a call that
// blocks.
#include "kernels/cuda/collectives/nccl_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

#include "drivers/cuda/mock_cuda_driver.h"
#include "drivers/nccl/mock_nccl_library.h"
#include "program/program.h"

namespace tandem::cuda {
namespace {

using testing::_;
using testing::HasSubstr;
using testing::NiceMock;
using testing::Return;

auto* const kParent = reinterpret_cast<ncclComm_t>(16);
auto* const kChild = reinterpret_cast<ncclComm_t>(32);

class NcclCommunicatorTest : public testing::Test {
 protected:
  NcclCommunicatorTest() {
    MakeUsable(driver_, size_t{2} << 20, nullptr, nullptr, nullptr);
    ON_CALL(nccl_, CommInitRankConfig(_, _, _, _)).WillByDefault(Return(Result<ncclComm_t>(kParent)));
    ON_CALL(nccl_, CommReady(_)).WillByDefault(Return(Result<bool>(true)));
    // Aborts come from a thread of the communicator's own: they are counted, and waited for.
    ON_CALL(nccl_, CommAbort(_)).WillByDefault([this](ncclComm_t communicator) {
      std::lock_guard lock(mutex_);
      aborted_.push_back(communicator);
      changed_.notify_all();
      return Status::Ok();
    });
    device_ = *CudaDevice::Create(&driver_, 0);
    options_.world_size = 2;
    options_.rank = 1;
    options_.unique_id = std::string(sizeof(ncclUniqueId::internal), 'x');
  }
  // The thread of an abort may be the last to hold memory of the device, hence the mocks: it lets go of the
  // device last.
  ~NcclCommunicatorTest() override {
    const bool made = communicator_ != nullptr;
    communicator_.reset();
    if (made) {
      EXPECT_TRUE(AwaitAborts(expected_aborts_));
    }
    auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while ((device_.use_count() > 1 || NcclCommunicator::AbortsUnderWay() != 0) &&
           std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
    EXPECT_EQ(device_.use_count(), 1);
    EXPECT_EQ(NcclCommunicator::AbortsUnderWay(), 0);
  }
  // `blocking`: the option; null: without.
  void Make(const char* blocking) {
    if (blocking != nullptr) options_.config["nccl.blocking"] = blocking;
    auto communicator = NcclCommunicator::Create(device_, &nccl_, options_);
    ASSERT_TRUE(communicator.ok()) << communicator.status().ToString();
    communicator_ = std::move(*communicator);
    expected_aborts_ = options_.config["nccl.blocking"] == "0" ? 1 : 2;
  }
  bool AwaitAborts(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return aborted_.size() >= count; });
  }
  // A split that is complete at once.
  void SplitAtOnce() {
    ON_CALL(nccl_, CommSplit(_, _, _, _)).WillByDefault([](ncclComm_t, int, ncclConfig_t, ncclComm_t* child) {
      *child = kChild;
      return Status::Ok();
    });
  }
  Status Barrier() {
    NcclArgs args;
    args.kind = plan::NcclKind::kBarrier;
    return communicator_->Enqueue(args, nullptr);
  }

  NiceMock<MockCudaDriver> driver_;
  NiceMock<MockNcclLibrary> nccl_;
  std::shared_ptr<CudaDevice> device_;
  CommunicatorOptions options_;
  std::unique_ptr<NcclCommunicator> communicator_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<ncclComm_t> aborted_;
  size_t expected_aborts_ = 0;
};

TEST_F(NcclCommunicatorTest, WithTheOptionAtZeroCallsGoToTheOneThatDoesNotBlock) {
  EXPECT_CALL(nccl_, CommInitRankConfig(2, _, 1, _))
      .WillOnce([](int, const ncclUniqueId&, int, ncclConfig_t config) {
        EXPECT_EQ(config.blocking, 0);
        EXPECT_EQ(config.splitShare, NCCL_CONFIG_UNDEF_INT);
        return Result<ncclComm_t>(kParent);
      });
  EXPECT_CALL(nccl_, CommSplit(_, _, _, _)).Times(0);
  EXPECT_CALL(nccl_, AllReduce(_, _, 1, ncclInt32, ncclSum, kParent, _)).WillOnce(Return(Status::Ok()));
  Make("0");
  ASSERT_TRUE(Barrier().ok());
}

// A peer without the option and one with 1 must do the same: both split, which is a collective call.
TEST_F(NcclCommunicatorTest, WithoutTheOptionCollectivesGoToAChildThatBlocks) {
  for (const char* blocking : {static_cast<const char*>(nullptr), "1"}) {
    EXPECT_CALL(nccl_, CommInitRankConfig(_, _, _, _))
        .WillOnce([](int, const ncclUniqueId&, int, ncclConfig_t config) {
          EXPECT_EQ(config.blocking, 0);
          EXPECT_EQ(config.splitShare, 1);
          return Result<ncclComm_t>(kParent);
        });
    EXPECT_CALL(nccl_, CommSplit(kParent, 1, _, _))
        .WillOnce([](ncclComm_t, int, ncclConfig_t config, ncclComm_t* child) {
          EXPECT_EQ(config.blocking, 1);
          *child = kChild;
          return Status::Ok();
        });
    EXPECT_CALL(nccl_, AllReduce(_, _, _, _, _, kChild, _)).WillOnce(Return(Status::Ok()));
    const size_t aborted = aborted_.size();
    Make(blocking);
    ASSERT_TRUE(Barrier().ok());
    communicator_.reset();
    ASSERT_TRUE(AwaitAborts(aborted + 2));
  }
}

TEST_F(NcclCommunicatorTest, TheChildIsMadeOnceTheParentIsThere) {
  EXPECT_CALL(nccl_, CommInitRankConfig(_, _, _, _))
      .WillOnce([](int, const ncclUniqueId&, int, ncclConfig_t config) {
        EXPECT_EQ(config.blocking, 0) << "an abort must be possible while it is made";
        EXPECT_EQ(config.splitShare, 1);
        EXPECT_EQ(config.minCTAs, 3);
        return Result<ncclComm_t>(kParent);
      });
  ncclComm_t* place = nullptr;
  EXPECT_CALL(nccl_, CommSplit(kParent, 1, _, _))
      .WillOnce([&](ncclComm_t, int, ncclConfig_t config, ncclComm_t* child) {
        EXPECT_EQ(config.blocking, 1);
        EXPECT_EQ(config.minCTAs, 3);
        place = child;
        return Status::Ok();
      });
  // The parent comes up, then the child.
  EXPECT_CALL(nccl_, CommReady(kParent))
      .WillOnce(Return(Result<bool>(false)))
      .WillOnce(Return(Result<bool>(true)))   // the parent is there: split
      .WillOnce(Return(Result<bool>(false)))  // the child is not
      .WillOnce(Return(Result<bool>(false)))
      .WillRepeatedly([&] {
        *place = kChild;
        return Result<bool>(true);
      });
  EXPECT_CALL(nccl_, CommReady(kChild)).Times(0);
  options_.config["nccl.min_ctas"] = "3";
  Make("1");
  EXPECT_EQ(*communicator_->Ready(), false);
  EXPECT_EQ(*communicator_->Ready(), false);
  EXPECT_EQ(*communicator_->Ready(), false);
  EXPECT_EQ(*communicator_->Ready(), true);
  EXPECT_CALL(nccl_, AllReduce(_, _, _, _, _, kChild, _)).Times(2).WillRepeatedly(Return(Status::Ok()));
  ASSERT_TRUE(Barrier().ok());
  // From then on nobody asks whether it is ready.
  EXPECT_CALL(nccl_, CommReady(_)).Times(0);
  ASSERT_TRUE(Barrier().ok());
}

TEST_F(NcclCommunicatorTest, AbortEndsACallThatBlocks) {
  SplitAtOnce();
  Make("1");
  std::promise<void> inside;
  EXPECT_CALL(nccl_, AllReduce(_, _, _, _, _, kChild, _)).WillOnce([&](auto&&...) {
    inside.set_value();
    // As NCCL: until the flag that parent and child share is set.
    EXPECT_TRUE(AwaitAborts(1));
    EXPECT_EQ(NcclCommunicator::AbortsUnderWay(), 1) << "the child's is to come";
    return Internal("ncclAllReduce: aborted");
  });
  auto call = std::async(std::launch::async, [&] { return Barrier(); });
  inside.get_future().wait();
  communicator_->Abort();
  EXPECT_EQ(call.get().code(), Code::kAborted);
  ASSERT_TRUE(AwaitAborts(2));
  EXPECT_THAT(aborted_, testing::ElementsAre(kParent, kChild)) << "the parent first: the child is in use";
  EXPECT_EQ(Barrier().code(), Code::kAborted);
  EXPECT_EQ(communicator_->Ready().status().code(), Code::kAborted);
}

TEST_F(NcclCommunicatorTest, AbortWhileTheChildIsMadeAbortsTheParentOnly) {
  ON_CALL(nccl_, CommSplit(_, _, _, _)).WillByDefault(Return(Status::Ok()));
  EXPECT_CALL(nccl_, CommReady(kParent))
      .WillOnce(Return(Result<bool>(true)))
      .WillRepeatedly(Return(Result<bool>(false)));
  Make("1");
  expected_aborts_ = 1;
  EXPECT_EQ(*communicator_->Ready(), false);
  communicator_->Abort();
  ASSERT_TRUE(AwaitAborts(1));
  EXPECT_EQ(aborted_[0], kParent);
}

TEST_F(NcclCommunicatorTest, AFailedSplitIsReported) {
  ON_CALL(nccl_, CommSplit(_, _, _, _))
      .WillByDefault(Return(NcclStatus("ncclCommSplit", ncclRemoteError, "gone")));
  Make("1");
  expected_aborts_ = 1;
  EXPECT_EQ(communicator_->Ready().status().code(), Code::kUnavailable);
}

TEST_F(NcclCommunicatorTest, OptionsAreChecked) {
  options_.config["nccl.blocking"] = "2";
  EXPECT_THAT(NcclCommunicator::Create(device_, &nccl_, options_).status().message(), HasSubstr("is 0 or 1"));
  options_.config["nccl.blocking"] = "yes";
  EXPECT_THAT(NcclCommunicator::Create(device_, &nccl_, options_).status().message(), HasSubstr("no number"));
}

}  // namespace
}  // namespace tandem::cuda

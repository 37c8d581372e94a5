// When an event was reached, by this machine's clock: an anchor event is looked for until it is there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "drivers/cuda/mock_cuda_driver.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/device/gpu_clock.h"

namespace tandem::cuda {
namespace {

using testing::_;
using testing::NiceMock;
using testing::Return;

const CUstream kStream = reinterpret_cast<CUstream>(0x10);
const CUevent kEvent = reinterpret_cast<CUevent>(0x20);

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class EventClockTest : public testing::Test {
 protected:
  EventClockTest() { MakeUsable(driver_, size_t{2} << 20, nullptr, kStream, kEvent); }
  NiceMock<MockCudaDriver> driver_;
};

TEST_F(EventClockTest, CountsFromALookThatFoundTheAnchor) {
  int looks = 0;
  ON_CALL(driver_, EventQuery(_)).WillByDefault([&looks](CUevent) -> Result<bool> {
    return ++looks % 3 == 0;
  });
  // A machine that stops this thread between two looks makes the clock sleep; it has looked before.
  ON_CALL(driver_, StreamSynchronize(_)).WillByDefault([&looks](CUstream) {
    EXPECT_GT(looks, 0);
    return Status::Ok();
  });
  ON_CALL(driver_, EventElapsedTime(_, _)).WillByDefault(Return(2.5f));
  const int64_t before = NowNs();
  auto device = CudaDevice::Create(&driver_, 0);
  ASSERT_TRUE(device.ok()) << device.status().ToString();
  const int64_t after = NowNs();
  const auto time = (*device)->EventTimeNs(kEvent);
  ASSERT_TRUE(time.ok());
  EXPECT_GE(looks, 3);
  EXPECT_GE(*time, before + 2'500'000);
  EXPECT_LE(*time, after + 2'500'000);
}

TEST_F(EventClockTest, SleepsBehindAnAnchorThatTakesLong) {
  EXPECT_CALL(driver_, EventQuery(_)).WillRepeatedly([](CUevent) -> Result<bool> { return false; });
  EXPECT_CALL(driver_, StreamSynchronize(kStream))
      .Times(testing::AtLeast(1))
      .WillRepeatedly(Return(Status::Ok()));
  EXPECT_TRUE(CudaDevice::Create(&driver_, 0).ok());
}

TEST_F(EventClockTest, SaysWhatALookFailedWith) {
  EXPECT_CALL(driver_, EventQuery(_)).WillOnce([](CUevent) -> Result<bool> {
    return Aborted("context lost");
  });
  EXPECT_EQ(CudaDevice::Create(&driver_, 0).status(), Aborted("context lost"));
}

TEST(GpuClock, GoesAtThePaceOfTheLastTwoAnchors) {
  GpuClock clock;
  EXPECT_FALSE(clock.anchored());
  clock.Anchor(1'000'000'000, 0);
  EXPECT_TRUE(clock.anchored());
  EXPECT_EQ(clock.TimeNs(2.0), 1'002'000'000);
  // 4 s of the CPU's were 20 us less of the GPU's.
  clock.Anchor(5'000'000'000, 3999.98);
  EXPECT_EQ(clock.anchor_ns(), 5'000'000'000);
  EXPECT_NEAR(static_cast<double>(clock.TimeNs(1999.99)), 7e9, 10);
  EXPECT_NEAR(static_cast<double>(clock.TimeNs(-1999.99)), 3e9, 10);
}

TEST(GpuClock, BelievesNoPaceThatNoClockHas) {
  GpuClock clock;
  clock.Anchor(1'000'000'000, 0);
  clock.Anchor(5'000'000'000, 3999.98);
  clock.Anchor(9'002'000'000, 3999.98);  // a look that came 2 ms late
  EXPECT_NEAR(static_cast<double>(clock.TimeNs(1999.99)), 11'002'000'000.0, 10);
  clock.Anchor(9'002'000'000, 0);
  EXPECT_NEAR(static_cast<double>(clock.TimeNs(1999.99)), 11'002'000'000.0, 10);
}

}  // namespace
}  // namespace tandem::cuda

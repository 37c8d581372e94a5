#include "common/descriptor_reserve.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

namespace tandem {
namespace {

// Sets the soft limit while it exists.
class SoftLimit {
 public:
  explicit SoftLimit(rlim_t limit) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit changed{limit, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &changed), 0);
  }
  ~SoftLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST(DescriptorReserveTest, ClientsLeaveAQuarterAndOperatorsMayHaveAll) {
  const SoftLimit limit(800);
  EXPECT_TRUE(LeavesReserve(599, DescriptorUse::kClient));
  EXPECT_FALSE(LeavesReserve(600, DescriptorUse::kClient));
  EXPECT_TRUE(LeavesReserve(799, DescriptorUse::kOperator));
}

// A client that attaches has more than its lease: without room for all of it there is none.
TEST(DescriptorReserveTest, AClientNeedsRoomForItsConnectionsAndHearsWhoseLimitIsMet) {
  const SoftLimit limit(800);
  EXPECT_TRUE(HasRoomForClient(590));
  EXPECT_FALSE(HasRoomForClient(599));
  const Status status = TooFewDescriptors();
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_EQ(status.detail().reason, "FD_LIMIT");
  EXPECT_EQ(status.detail().limit, 800);
  EXPECT_EQ(status.detail().pid, ::getpid());
  EXPECT_NE(status.message().find("800"), std::string::npos) << status.message();
}

TEST(DescriptorReserveTest, TandemdNeedsDescriptorsByItsGpus) {
  const SoftLimit limit(100);
  EXPECT_TRUE(CheckDescriptorLimit(1).ok());
  const Status status = CheckDescriptorLimit(8);
  EXPECT_EQ(status.detail().reason, "FD_LIMIT");
  EXPECT_NE(status.message().find("192 descriptors for 8 GPUs"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("may have 100"), std::string::npos) << status.message();
}

TEST(DescriptorReserveTest, OneUserHasAPartOfTheLimit) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_GT(DescriptorsOfOneUser(), 0u);
  EXPECT_LE(DescriptorsOfOneUser(), limit.rlim_max / 4 + (limit.rlim_max == RLIM_INFINITY ? ~0ull : 0));
}

}  // namespace
}  // namespace tandem

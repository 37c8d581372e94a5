#include "common/descriptor_reserve.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

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

TEST(DescriptorReserveTest, ClientsLeaveMoreThanLeasesAndOperatorsMayHaveAll) {
  const SoftLimit limit(800);
  EXPECT_TRUE(LeavesReserve(599, DescriptorUse::kClient));
  EXPECT_FALSE(LeavesReserve(600, DescriptorUse::kClient));
  EXPECT_TRUE(LeavesReserve(699, DescriptorUse::kLease));
  EXPECT_FALSE(LeavesReserve(700, DescriptorUse::kLease));
  EXPECT_TRUE(LeavesReserve(799, DescriptorUse::kOperator));
}

TEST(DescriptorReserveTest, OneUserHasAPartOfTheLimit) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_GT(DescriptorsOfOneUser(), 0u);
  EXPECT_LE(DescriptorsOfOneUser(), limit.rlim_max / 4 + (limit.rlim_max == RLIM_INFINITY ? ~0ull : 0));
}

}  // namespace
}  // namespace tandem

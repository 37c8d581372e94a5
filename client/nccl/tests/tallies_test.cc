// The line at a process's end.
#include "client/nccl/tallies.h"

#include <gtest/gtest.h>

namespace tandem::nccl {
namespace {

TEST(NcclTallies, NoCallsHaveNoLine) { EXPECT_EQ(CallTallies().Line(), ""); }

TEST(NcclTallies, TheMostFrequentReasonIsFirst) {
  CallTallies tallies;
  tallies.Add("of this");
  for (int i = 0; i < 2; ++i) tallies.Add("of that");
  for (int i = 0; i < 3; ++i) tallies.Add("");
  EXPECT_EQ(tallies.Line(), "ran 3 of 6 collectives of NCCL; 2 not, since of that; 1 not, since of this");
}

}  // namespace
}  // namespace tandem::nccl

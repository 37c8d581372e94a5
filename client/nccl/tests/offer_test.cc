// When Tandem serves the ranks of a communicator.
#include "client/nccl/offer.h"

#include <gmock/gmock.h>

#include <vector>

namespace tandem::nccl {
namespace {

using testing::HasSubstr;

std::vector<Offer> Good() {
  std::vector<Offer> offers(3);
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    SetText(&offers[rank].process, "process " + std::to_string(rank));
    SetText(&offers[rank].daemon, "boot:1:2");
    SetText(&offers[rank].gpu, "GPU-" + std::to_string(rank));
  }
  return offers;
}

TEST(Offer, ProcessesOfOneDaemonWithAGpuEachAreServed) { EXPECT_EQ(WhyNotServed(Good()), ""); }

TEST(Offer, OneRankThatCannotLeavesAllToNccl) {
  auto offers = Good();
  SetText(&offers[2].refused, "no daemon answers");
  EXPECT_EQ(WhyNotServed(offers), "rank 2 cannot be served: no daemon answers");
}

TEST(Offer, AnotherNodesRanksAreNotServed) {
  auto offers = Good();
  SetText(&offers[1].daemon, "boot:1:3");
  EXPECT_THAT(WhyNotServed(offers), HasSubstr("rank 1"));
}

TEST(Offer, ThreadsOfOneProcessAreNotServed) {
  auto offers = Good();
  offers[1].process = offers[0].process;
  EXPECT_EQ(WhyNotServed(offers), "ranks 0 and 1 are of one process");
}

TEST(Offer, RanksThatShareAGpuAreNotServed) {
  auto offers = Good();
  offers[2].gpu = offers[0].gpu;
  EXPECT_EQ(WhyNotServed(offers), "ranks 0 and 2 share a GPU");
}

TEST(Offer, AnotherVersionIsNotServedWhateverElseItSays) {
  auto offers = Good();
  offers[1].version = 2;
  SetText(&offers[0].refused, "no daemon answers");
  EXPECT_THAT(WhyNotServed(offers), HasSubstr("another version"));
}

TEST(Offer, LongTextsAreCut) {
  Offer offer;
  SetText(&offer.refused, std::string(1000, 'x'));
  EXPECT_EQ(TextOf(offer.refused), std::string(243, 'x'));
}

}  // namespace
}  // namespace tandem::nccl

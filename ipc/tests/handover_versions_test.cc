// Builds take each other's engines over by their versions.
#include "ipc/handover_versions.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(HandoverVersions, AreThoseOfEveryPart) {
  const auto versions = HandoverVersions();
  for (const char* name : {"channel", "commands", "program", "protocol", "records", "state"}) {
    ASSERT_TRUE(versions.contains(name)) << name;
    EXPECT_GT(versions.at(name), 0u) << name;
  }
  EXPECT_EQ(versions.size(), 6u);
  EXPECT_EQ(HandoverDifferences(versions, versions), "");
}

TEST(HandoverVersions, EachDifferenceIsNamed) {
  const std::map<std::string, uint32_t> ours = {{"program", 1}, {"state", 2}};
  EXPECT_EQ(HandoverDifferences({{"program", 1}, {"state", 1}}, ours), "state is 1, tandemd's is 2");
  EXPECT_EQ(HandoverDifferences({{"program", 3}, {"state", 3}}, ours),
            "program is 3, tandemd's is 1; state is 3, tandemd's is 2");
}

TEST(HandoverVersions, ANameThatOneSideLacksIsADifference) {
  const std::map<std::string, uint32_t> ours = {{"program", 1}};
  EXPECT_EQ(HandoverDifferences({}, ours), "program is not known, tandemd's is 1");
  EXPECT_EQ(HandoverDifferences({{"graphs", 4}, {"program", 1}}, ours),
            "graphs is 4, tandemd's is not known");
}

}  // namespace
}  // namespace tandem

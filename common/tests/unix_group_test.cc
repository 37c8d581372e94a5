#include "common/unix_group.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(UnixGroupTest, FindsNamesAndNumbers) {
  auto root = FindGroup("root");
  ASSERT_TRUE(root.ok()) << root.status().ToString();
  EXPECT_EQ(*root, 0u);
  auto number = FindGroup("54321");
  ASSERT_TRUE(number.ok()) << number.status().ToString();
  EXPECT_EQ(*number, 54321u);
}

TEST(UnixGroupTest, RefusesWhatIsNoGroup) {
  for (const char* bad : {"no-such-group-here", "", "-1", "12x", "4294967295", "99999999999"}) {
    EXPECT_EQ(FindGroup(bad).status().code(), Code::kNotFound) << bad;
  }
}

}  // namespace
}  // namespace tandem

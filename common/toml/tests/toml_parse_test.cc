#include "common/toml/toml_parse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace tandem {
namespace {

using ::testing::StartsWith;

TEST(ParseToml, ReadsATable) {
  Result<toml::table> table = ParseToml("a = 1\n[b]\nc = 'ü'\n", "f");
  ASSERT_TRUE(table.ok()) << table.status().ToString();
  EXPECT_EQ((*table)["a"].value<int>(), 1);
  EXPECT_EQ((*table)["b"]["c"].value<std::string>(), "ü");
  EXPECT_EQ(table->get("b")->source().begin.line, 2u);
}

TEST(ParseToml, ErrorsNameTheLine) {
  EXPECT_THAT(ParseToml("a = 1\na = 2", "f").status().message(), StartsWith("f:2: "));
  EXPECT_THAT(ParseToml("a = ", "f").status().message(), StartsWith("f:1: "));
  EXPECT_THAT(ParseToml("\n\nü = 1", "f").status().message(), StartsWith("f:3: "));
  EXPECT_FALSE(ParseToml(std::string(100000, '['), "f").ok());
  EXPECT_FALSE(ParseToml("a = " + std::string(100000, '['), "f").ok());
}

// Each of these breaks an assertion of toml++ 3.3.
TEST(ParseToml, InputThatBreaksTomlPlusPlusIsAnErrorLikeAnyOther) {
  for (const char* text : {"[@x]", "a = [}]", "a = 1\n\n[@x]\nb = 1\n", "a = [\n1,\n}x = 1,\n2]\nb = 3\n"}) {
    Result<toml::table> table = ParseToml(text, "f");
    ASSERT_FALSE(table.ok()) << text;
    EXPECT_EQ(table.status().code(), Code::kInvalidArgument);
  }
  EXPECT_THAT(ParseToml("a = 1\n\n[@x]\nb = 1\n", "f").status().message(), StartsWith("f:3: "));
  EXPECT_THAT(ParseToml("a = [\n1,\n}x = 1,\n2]\nb = 3\n", "f").status().message(), StartsWith("f:3: "));
}

}  // namespace
}  // namespace tandem

#include "common/utf8.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(Utf8, TakesWellFormedTextOnly) {
  for (const char* text :
       {"", "plain", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf", "\xed\x9f\xbf"})
    EXPECT_TRUE(IsUtf8(text)) << text;
  for (const char* text :
       {"\xff", "a\x80", "\xc3", "\xc0\x80", "\xe2\x82", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80",
        "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "\xc3(", "\xe2(\xa1"})
    EXPECT_FALSE(IsUtf8(text)) << text;
}

TEST(Utf8, ReplacesWhatIsNot) {
  EXPECT_EQ(AsUtf8("caf\xc3\xa9"), "caf\xc3\xa9");
  EXPECT_EQ(AsUtf8("caf\xe9"), "caf?");
}

}  // namespace
}  // namespace tandem

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

TEST(Utf8, ControlCharactersOfAllKindsAreFoundAndNotShown) {
  // Escape, C1's CSI, line separator, right-to-left override, isolate, Arabic letter mark.
  for (const char* text :
       {"a\x1b[2J", "a\xc2\x9b", "a\xe2\x80\xa8", "a\xe2\x80\xae", "a\xe2\x81\xa6", "a\xd8\x9c"}) {
    EXPECT_TRUE(HasControlCharacters(text)) << text;
    EXPECT_FALSE(HasControlCharacters(WithoutControlCharacters(text))) << text;
    EXPECT_TRUE(WithoutControlCharacters(text).starts_with("a ")) << text;
  }
  for (const char* text : {"", "caf\xc3\xa9", "\xe2\x82\xac 5", "\xd7\xa9\xd7\x9c"}) {
    EXPECT_FALSE(HasControlCharacters(text)) << text;
    EXPECT_EQ(WithoutControlCharacters(text), text);
  }
}

TEST(Utf8, BytesThatAreNoTextAreNotShown) {
  EXPECT_EQ(WithoutControlCharacters("a\x9b"
                                     "31mb"),
            "a?31mb");
  EXPECT_EQ(WithoutControlCharacters("\xe2\x80"), "??");
}

}  // namespace
}  // namespace tandem

#include "common/toml/toml_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

namespace tandem {
namespace {

using ::testing::HasSubstr;

int BadLine(std::string_view text) {
  Status status = CheckTomlText(text, "f");
  if (status.ok()) return 0;
  int line = -1;
  std::sscanf(status.message().c_str(), "f:%d:", &line);
  return line;
}

TEST(CheckTomlText, StringsAndCommentsMayHoldAnyCharacter) {
  for (const char* good :
       {"", "a = 1", "# ü\na = \"ü\" # ü\nb = 'ü'\n", "a = 'it\\'\n# ü", "a = \"\\\"ü\"", "a = \"\\\\ü\"",
        "\xef\xbb\xbf"
        "a = 1",
        "a = \"\"\"x\"\"\"\n# ü", "a = ''\nb = 'ü'", "a = \"\"\"x\"\"\"\"\"\n# ü", "a = \"it's\" # ü",
        "a = \"\"\"\n\\\"\"\"\n\"\"\" # ü"}) {
    EXPECT_EQ(BadLine(good), 0) << good;
  }
}

TEST(CheckTomlText, ElsewhereTheLineIsNamed) {
  EXPECT_EQ(BadLine("ü = 1"), 1);
  EXPECT_EQ(BadLine("a = 1\n\nb =\xc2\xa0"
                    "2"),
            3);
  EXPECT_EQ(BadLine("a = \"\" ü"), 1);
  EXPECT_EQ(BadLine("a = \"\\ü\""), 1);
  EXPECT_EQ(BadLine("a = \"\"\"\nü\"\"\""), 2);
  EXPECT_EQ(BadLine("a = '''\n\nü'''"), 3);
  EXPECT_EQ(BadLine("a = \"open\nü"), 2);
  EXPECT_EQ(BadLine("# c\nü"), 2);
  EXPECT_EQ(BadLine("a = 3\"ü\""), 1) << "the quote is in the middle of a malformed value";
  EXPECT_EQ(BadLine(std::string_view("a = 1\n# \0", 9)), 2);
  EXPECT_EQ(BadLine("a = '\x7f'"), 1);
  EXPECT_EQ(BadLine("\na = 1.\"=\""), 2);
  EXPECT_EQ(BadLine("\na = 'b''c'"), 2);
  EXPECT_EQ(BadLine("a =\xef\xbb\xbe"), 1);
}

TEST(QuoteToml, EscapesWhatMustBe) {
  EXPECT_EQ(QuoteToml("a\"b\\c\n\x7f ü"), "\"a\\\"b\\\\c\\u000A\\u007F ü\"");
  EXPECT_EQ(QuoteToml(""), "\"\"");
}

TEST(ReadTextFile, ReadsOrSaysWhyNot) {
  EXPECT_EQ(ReadTextFile("/nonexistent/x.toml").status().code(), Code::kNotFound);
  EXPECT_THAT(ReadTextFile("/nonexistent/x.toml").status().message(), HasSubstr("/nonexistent/x.toml"));
  EXPECT_FALSE(ReadTextFile("/").ok());
  std::string path = ::testing::TempDir() + "toml_text_test.toml";
  std::string text(size_t{1} << 20, '#');
  std::ofstream(path) << text;
  Result<std::string> whole = ReadTextFile(path);
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(*whole, text);
  std::ofstream(path, std::ios::app) << "#";
  EXPECT_THAT(ReadTextFile(path).status().message(), HasSubstr("larger than 1 MiB"));
  std::remove(path.c_str());
}

}  // namespace
}  // namespace tandem

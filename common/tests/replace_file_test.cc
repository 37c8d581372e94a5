// A file is replaced as a whole, or stays as it was.
#include "common/replace_file.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>

namespace tandem {
namespace {

std::string Read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(ReplaceFile, WritesWholeAndLeavesNothingBeside) {
  std::string directory = ::testing::TempDir() + "replace.XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  const std::string path = directory + "/a/b/file";
  ASSERT_TRUE(ReplaceFile(path, "first, and longer").ok());
  EXPECT_EQ(Read(path), "first, and longer");
  ASSERT_TRUE(ReplaceFile(path, "second").ok());
  EXPECT_EQ(Read(path), "second");
  EXPECT_FALSE(std::filesystem::exists(path + ".new"));
  // Where a directory is in the way the file before stays.
  std::filesystem::create_directory(path + ".new");
  const Status refused = ReplaceFile(path, "third");
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_NE(refused.message().find(path), std::string::npos);
  EXPECT_EQ(Read(path), "second");
  EXPECT_EQ(ReplaceFile(path + "/below/a/file", "text").code(), Code::kUnavailable);
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace tandem

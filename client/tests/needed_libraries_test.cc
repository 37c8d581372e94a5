#include "client/lib/needed_libraries.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>

namespace tandem::client {
namespace {

TEST(NeededLibraries, AreTheProgramsOwn) {
  Result<std::vector<std::string>> needed = NeededLibraries("/proc/self/exe");
  ASSERT_TRUE(needed.ok()) << needed.status().message();
  EXPECT_NE(std::find(needed->begin(), needed->end(), "libc.so.6"), needed->end());
  EXPECT_EQ(std::count(needed->begin(), needed->end(), ""), 0);
}

TEST(NeededLibraries, OfFilesThatAreNone) {
  EXPECT_EQ(NeededLibraries("/nonexistent").status().code(), Code::kNotFound);
  EXPECT_EQ(NeededLibraries("/proc/self/status").status().code(), Code::kInvalidArgument);
}

// A file that ends anywhere is read to its end, and no further: the sanitizers see it.
TEST(NeededLibraries, OfHalvesOfALibrary) {
  std::ifstream stream("/proc/self/exe", std::ios::binary);
  std::string whole(4096, '\0');
  ASSERT_TRUE(stream.read(whole.data(), static_cast<std::streamsize>(whole.size())));
  const std::string path = testing::TempDir() + "half_a_library";
  for (size_t size = 0; size < whole.size(); size += 8) {
    std::ofstream(path, std::ios::binary) << whole.substr(0, size);
    Result<std::vector<std::string>> needed = NeededLibraries(path);
    EXPECT_TRUE(!needed.ok() || needed->empty()) << size;
  }
  std::remove(path.c_str());
}

}  // namespace
}  // namespace tandem::client

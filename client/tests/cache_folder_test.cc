#include "client/lib/base/cache_folder.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

namespace tandem::client {
namespace {

// The environment's variables for a test; the former ones come back.
class CacheFolderTest : public testing::Test {
 protected:
  CacheFolderTest() {
    for (const char* name : {"TANDEM_CACHE_DIR", "XDG_CACHE_HOME", "HOME"}) {
      if (const char* value = std::getenv(name)) former_[name] = value;
      ::unsetenv(name);
    }
  }
  ~CacheFolderTest() override {
    for (const char* name : {"TANDEM_CACHE_DIR", "XDG_CACHE_HOME", "HOME"}) {
      ::unsetenv(name);
      if (const auto value = former_.find(name); value != former_.end())
        ::setenv(name, value->second.c_str(), 1);
    }
  }

 private:
  std::map<std::string, std::string> former_;
};

TEST_F(CacheFolderTest, TheNearestNameHolds) {
  EXPECT_EQ(CacheFolder(), "");
  ::setenv("HOME", "/home/someone", 1);
  EXPECT_EQ(CacheFolder(), "/home/someone/.cache/tandem");
  ::setenv("XDG_CACHE_HOME", "/var/cache/someone", 1);
  EXPECT_EQ(CacheFolder(), "/var/cache/someone/tandem");
  ::setenv("TANDEM_CACHE_DIR", "/scratch/choices", 1);
  EXPECT_EQ(CacheFolder(), "/scratch/choices");
  ::setenv("TANDEM_CACHE_DIR", "", 1);
  EXPECT_EQ(CacheFolder(), "") << "an empty one switches the cache off";
}

TEST_F(CacheFolderTest, FoldersThatDependOnTheWorkingFolderDoNotCount) {
  ::setenv("XDG_CACHE_HOME", "cache", 1);
  ::setenv("HOME", ".", 1);
  EXPECT_EQ(CacheFolder(), "");
}

}  // namespace
}  // namespace tandem::client

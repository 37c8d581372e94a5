// Where the real NCCL is looked for.
#include <gmock/gmock.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "client/nccl/nccl_places.h"

namespace tandem::nccl {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Not;

TEST(Places, TheCacheHasPathsBetweenZeroes) {
  const std::string bytes(
      "head\0libnccl.so.2\0/opt/a/libnccl.so.2\0/usr/lib/libnccl.so.2.28\0/b/libnccl.so.2\0", 82);
  EXPECT_THAT(PathsInCache(bytes), ElementsAre("/opt/a/libnccl.so.2", "/b/libnccl.so.2"));
  EXPECT_THAT(PathsInCache(""), ElementsAre());
}

TEST(Places, TheWheelLiesBesideOtherPackages) {
  EXPECT_EQ(WheelsPath("/venv/lib/python3.12/site-packages/torch/lib/libtorch_cuda.so"),
            "/venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2");
  EXPECT_EQ(WheelsPath("/usr/lib/libc.so.6"), "");
}

TEST(Places, TheVariableGoesBeforeAll) {
  ::setenv("TANDEM_NCCL_LIBRARY", "/given", 1);
  EXPECT_THAT(NcclPlaces("/own"), ElementsAre("/given"));
  ::unsetenv("TANDEM_NCCL_LIBRARY");
}

TEST(Places, TheLoadersPathIsSearchedButForThisLibrary) {
  const auto folder = std::filesystem::temp_directory_path() / ("places-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder / "a");
  std::filesystem::create_directories(folder / "b");
  const std::string one = folder / "a" / "libnccl.so.2", other = folder / "b" / "libnccl.so.2";
  std::ofstream(one) << "1";
  std::ofstream(other) << "2";
  ::setenv("LD_LIBRARY_PATH", ((folder / "a").string() + "::" + (folder / "b").string()).c_str(), 1);
  EXPECT_THAT(NcclPlaces(one), Contains(other));
  EXPECT_THAT(NcclPlaces(one), Not(Contains(one)));
  ::unsetenv("LD_LIBRARY_PATH");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tandem::nccl

#include "daemon/main/check_start.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace tandem::daemon {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

class CheckStartTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/check.XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    good_.runtime_dir = directory_ + "/run/tandem";
    good_.state_dir = directory_ + "/state";
    good_.engine_path = "/bin/true";
    good_.backend = BackendKind::kHost;
    good_.socket_group = "root";
    good_.metrics_listen = "127.0.0.1:0";
    good_.http.allow_plain = true;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string directory_;
  Config good_;
};

TEST_F(CheckStartTest, AGoodConfigurationHasNoProblem) {
  EXPECT_THAT(CheckStart(good_), IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(good_.runtime_dir)) << "it makes nothing";
}

TEST_F(CheckStartTest, EachProblemIsNamedByItsKey) {
  const auto problem = [this](auto change) {
    Config config = good_;
    change(config);
    std::vector<std::string> problems = CheckStart(config);
    return problems.size() == 1 ? problems[0] : std::to_string(problems.size()) + " problems";
  };
  EXPECT_THAT(problem([](Config& c) { c.engine_path = "/nonexistent/tandem-engine"; }),
              StartsWith("engine_path: /nonexistent/tandem-engine"));
  EXPECT_THAT(problem([this](Config& c) { c.engine_path = directory_; }), StartsWith("engine_path: "));
  EXPECT_THAT(problem([](Config& c) { c.topology_file = "/nonexistent.toml"; }),
              HasSubstr("/nonexistent.toml"));
  EXPECT_THAT(problem([](Config& c) { c.tuning_dir = "/nonexistent"; }),
              StartsWith("tuning_dir: /nonexistent"));
  EXPECT_THAT(problem([](Config& c) { c.socket_group = "no-such-group-here"; }),
              StartsWith("socket_group: "));
  EXPECT_THAT(problem([](Config& c) { c.metrics_listen = "no-such-host.invalid:9464"; }),
              StartsWith("metrics.listen: "));
  // An address for documentation (RFC 5737), which no machine has.
  EXPECT_THAT(problem([](Config& c) { c.metrics_listen = "192.0.2.1:9464"; }),
              StartsWith("metrics.listen: "));
  EXPECT_THAT(problem([](Config& c) { c.web_listen = "192.0.2.1:9465"; }), StartsWith("web.listen: "));
  EXPECT_THAT(problem([](Config& c) {
                c.web_listen = "0.0.0.0:0";
                c.http.allow_plain = false;
              }),
              HasSubstr("web.listen: others reach 0.0.0.0:0, so http.certificate and http.key, http.user"));
  EXPECT_THAT(problem([](Config& c) {
                c.http.user = "tandem";
                c.http.password_file = "/nonexistent/password";
              }),
              StartsWith("http: open /nonexistent/password"));
  EXPECT_THAT(problem([this](Config& c) {
                std::ofstream(directory_ + "/file") << "x";
                c.state_dir = directory_ + "/file/state";
              }),
              StartsWith("state_dir: "));
  EXPECT_THAT(problem([this](Config& c) {
                std::filesystem::create_directories(directory_ + "/run");
                std::filesystem::create_directory_symlink(directory_ + "/run", directory_ + "/link");
                c.admin_dir = directory_ + "/link/tandem/admin";
              }),
              StartsWith("admin_dir: "));
}

TEST_F(CheckStartTest, ABackendThatIsNotThereIsNamed) {
  good_.backend = BackendKind::kCuda;
  const NodeSources none = {.cuda_built = true, .open_nvml = []() -> Result<std::unique_ptr<NvmlApi>> {
                              return Unavailable("no NVML");
                            }};
  EXPECT_THAT(CheckStart(good_, none),
              ElementsAre(testing::AllOf(StartsWith("backend: "), HasSubstr("no NVML"))));
}

}  // namespace
}  // namespace tandem::daemon

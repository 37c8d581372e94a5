#include "daemon/config/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A fresh directory, removed at the end.
class ConfigFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "config_test_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string Write(const std::string& name, const std::string& text) {
    std::filesystem::path path = std::filesystem::path(directory_) / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path.string();
  }

  std::string directory_;
};

Status Parse(std::string_view text, Config& config) { return ParseConfigText(text, "t.toml", config); }

TEST(ParseConfigText, SetsWhatTheTextHasAndNothingElse) {
  Config config;
  config.hardware_queues = 3;
  Status status = Parse(
      "backend = \"host\"\nemulated_gpus = 8\nemulated_memory_bytes = \"512 MiB\"\n[quotas]\nplans = "
      "7\n[debug]\n"
      "verify_plans = true\n",
      config);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(config.backend, BackendKind::kHost);
  EXPECT_EQ(config.emulated_gpus, 8);
  EXPECT_EQ(config.emulated_memory_bytes, int64_t{512} << 20);
  EXPECT_EQ(config.quotas.plans, 7);
  EXPECT_TRUE(config.testing.verify_plans);
  EXPECT_EQ(config.hardware_queues, 3);
  EXPECT_EQ(config.quotas.groups, QuotaConfig().groups);
}

TEST(ParseConfigText, DottedKeysAreTables) {
  Config config;
  ASSERT_TRUE(Parse("quotas.plans = 5\nmetrics = {listen = \"127.0.0.1:1\"}", config).ok());
  EXPECT_EQ(config.quotas.plans, 5);
  EXPECT_EQ(config.metrics_listen, "127.0.0.1:1");
}

TEST(ParseConfigText, UnknownKeysNameLineAndNearestKey) {
  Config config;
  Status status = Parse("backend = \"host\"\n\nemulated_gpu = 2\n", config);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.message(), "t.toml:3: unknown key 'emulated_gpu'; did you mean 'emulated_gpus'?");
  EXPECT_EQ(config.backend, BackendKind::kAuto) << "a failed text must change nothing";
  EXPECT_EQ(Parse("[quotas]\n\nplan = 2\n", config).message(),
            "t.toml:3: unknown key 'quotas.plan'; did you mean 'quotas.plans'?");
  EXPECT_EQ(Parse("\n[quota]\nplans = 2\n", config).message(),
            "t.toml:2: unknown key 'quota.plans'; did you mean 'quotas.plans'?");
  EXPECT_EQ(Parse("[zzzzzzzzzzzz]\n", config).message(), "t.toml:1: unknown key 'zzzzzzzzzzzz'");
  EXPECT_THAT(Parse("quotas = 1", config).message(), HasSubstr("unknown key 'quotas'"));
  EXPECT_THAT(Parse("[quotas.plans]\nx = 1", config).message(), HasSubstr("quotas.plans must be"));
  EXPECT_THAT(Parse("[backend]\nx = 1", config).message(), HasSubstr("unknown key 'backend.x'"));
}

TEST(ParseConfigText, OldNamesAreReadAndReported) {
  Config config;
  Status status = Parse("engines_per_gpu = 2\n\n[debug]\nverify_plans = true\n", config);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(config.testing.engines_per_gpu, 2);
  EXPECT_TRUE(config.testing.verify_plans);
  ASSERT_EQ(config.old_names.size(), 2u);
  EXPECT_THAT(config.old_names[0] + config.old_names[1],
              HasSubstr("t.toml:4: debug.verify_plans is now testing.verify_plans"));
  EXPECT_EQ(Parse("[debug]\nemulated_fused = true\n", config).message(),
            "t.toml:2: unknown key 'debug.emulated_fused'; did you mean 'testing.emulated_fused'?");
}

TEST(ParseConfigText, ErrorsNameTheLine) {
  Config config;
  EXPECT_EQ(Parse("\nemulated_gpus = 9", config).message(),
            "t.toml:2: emulated_gpus = 9 is out of range; the limits are 1 to 8");
  EXPECT_EQ(Parse("\nemulated_gpus = 9", config).code(), Code::kOutOfRange);
  EXPECT_THAT(Parse("emulated_gpus = 1\nemulated_gpus = 2", config).message(), StartsWith("t.toml:2: "));
  EXPECT_THAT(Parse("backend = \n", config).message(), StartsWith("t.toml:1: "));
  EXPECT_THAT(Parse("hardware_queues = 1.5", config).message(),
              HasSubstr("must be a string, an integer or a boolean"));
  EXPECT_THAT(Parse("hardware_queues = [1]", config).message(),
              HasSubstr("t.toml:1: hardware_queues must be"));
  EXPECT_THAT(Parse("runtime_dir = \"\xff\xfe\"", config).message(), StartsWith("t.toml:1: "));
  EXPECT_FALSE(Parse(std::string(5000, '['), config).ok());
  EXPECT_EQ(config.emulated_gpus, Config().emulated_gpus);
}

TEST_F(ConfigFileTest, DropInsGoOverTheFileInTheOrderOfNames) {
  std::string path = Write("tandemd.toml", "hardware_queues = 1\nemulated_gpus = 1\njoin_deadline_ms = 1\n");
  Write("config.d/20-b.toml", "hardware_queues = 20\n");
  Write("config.d/10-a.toml", "hardware_queues = 10\nemulated_gpus = 2\n");
  Write("config.d/notes.txt", "not TOML");
  Write("config.d/.hidden.toml", "not TOML");
  Result<Config> config = LoadConfig(path);
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->hardware_queues, 20);
  EXPECT_EQ(config->emulated_gpus, 2);
  EXPECT_EQ(config->join_deadline_ms, 1);
}

TEST_F(ConfigFileTest, ErrorsNameTheDropIn) {
  std::string path = Write("tandemd.toml", "");
  Write("config.d/10.toml", "\n\nhardware_queue = 10\n");
  Result<Config> config = LoadConfig(path);
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(config.status().message(), AllOf(StartsWith(directory_ + "/config.d/10.toml:3: "),
                                               HasSubstr("did you mean 'hardware_queues'?")));
}

TEST_F(ConfigFileTest, ADropInMayMendAnOrderThatTheFileAloneBreaks) {
  std::string path = Write("tandemd.toml", "[supervisor]\nbackoff_initial_ms = 20000\n");
  EXPECT_THAT(LoadConfig(path).status().message(), HasSubstr("must not exceed supervisor.backoff_max_ms"));
  Write("config.d/a.toml", "supervisor.backoff_max_ms = 30000\n");
  EXPECT_TRUE(LoadConfig(path).ok());
}

TEST_F(ConfigFileTest, FilesThatCannotBeReadSayWhy) {
  Result<Config> absent = LoadConfig(directory_ + "/absent.toml");
  ASSERT_FALSE(absent.ok());
  EXPECT_EQ(absent.status().code(), Code::kNotFound);
  EXPECT_THAT(absent.status().message(), HasSubstr("absent.toml"));
  EXPECT_FALSE(LoadConfig(directory_).ok());
  EXPECT_THAT(LoadConfig(Write("big.toml", std::string((1 << 20) + 1, '#'))).status().message(),
              HasSubstr("larger than 1 MiB"));
}

}  // namespace
}  // namespace tandem

#include "daemon/config/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "common/build/build_version.h"
#include "daemon/config/config_file.h"
#include "daemon/config/config_keys.h"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Result<DaemonCommandLine> Parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "tandemd");
  return ParseCommandLine(static_cast<int>(arguments.size()), arguments.data());
}

// A configuration file for one test.
class CommandLineFile : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "command_line_XXXXXX.toml";
    int fd = mkstemps(path_.data(), 5);
    ASSERT_GE(fd, 0);
    close(fd);
    std::ofstream(path_) << "emulated_gpus = 2\nhardware_queues = 16\n";
  }
  void TearDown() override { std::remove(path_.c_str()); }

  std::string path_;
};

TEST_F(CommandLineFile, FlagsGoOverTheFileAndTheFileOverDefaults) {
  Result<DaemonCommandLine> line =
      Parse({"--config", path_.c_str(), "--emulated-gpus", "8", "--quotas-plans=9"});
  ASSERT_TRUE(line.ok()) << line.status().ToString();
  EXPECT_EQ(line->action, DaemonCommandLine::Action::kRun);
  EXPECT_EQ(line->config_path, path_);
  EXPECT_EQ(line->config.emulated_gpus, 8);
  EXPECT_EQ(line->config.hardware_queues, 16);
  EXPECT_EQ(line->config.quotas.plans, 9);
  EXPECT_EQ(line->config.join_deadline_ms, Config().join_deadline_ms);
}

TEST_F(CommandLineFile, PrintedConfigParsesBackToWhatIsInForce) {
  Result<DaemonCommandLine> line = Parse({"--config", path_.c_str(), "--print-config", "--backend", "host"});
  ASSERT_TRUE(line.ok()) << line.status().ToString();
  EXPECT_EQ(line->action, DaemonCommandLine::Action::kPrint);
  Config parsed;
  ASSERT_TRUE(ParseConfigText(line->output, "printed", parsed).ok());
  EXPECT_EQ(parsed.backend, BackendKind::kHost);
  EXPECT_EQ(parsed.hardware_queues, 16);
  EXPECT_EQ(PrintConfig(parsed), PrintConfig(line->config));
}

TEST_F(CommandLineFile, AnEmbeddedDaemonReadsNoFileAndKeepsItsFilesTogether) {
  const char* const arguments[] = {"tandemd", "--embedded", "/tmp/job", "--emulated-gpus", "2"};
  Result<DaemonCommandLine> line = ParseCommandLine(5, arguments, path_);
  ASSERT_TRUE(line.ok()) << line.status().ToString();
  EXPECT_EQ(line->embedded_directory, "/tmp/job");
  EXPECT_EQ(line->config.runtime_dir, "/tmp/job/run");
  EXPECT_EQ(AdminDirectory(line->config), "/tmp/job/run-admin");
  EXPECT_EQ(line->config.state_dir, "/tmp/job/state");
  EXPECT_EQ(line->config.socket_group, "");
  EXPECT_EQ(line->config.emulated_gpus, 2) << "flags count";
  EXPECT_EQ(line->config.hardware_queues, Config().hardware_queues) << "the file does not";
  EXPECT_EQ(line->config_path, "");
  EXPECT_THAT(Parse({"--embedded", "job"}).status().message(), HasSubstr("must be an absolute path"));
  EXPECT_FALSE(Parse({"--embedded", "/tmp/job", "--config", path_.c_str()}).ok());
}

TEST_F(CommandLineFile, CheckConfigFailsWhereTheDaemonWould) {
  Result<DaemonCommandLine> good = Parse({"--config", path_.c_str(), "--check-config"});
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(good->action, DaemonCommandLine::Action::kPrint);
  EXPECT_EQ(good->output, "configuration is valid\n");
  EXPECT_TRUE(good->check);
  std::ofstream(path_) << "emulated_gpus = 2\nhardware_queues = 33\n";
  Result<DaemonCommandLine> bad = Parse({"--config", path_.c_str(), "--check-config"});
  ASSERT_FALSE(bad.ok());
  EXPECT_THAT(bad.status().message(), AllOf(StartsWith(path_ + ":2: "), HasSubstr("the limits are 1 to 32")));
  std::ofstream(path_) << "runtime_dir = \"relative\"\n";
  EXPECT_THAT(Parse({"--config", path_.c_str(), "--check-config"}).status().message(), HasSubstr("absolute"));
}

TEST(CommandLine, DropInsAreReadWithoutTheDefaultFileToo) {
  const std::filesystem::path directory = ::testing::TempDir() + "drop_ins_" + std::to_string(getpid());
  const std::string file = directory / "tandemd.toml";
  std::filesystem::create_directories(directory / "config.d");
  const auto parse = [&](std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "tandemd");
    return ParseCommandLine(static_cast<int>(arguments.size()), arguments.data(), file);
  };
  EXPECT_EQ(parse({})->config_path, "");
  std::ofstream(directory / "config.d/10-site.toml") << "emulated_gpus = 3\nhardware_queues = 5\n";
  Result<DaemonCommandLine> alone = parse({"--hardware-queues=6"});
  ASSERT_TRUE(alone.ok()) << alone.status().ToString();
  EXPECT_EQ(alone->config.emulated_gpus, 3);
  EXPECT_EQ(alone->config.hardware_queues, 6);
  EXPECT_EQ(alone->config_path, file);
  std::ofstream(file) << "emulated_gpus = 2\njoin_deadline_ms = 77\n";
  Result<DaemonCommandLine> both = parse({});
  ASSERT_TRUE(both.ok()) << both.status().ToString();
  EXPECT_EQ(both->config.emulated_gpus, 3);
  EXPECT_EQ(both->config.join_deadline_ms, 77);
  std::filesystem::remove(file);
  std::ofstream(directory / "config.d/20-bad.toml") << "emulated_gpus = 9\n";
  EXPECT_THAT(parse({}).status().message(), HasSubstr("20-bad.toml:1: "));
  std::filesystem::remove_all(directory);
}

TEST(CommandLine, EveryKeyHasAFlagThatSetsIt) {
  for (const config::KeySpec& key : config::Keys()) {
    std::string value;
    switch (key.type) {
      case config::KeyType::kString:
        value = key.name.ends_with(".listen")      ? "127.0.0.1:1"
                : key.name == "ready_with_engines" ? "any"
                                                   : "/flag";
        break;
      case config::KeyType::kInteger: value = std::to_string(key.min + 1); break;
      case config::KeyType::kBytes: value = "128 MiB"; break;
      case config::KeyType::kBool:
        value = config::PrintValue(key, Config()) == "true" ? "false" : "true";
        break;
      case config::KeyType::kChoice:
        value = config::PrintValue(key, Config()) == "\"" + std::string(key.choices[0]) + "\""
                    ? key.choices[1]
                    : key.choices[0];
        break;
    }
    // Rules between keys, which single changes would break.
    std::string flag = config::FlagName(key) + "=" + value;
    std::vector<const char*> arguments = {flag.c_str()};
    if (key.name == "quotas.sessions") arguments.push_back("--quotas-sessions-per-uid=1");
    if (key.name == "supervisor.backoff_max_ms") arguments.push_back("--supervisor-backoff-initial-ms=1");
    for (const auto& [one, other] : {std::pair("http.certificate", "--http-key=/other"),
                                     std::pair("http.key", "--http-certificate=/other"),
                                     std::pair("http.user", "--http-password-file=/other"),
                                     std::pair("http.password_file", "--http-user=other")}) {
      if (key.name == one) arguments.push_back(other);
    }
    Result<DaemonCommandLine> line = Parse(arguments);
    ASSERT_TRUE(line.ok()) << line.status().ToString();
    Config expected;
    ASSERT_TRUE(config::SetKeyFromText(key, value, expected).ok());
    EXPECT_EQ(config::PrintValue(key, line->config), config::PrintValue(key, expected)) << key.name;
    EXPECT_NE(config::PrintValue(key, line->config), config::PrintValue(key, Config())) << key.name;
  }
}

TEST(CommandLine, ABareBooleanFlagIsTrue) {
  EXPECT_TRUE(Parse({"--testing-verify-plans"})->config.testing.verify_plans);
  EXPECT_TRUE(Parse({"--testing-verify-plans", "--emulated-gpus", "2"})->config.testing.verify_plans);
  EXPECT_FALSE(Parse({"--testing-verify-plans=false"})->config.testing.verify_plans);
  EXPECT_FALSE(Parse({"--testing-verify-plans=maybe"}).ok());
}

TEST(CommandLine, AnEmptyValueDoesNotSwallowTheNextFlag) {
  Result<DaemonCommandLine> line = Parse({"--socket-group=", "--check-config"});
  ASSERT_TRUE(line.ok()) << line.status().ToString();
  EXPECT_EQ(line->config.socket_group, "");
  EXPECT_EQ(line->action, DaemonCommandLine::Action::kPrint) << "it would start a daemon";
  for (const config::KeySpec& key : config::Keys()) {
    const std::string flag = config::FlagName(key) + "=";
    Result<DaemonCommandLine> empty = Parse({flag.c_str(), "--check-config"});
    if (empty.ok()) {
      EXPECT_TRUE(empty->check) << flag;
    } else {
      const std::string name(key.name.substr(key.name.rfind('.') + 1));
      EXPECT_THAT(empty.status().message(), ::testing::AnyOf(HasSubstr(name), HasSubstr(flag))) << flag;
    }
    if (key.type != config::KeyType::kString) {
      EXPECT_FALSE(empty.ok()) << flag;
    }
  }
}

TEST(CommandLine, OldNamesAreReadAndReported) {
  Result<DaemonCommandLine> line =
      Parse({"--debug-verify-plans", "--engines-per-gpu", "2", "--visibility-delay-us=7"});
  ASSERT_TRUE(line.ok()) << line.status().ToString();
  EXPECT_TRUE(line->config.testing.verify_plans);
  EXPECT_EQ(line->config.testing.engines_per_gpu, 2);
  EXPECT_EQ(line->config.testing.visibility_delay_us, 7);
  EXPECT_THAT(line->config.old_names,
              ::testing::Contains(HasSubstr("--engines-per-gpu is now --testing-engines-per-gpu")));
  EXPECT_EQ(line->config.old_names.size(), 3u);
  EXPECT_THAT(Parse({"--help"})->output, ::testing::Not(HasSubstr("--debug-verify-plans")));
  EXPECT_TRUE(Parse({"--testing-verify-plans"})->config.old_names.empty());
  EXPECT_FALSE(Parse({"--prelaunch=false"})->config.speculative_launch);
}

TEST(CommandLine, StrictNeedsCheckConfig) {
  EXPECT_TRUE(Parse({"--check-config", "--strict"})->strict);
  EXPECT_FALSE(Parse({"--check-config"})->strict);
  EXPECT_FALSE(Parse({"--strict"}).ok());
}

TEST(CommandLine, BadFlagsAreNamed) {
  EXPECT_THAT(Parse({"--emulated-gpus", "9"}).status().message(),
              AllOf(HasSubstr("--emulated-gpus"), HasSubstr("1 to 8")));
  EXPECT_THAT(Parse({"--emulated-gpus", "two"}).status().message(), HasSubstr("'two' is no integer"));
  EXPECT_THAT(Parse({"--emulated-gpus", "2x"}).status().message(), HasSubstr("'2x' is no integer"));
  EXPECT_THAT(Parse({"--no-such-flag"}).status().message(), HasSubstr("--no-such-flag"));
  EXPECT_THAT(Parse({"stray"}).status().message(), HasSubstr("stray"));
  EXPECT_FALSE(Parse({"--emulated-gpus"}).ok());
  Result<DaemonCommandLine> absent = Parse({"--config", "/nonexistent/tandemd.toml"});
  EXPECT_EQ(absent.status().code(), Code::kNotFound);
  EXPECT_THAT(absent.status().message(), HasSubstr("/nonexistent/tandemd.toml"));
}

TEST(CommandLine, HelpAndVersionNeedNoConfiguration) {
  Result<DaemonCommandLine> help = Parse({"--help"});
  ASSERT_TRUE(help.ok());
  EXPECT_EQ(help->action, DaemonCommandLine::Action::kPrint);
  for (const config::KeySpec& key : config::Keys())
    EXPECT_THAT(help->output, HasSubstr(config::FlagName(key)));
  Result<DaemonCommandLine> defaults = Parse({"--print-default-config"});
  ASSERT_TRUE(defaults.ok());
  EXPECT_EQ(defaults->output, PrintDefaultConfigFile());
  Result<DaemonCommandLine> version = Parse({"--version", "--config", "/nonexistent"});
  ASSERT_TRUE(version.ok());
  EXPECT_EQ(version->output, std::string("tandemd ") + BuildVersion() + "\n");
}

}  // namespace
}  // namespace tandem

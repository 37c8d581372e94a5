#include "daemon/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <set>
#include <sstream>

#include "daemon/config/allow_rules.h"
#include "daemon/config/config_file.h"
#include "daemon/config/config_keys.h"

namespace tandem {
namespace {

using config::FindKey;
using config::KeySpec;
using config::KeyType;
using config::ParseBytes;
using config::PrintBytes;
using ::testing::HasSubstr;

// Sets every key to a value that is not its default.
Config EverythingChanged() {
  Config changed;
  for (const KeySpec& key : config::Keys()) {
    config::KeyValue value;
    switch (key.type) {
      case KeyType::kString: value = std::string("/changed \"quoted\" \\ \t\x7f ü"); break;
      case KeyType::kInteger:
      case KeyType::kBytes: value = key.max - 1; break;
      case KeyType::kBool: value = config::PrintValue(key, Config()) != "true"; break;
      case KeyType::kChoice:
        value = std::string(config::PrintValue(key, Config()) == "\"" + std::string(key.choices[0]) + "\""
                                ? key.choices[1]
                                : key.choices[0]);
        break;
    }
    Status status = config::SetKey(key, value, changed);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  return changed;
}

TEST(Config, DefaultsAreValidAndWithinTheirLimits) {
  EXPECT_TRUE(ValidateConfig(Config()).ok());
  for (const KeySpec& key : config::Keys()) {
    if (key.type != KeyType::kInteger && key.type != KeyType::kBytes) continue;
    Config defaults;
    int64_t value = *std::get<int64_t*>(key.field(defaults));
    EXPECT_GE(value, key.min) << key.name;
    EXPECT_LE(value, key.max) << key.name;
  }
}

TEST(Config, KeysAndMembersAreDistinct) {
  std::set<std::string_view> names;
  std::set<std::string> flags;
  std::set<const void*> members;
  Config config;
  for (const KeySpec& key : config::Keys()) {
    names.insert(key.name);
    flags.insert(config::FlagName(key));
    members.insert(std::visit([](auto* field) -> const void* { return field; }, key.field(config)));
    EXPECT_FALSE(key.doc.empty());
    EXPECT_EQ(FindKey(key.name), &key);
  }
  EXPECT_EQ(names.size(), config::Keys().size());
  EXPECT_EQ(flags.size(), config::Keys().size());
  EXPECT_EQ(members.size(), config::Keys().size());
}

TEST(Config, PrintedConfigParsesBackToTheSame) {
  for (const Config& config : {Config(), EverythingChanged()}) {
    std::string printed = PrintConfig(config);
    Config parsed = EverythingChanged();
    parsed.emulated_gpus = 3;  // so that a key that was not printed would show
    Status status = ParseConfigText(printed, "printed", parsed);
    ASSERT_TRUE(status.ok()) << status.ToString() << "\n" << printed;
    for (const KeySpec& key : config::Keys()) {
      EXPECT_EQ(config::PrintValue(key, parsed), config::PrintValue(key, config)) << key.name;
    }
  }
}

TEST(Config, AllowRulesParseAndPrint) {
  Config config;
  const std::string text =
      "[[allow]]\nuid = 1000\ngpus = [0, \"GPU-7\"]\n"
      "[[allow]]\ngid = 7\ncgroup = \"/kubepods\"\n";
  ASSERT_TRUE(ParseConfigText(text, "f", config).ok());
  ASSERT_EQ(config.allow.size(), 2u);
  EXPECT_EQ(
      config.allow[0],
      (AllowConfig{
          .uid = 1000, .gid = std::nullopt, .cgroup = "", .gpus = std::vector<std::string>{"0", "GPU-7"}}));
  EXPECT_EQ(config.allow[1],
            (AllowConfig{.uid = std::nullopt, .gid = 7, .cgroup = "/kubepods", .gpus = std::nullopt}));
  Config parsed;
  parsed.allow.resize(3);
  ASSERT_TRUE(ParseConfigText(PrintConfig(config), "printed", parsed).ok()) << PrintConfig(config);
  EXPECT_EQ(parsed.allow, config.allow);
  ASSERT_TRUE(ParseConfigText(PrintConfig(Config()), "printed", parsed).ok());
  EXPECT_TRUE(parsed.allow.empty());
  // A file without rules leaves those of the files before it.
  ASSERT_TRUE(ParseConfigText("emulated_gpus = 2\n", "g", config).ok());
  EXPECT_EQ(config.allow.size(), 2u);
}

TEST(Config, ReadyWithEngines) {
  for (const auto& [text, needed] : std::vector<std::pair<const char*, int64_t>>{{"all", 0},
                                                                                 {"any", 1},
                                                                                 {"1", 1},
                                                                                 {"8", 8},
                                                                                 {"0", -1},
                                                                                 {"9", -1},
                                                                                 {"", -1},
                                                                                 {"12", -1},
                                                                                 {"x", -1}}) {
    Config config;
    config.ready_with_engines = text;
    EXPECT_EQ(ValidateConfig(config).ok(), needed >= 0) << text;
    if (needed >= 0) {
      EXPECT_EQ(EnginesNeeded(config), needed) << text;
    }
  }
}

TEST(Config, AllowRulesHaveQuotas) {
  Config config;
  config.quotas.tensors = 77;
  const std::string text =
      "[[allow]]\nuid = 1000\nquotas = { plans = 100, segment_bytes = \"16 GiB\" }\n"
      "[[allow]]\ngid = 7\n[allow.quotas]\ncgroup_sessions = 3\n";
  ASSERT_TRUE(ParseConfigText(text, "f", config).ok()) << ParseConfigText(text, "f", config).ToString();
  ASSERT_EQ(config.allow.size(), 2u);
  EXPECT_EQ(config.allow[0].quotas,
            (std::map<std::string, int64_t>{{"plans", 100}, {"segment_bytes", int64_t{16} << 30}}));
  const QuotaConfig quotas = config::QuotasOf(config.allow[0], config.quotas);
  EXPECT_EQ(quotas.plans, 100);
  EXPECT_EQ(quotas.segment_bytes, int64_t{16} << 30);
  EXPECT_EQ(quotas.tensors, 77);
  EXPECT_EQ(config::QuotasOf(config.allow[1], config.quotas).cgroup_sessions, 3);
  Config parsed;
  ASSERT_TRUE(ParseConfigText(PrintConfig(config), "printed", parsed).ok()) << PrintConfig(config);
  EXPECT_EQ(parsed.allow, config.allow);
  config.allow[1].quotas["cgroup_sessions"] = config.quotas.sessions + 1;
  EXPECT_THAT(ValidateConfig(config).message(),
              HasSubstr("allow.quotas.cgroup_sessions = 257 must not exceed"));
}

TEST(Config, WrongAllowRulesAreNamed) {
  for (const auto& [text, error] : std::vector<std::pair<std::string, std::string>>{
           {"allow = 7", "f:1: allow must be tables"},
           {"allow = [7]", "f:1: allow must be tables"},
           {"[[allow]]\nuid = -1", "f:2: allow.uid must be"},
           {"[[allow]]\nuid = \"me\"", "allow.uid must be"},
           {"[[allow]]\ncgroup = \"x\"", "allow.cgroup must be"},
           {"[[allow]]\ngpus = 0", "allow.gpus must be"},
           {"[[allow]]\ngpus = [\"\"]", "allow.gpus must be"},
           {"[[allow]]\nuser = 1", "unknown key 'allow.user'"},
           {"[[allow]]\nquotas = 7", "allow.quotas must be a table"},
           {"[[allow]]\nquotas = { plan = 7 }",
            "f:2: unknown key 'allow.quotas.plan'; there are sessions_per_uid, "},
           {"[[allow]]\nquotas = { sessions = 7 }", "unknown key 'allow.quotas.sessions'"},
           {"[[allow]]\nquotas = { plans = true }", "allow.quotas.plans must be a number"},
           {"[[allow]]\nquotas = { plans = 0 }", "f:2: allow.quotas.plans = 0 is out of range"},
           {"[[allow]]\nquotas = { plan_bytes = \"7 X\" }", "allow.quotas.plan_bytes: "}}) {
    Config config;
    EXPECT_THAT(ParseConfigText(text, "f", config).message(), HasSubstr(error)) << text;
    EXPECT_TRUE(config.allow.empty());
  }
}

TEST(Config, EveryChangedKeyPrintsDifferently) {
  Config changed = EverythingChanged();
  for (const KeySpec& key : config::Keys()) {
    EXPECT_NE(config::PrintValue(key, changed), config::PrintValue(key, Config())) << key.name;
  }
}

TEST(Config, ShippedFileIsTheDefaultsCommentedOut) {
  std::ifstream file(std::string(TANDEM_SOURCE_DIR) + "/deploy/config/tandemd.toml");
  ASSERT_TRUE(file.good());
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), PrintDefaultConfigFile());

  // Uncommenting every key must give the defaults again.
  std::string uncommented;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("# ") && line.find(" = ") != std::string::npos) line = line.substr(2);
    uncommented += line + "\n";
  }
  Config parsed = EverythingChanged();
  Status status = ParseConfigText(uncommented, "tandemd.toml", parsed);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(PrintConfig(parsed), PrintConfig(Config()));
}

TEST(ConfigKeys, RangeErrorsNameKeyValueAndLimits) {
  Config config;
  Status status = config::SetKey(*FindKey("emulated_gpus"), int64_t{9}, config);
  EXPECT_EQ(status.code(), Code::kOutOfRange);
  EXPECT_EQ(status.message(), "emulated_gpus = 9 is out of range; the limits are 1 to 8");
  EXPECT_TRUE(config::SetKey(*FindKey("emulated_gpus"), int64_t{8}, config).ok());
  EXPECT_TRUE(config::SetKey(*FindKey("emulated_gpus"), int64_t{1}, config).ok());
  EXPECT_FALSE(config::SetKey(*FindKey("emulated_gpus"), int64_t{0}, config).ok());
  EXPECT_EQ(config.emulated_gpus, 1);
  status = config::SetKey(*FindKey("quotas.segment_bytes"), std::string("1 MiB"), config);
  EXPECT_EQ(status.message(),
            "quotas.segment_bytes = 1 MiB is out of range; the limits are 2 MiB to 1024 TiB");
  status = config::SetKey(*FindKey("quotas.segment_bytes"), int64_t{-5}, config);
  EXPECT_THAT(status.message(), HasSubstr("= -5 is out of range"));
}

TEST(ConfigKeys, WrongTypesAndChoicesSayWhatIsRight) {
  Config config;
  EXPECT_THAT(config::SetKey(*FindKey("runtime_dir"), int64_t{1}, config).message(),
              HasSubstr("runtime_dir = 1 must be a string"));
  EXPECT_THAT(config::SetKey(*FindKey("hardware_queues"), std::string("8"), config).message(),
              HasSubstr("must be an integer"));
  EXPECT_THAT(config::SetKey(*FindKey("testing.verify_plans"), int64_t{1}, config).message(),
              HasSubstr("must be true or false"));
  EXPECT_THAT(config::SetKey(*FindKey("quotas.segment_bytes"), true, config).message(), HasSubstr("2 GiB"));
  EXPECT_THAT(config::SetKey(*FindKey("log_level"), int64_t{1}, config).message(),
              HasSubstr("must be a string"));
  EXPECT_THAT(config::SetKey(*FindKey("backend"), std::string("gpu"), config).message(),
              HasSubstr("none of auto, host, cuda"));
  EXPECT_FALSE(config::SetKey(*FindKey("runtime_dir"), std::string("/a\0b", 4), config).ok());
  EXPECT_EQ(PrintConfig(config), PrintConfig(Config()));
}

TEST(ConfigKeys, NearestKeyForgivesTyposAndTables) {
  EXPECT_EQ(config::NearestKey("emulated_gpu"), "emulated_gpus");
  EXPECT_EQ(config::NearestKey("runtimedir"), "runtime_dir");
  EXPECT_EQ(config::NearestKey("sessions"), "quotas.sessions");
  EXPECT_EQ(config::NearestKey("host.emulated_gpus"), "emulated_gpus");
  EXPECT_EQ(config::NearestKey("quota.plans"), "quotas.plans");
  EXPECT_EQ(config::NearestKey("completely_unrelated_thing"), "");
  EXPECT_EQ(config::NearestKey(std::string(100000, 'x')), "");
}

TEST(ConfigKeys, BytesParseAndPrint) {
  EXPECT_EQ(*ParseBytes("2 GiB"), int64_t{2} << 30);
  EXPECT_EQ(*ParseBytes("2GiB"), int64_t{2} << 30);
  EXPECT_EQ(*ParseBytes("7"), 7);
  EXPECT_EQ(*ParseBytes("0 B"), 0);
  for (const char* bad : {"", "GiB", "-1", "-1 GiB", "1.5 GiB", "2 GB", "2  GiB", "9223372036854775808",
                          "16777216 TiB", " 2 GiB", "2 GiB "}) {
    EXPECT_EQ(ParseBytes(bad).status().code(), Code::kInvalidArgument) << bad;
  }
  int64_t most = std::numeric_limits<int64_t>::max();
  for (int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{1023}, int64_t{1024}, int64_t{1536} << 20, most}) {
    EXPECT_EQ(*ParseBytes(PrintBytes(bytes)), bytes);
  }
  EXPECT_EQ(PrintBytes(int64_t{1536} << 20), "1536 MiB");
}

TEST(Config, ValidationChecksKeysAgainstEachOther) {
  Config config;
  config.admin_dir = "/admin";
  config.runtime_dir = "run";
  EXPECT_THAT(ValidateConfig(config).message(), HasSubstr("runtime_dir = \"run\" must be an absolute path"));
  config.runtime_dir = "/" + std::string(95, 'x');  // + "/client.sock" = 108 bytes
  EXPECT_THAT(ValidateConfig(config).message(), HasSubstr("108 bytes, a socket's may have 107"));
  config.runtime_dir.pop_back();
  EXPECT_TRUE(ValidateConfig(config).ok());
  EXPECT_EQ(ClientSocketPath(config).size(), 107u);

  config = Config();
  config.mps.spare_pipe_directory = "spare";
  EXPECT_THAT(ValidateConfig(config).message(), HasSubstr("mps.spare_pipe_directory"));
  config.mps.spare_pipe_directory = config.mps.pipe_directory = "/run/mps";
  EXPECT_THAT(ValidateConfig(config).message(), HasSubstr("another directory"));
  config.mps = {};
  config.state_dir = "";
  EXPECT_THAT(ValidateConfig(config).message(), HasSubstr("state_dir"));

  config = Config();
  config.supervisor.backoff_initial_ms = 2000;
  config.supervisor.backoff_max_ms = 1000;
  EXPECT_THAT(ValidateConfig(config).message(), HasSubstr("backoff_initial_ms = 2000 must not exceed"));

  config = Config();
  config.quotas.sessions = 10;
  EXPECT_THAT(ValidateConfig(config).message(), HasSubstr("sessions_per_uid = 128 must not exceed"));
  config.quotas.sessions_per_uid = 1;
  config.quotas.cgroup_sessions = config.quotas.sessions + 1;
  EXPECT_THAT(ValidateConfig(config).message(), HasSubstr("quotas.cgroup_sessions"));
}

TEST(Config, HttpAddressesAreChecked) {
  Config config;
  for (const char* good : {"off", "127.0.0.1:9464", "localhost:0", "[::1]:65535", "0.0.0.0:1"}) {
    config.metrics_listen = good;
    EXPECT_TRUE(ValidateConfig(config).ok()) << good;
  }
  for (const char* bad : {"", "on", ":9464", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1",
                          "::1:9464", "127.0.0.1:94x", "unix:/x:1", "a b:1"}) {
    config.metrics_listen = bad;
    EXPECT_THAT(ValidateConfig(config).message(), HasSubstr("metrics.listen")) << bad;
  }
  config = Config();
  config.web_listen = "127.0.0.1:9465";
  EXPECT_TRUE(ValidateConfig(config).ok());
  config.web_listen = "9465";
  EXPECT_THAT(ValidateConfig(config).message(), HasSubstr("web.listen"));
}

TEST(Config, KeysOfHttpGoTogether) {
  const auto why = [](HttpConfig http) {
    Config config;
    config.http = std::move(http);
    return ValidateConfig(config).message();
  };
  EXPECT_EQ(why({.certificate = "/c", .key = "/k", .user = "u", .password_file = "/p"}), "");
  EXPECT_THAT(why({.certificate = "/c"}), HasSubstr("http.certificate is of no use without http.key"));
  EXPECT_THAT(why({.key = "/k"}), HasSubstr("http.key is of no use without http.certificate"));
  EXPECT_THAT(why({.user = "u"}), HasSubstr("http.user is of no use without http.password_file"));
  EXPECT_THAT(why({.password_file = "/p"}), HasSubstr("http.password_file is of no use without http.user"));
  EXPECT_THAT(why({.certificate = "c", .key = "/k"}),
              HasSubstr("http.certificate = \"c\" must be an absolute"));
  EXPECT_THAT(why({.certificate = "/c", .key = "k"}), HasSubstr("http.key"));
  EXPECT_THAT(why({.user = "u", .password_file = "p"}), HasSubstr("http.password_file"));
  for (const char* bad : {"a:b", "a\nb", "\x7f"})
    EXPECT_THAT(why({.user = bad, .password_file = "/p"}), HasSubstr("http.user")) << bad;
}

TEST(Config, AddressesBeyondTheLoopbackNeedTlsAndAPassword) {
  for (const char* own : {"127.0.0.1:1", "127.9.9.9:1", "localhost:1", "[::1]:1"}) {
    EXPECT_TRUE(IsLoopbackAddress(own)) << own;
    EXPECT_TRUE(CheckExposure({}, own).ok()) << own;
  }
  for (const char* others : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "node:1", "127.0.0.1.example:1",
                             "127.example:1", "localhost.example:1", "[::1:2]:1"}) {
    EXPECT_FALSE(IsLoopbackAddress(others)) << others;
    const Status bare = CheckExposure({}, others);
    EXPECT_EQ(bare.code(), Code::kFailedPrecondition) << others;
    EXPECT_THAT(bare.message(), HasSubstr(others));
    EXPECT_THAT(bare.message(), HasSubstr("http.certificate and http.key, http.user and http.password_file"));
    EXPECT_THAT(CheckExposure({.certificate = "/c", .key = "/k"}, others).message(),
                HasSubstr("so http.user"));
    EXPECT_THAT(CheckExposure({.user = "u", .password_file = "/p"}, others).message(),
                HasSubstr("so http.certificate"));
    EXPECT_TRUE(CheckExposure({.allow_plain = true}, others).ok());
    EXPECT_TRUE(
        CheckExposure({.certificate = "/c", .key = "/k", .user = "u", .password_file = "/p"}, others).ok());
  }
  EXPECT_TRUE(CheckExposure({}, "off").ok());
}

TEST(Config, SocketsAreInTheRuntimeDirectory) {
  Config config;
  EXPECT_EQ(LeaseSocketPath(config), "/run/tandem/lease.sock");
  EXPECT_EQ(ClientSocketPath(config), "/run/tandem/client.sock");
}

TEST(Config, TheAdministratorsSocketIsApartFromTheClients) {
  Config config;
  EXPECT_EQ(AdminSocketPath(config), "/run/tandem-admin/admin.sock");
  config.runtime_dir = "/tmp/x/";
  EXPECT_EQ(AdminSocketPath(config), "/tmp/x-admin/admin.sock");
  for (const char* bad : {"/tmp/x", "/tmp/x/", "/tmp/x/admin", "/tmp/y/../x/admin", "/tmp/x/.", "relative"}) {
    config.admin_dir = bad;
    EXPECT_THAT(ValidateConfig(config).message(), HasSubstr("admin_dir")) << bad;
  }
  for (const char* good : {"", "/tmp", "/tmp/x-admin", "/tmp/x/../y", "/tmp/xy"}) {
    config.admin_dir = good;
    EXPECT_TRUE(ValidateConfig(config).ok()) << good << ": " << ValidateConfig(config).message();
  }
  config.admin_dir = "/" + std::string(200, 'a');
  EXPECT_THAT(ValidateConfig(config).message(), HasSubstr("admin.sock"));
}

}  // namespace
}  // namespace tandem

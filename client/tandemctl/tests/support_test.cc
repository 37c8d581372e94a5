#include "client/tandemctl/support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "client/tandemctl/local_checks.h"

namespace tandem::ctl {
namespace {

using testing::HasSubstr;

// The findings of a check, as "SEVERITY message".
std::vector<std::string> FindingsOf(const admin::v1::DoctorReply& reply, const std::string& check) {
  std::vector<std::string> texts;
  for (const auto& finding : reply.findings()) {
    if (finding.check() == check)
      texts.push_back(admin::v1::Finding::Severity_Name(finding.severity()) + " " + finding.message());
  }
  return texts;
}

class LocalChecksTest : public testing::Test {
 protected:
  LocalChecksTest() {
    std::string pattern = testing::TempDir() + "/tandem-local-XXXXXX";
    node_.root = ::mkdtemp(pattern.data());
    node_.runtime_dir = node_.root + "/run/tandem";
    node_.run = [this](const std::string& command) { return outputs_[command]; };
    outputs_["tandemd --check-config --strict"] = "configuration is valid";
    Write("/etc/group", "root:x:0:\ntandem:x:998:\n");
  }
  ~LocalChecksTest() override { std::filesystem::remove_all(node_.root); }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(node_.root + path).parent_path());
    std::ofstream(node_.root + path) << text;
  }

  LocalNode node_;
  std::map<std::string, std::string> outputs_;
};

TEST_F(LocalChecksTest, NamesTheUnitThatDoesNotRun) {
  std::filesystem::create_directories(node_.root + "/run/systemd/system");
  outputs_["systemctl is-active tandemd"] = "failed";
  const auto reply = CheckLocally(node_, Code::kUnavailable);
  EXPECT_THAT(FindingsOf(reply, "daemon"), testing::ElementsAre(HasSubstr("FAILURE no daemon answers")));
  EXPECT_THAT(FindingsOf(reply, "unit"), testing::ElementsAre("FAILURE the unit tandemd has failed"));
  EXPECT_THAT(FindingsOf(reply, "configuration"), testing::ElementsAre(HasSubstr("OK")));
  EXPECT_THAT(FindingsOf(reply, "group"), testing::ElementsAre(HasSubstr("OK")));
  EXPECT_THAT(FindingsOf(reply, "socket"),
              testing::Contains(HasSubstr("FAILURE there is no " + node_.runtime_dir + "/client.sock")));
}

TEST_F(LocalChecksTest, SaysThatTheUserMayNotUseTheDaemon) {
  EXPECT_THAT(FindingsOf(CheckLocally(node_, Code::kPermissionDenied), "daemon"),
              testing::ElementsAre("FAILURE this user may not use the daemon at " + node_.runtime_dir));
}

TEST_F(LocalChecksTest, NamesTheProgramThatIsNotInstalled) {
  // As dash and bash report it.
  for (const char* text : {"sh: 1: tandemd: not found", "sh: line 1: tandemd: command not found"}) {
    outputs_["tandemd --check-config --strict"] = text;
    EXPECT_THAT(FindingsOf(CheckLocally(node_, Code::kUnavailable), "configuration"),
                testing::ElementsAre("FAILURE there is no program tandemd in PATH"));
  }
}

TEST_F(LocalChecksTest, NamesWhatAMachineWithGpusLacks) {
  Write("/etc/group", "root:x:0:\n");
  Write("/proc/driver/nvidia/version", "NVRM version: 550.1\n");
  Write("/dev/nvidiactl", "");
  Write("/dev/nvidia0", "");
  Write("/dev/nvidia-nvswitchctl", "");
  std::filesystem::create_directories(node_.root + "/run/systemd/system");
  outputs_["systemctl is-active tandemd"] = "inactive";
  outputs_["systemctl is-active nvidia-fabricmanager"] = "inactive";
  outputs_["systemctl is-active tandem-mps"] = "failed";
  outputs_["tandemd --check-config --strict"] = "tandemd: backend = \"cuda\": no GPU";
  const auto reply = CheckLocally(node_, Code::kUnavailable);
  EXPECT_THAT(FindingsOf(reply, "device"),
              testing::ElementsAre("FAILURE " + node_.root + "/dev/nvidia-uvm is missing"));
  EXPECT_THAT(FindingsOf(reply, "fabric"),
              testing::ElementsAre(HasSubstr("nvidia-fabricmanager is inactive")));
  EXPECT_THAT(FindingsOf(reply, "mps"), testing::ElementsAre(HasSubstr("WARNING")));
  EXPECT_THAT(FindingsOf(reply, "group"), testing::ElementsAre(HasSubstr("WARNING")));
  EXPECT_THAT(FindingsOf(reply, "configuration"), testing::ElementsAre(HasSubstr("no GPU")));
}

TEST(SupportTest, RedactsNamesEverywhereAlike) {
  admin::v1::ListSessionsReply sessions;
  for (const char* name : {"secret-model", "secret-model-2"}) {
    auto* session = sessions.add_sessions();
    session->set_name(name);
    session->set_command("train.py");
    session->set_cgroup("/user/alice");
    session->set_owner("/user/alice");
  }
  admin::v1::ListGroupsReply groups;
  groups.add_groups()->set_name("tp of alice");
  std::map<std::string, std::string> parts = {
      {"a", "secret-model-2 in 'tp of alice' on node17, secret-model"},
      {"b", "secret-model train.py /user/alice"},
      {"journal.txt", "what else"}};
  Redact(sessions, groups, "node17", &parts);
  EXPECT_EQ(parts["a"], "session-name-2 in 'group-name-1' on host, session-name-1");
  EXPECT_EQ(parts["b"], "session-name-1 command-1 cgroup-1");
  EXPECT_FALSE(parts.contains("journal.txt"));
}

}  // namespace
}  // namespace tandem::ctl

#include "daemon/supervisor/engine_program.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "daemon/supervisor/engine_process.h"

namespace tandem::daemon {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr milliseconds kWaitBudget{20000};

class EngineProgramTest : public testing::Test {
 protected:
  EngineProgramTest() {
    char name[] = "/tmp/tandem-engine-program.XXXXXX";
    EXPECT_NE(::mkdtemp(name), nullptr);
    directory_ = name;
  }
  ~EngineProgramTest() override { std::filesystem::remove_all(directory_); }
  // A program in place of what was there, as a package's upgrade puts it.
  std::string Install(const std::string& script) {
    const std::string path = directory_ + "/tandem-engine", fresh = path + ".new";
    std::ofstream(fresh) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(fresh, std::filesystem::perms::owner_all);
    std::filesystem::rename(fresh, path);
    return path;
  }

  std::string directory_;
};

TEST_F(EngineProgramTest, IsTheSameAfterItsFileWasReplaced) {
  const std::string path = Install("echo tandem-engine 1.2.3+abc; exit 7");
  Result<EngineProgram> program = EngineProgram::Open(path);
  ASSERT_TRUE(program.ok()) << program.status().ToString();
  EXPECT_EQ(program->path(), path);
  EXPECT_EQ(*program->Build(kWaitBudget), "1.2.3+abc");
  Install("echo tandem-engine 1.2.4+def; exit 8");
  EXPECT_EQ(*program->Build(kWaitBudget), "1.2.3+abc");
  EXPECT_EQ(*EngineProgram::Open(path)->Build(kWaitBudget), "1.2.4+def");
  std::filesystem::remove(path);
  const UniqueFd socket(::open("/dev/null", O_RDWR | O_CLOEXEC));
  Result<EngineProcess> process = EngineProcess::Spawn(program->Executable(), socket.get());
  ASSERT_TRUE(process.ok()) << process.status().ToString();
  EXPECT_EQ(process->WaitExit(kWaitBudget), "exit 7");
}

TEST_F(EngineProgramTest, WhatCannotBeExecutedIsNamed) {
  EXPECT_EQ(EngineProgram::Open(directory_ + "/none").status().code(), Code::kNotFound);
  std::ofstream(directory_ + "/text") << "text";
  const Status refused = EngineProgram::Open(directory_ + "/text").status();
  EXPECT_EQ(refused.code(), Code::kPermissionDenied);
  EXPECT_THAT(refused.message(), HasSubstr(directory_ + "/text"));
}

TEST_F(EngineProgramTest, AProgramThatTellsNothingCostsItsTimeOnly) {
  EXPECT_EQ(EngineProgram::Open(Install("exit 0"))->Build(kWaitBudget).status().code(), Code::kUnavailable);
  EXPECT_EQ(EngineProgram::Open(Install("exec sleep 60"))->Build(milliseconds(50)).status().code(),
            Code::kUnavailable);
}

TEST(EngineBuildTest, OneVersionMayDifferByCommits) {
  EXPECT_TRUE(CheckEngineBuild("0.1.0+abc", "0.1.0+def").ok());
  EXPECT_TRUE(CheckEngineBuild("0.1.0", "0.1.0+def.dirty").ok());
  const Status other = CheckEngineBuild("0.1.9+abc", "0.1.0+abc");
  EXPECT_EQ(other.code(), Code::kFailedPrecondition);
  EXPECT_THAT(other.message(), HasSubstr("0.1.9+abc, tandemd of 0.1.0+abc"));
  EXPECT_FALSE(CheckEngineBuild("0.1", "0.1.0").ok());
}

}  // namespace
}  // namespace tandem::daemon

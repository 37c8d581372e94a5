// tandemctl as a program: its usage errors, its exit status, its help, and the completion script.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tandem::ctl {
namespace {

using testing::HasSubstr;
using testing::Not;

// Runs tandemctl: its exit code; standard output into `text`, standard error too.
int RunCtl(const std::string& arguments, std::string* text = nullptr) {
  FILE* pipe = ::popen((std::string(TANDEMCTL) + " " + arguments + " 2>&1").c_str(), "r");
  std::string output;
  std::array<char, 4096> buffer;
  size_t length;
  while ((length = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0)
    output.append(buffer.data(), length);
  int status = ::pclose(pipe);
  if (text != nullptr) *text = output;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(UsageTest, ATypoGetsTheNearestCommandFlagOrName) {
  std::string text;
  EXPECT_EQ(RunCtl("stts", &text), 2);
  EXPECT_THAT(text, HasSubstr("unknown command 'stts'; did you mean 'stats'?"));
  EXPECT_EQ(RunCtl("--runtime-dir /nonexistent --timeout 3 --json tpo", &text), 2);
  EXPECT_THAT(text, HasSubstr("unknown command 'tpo'; did you mean 'topo'?"));
  EXPECT_EQ(RunCtl("xyzzyxyzzy", &text), 2);
  EXPECT_THAT(text,
              testing::AllOf(HasSubstr("'xyzzyxyzzy'"), HasSubstr("the commands are health, topo, doctor")));
  EXPECT_EQ(RunCtl("tuning lst", &text), 2);
  EXPECT_THAT(text, HasSubstr("unknown command 'lst' of tuning; did you mean 'list'?"));
  EXPECT_EQ(RunCtl("stats --jsn", &text), 2);
  EXPECT_THAT(text, HasSubstr("unknown flag '--jsn' of stats; did you mean '--json'?"));
  EXPECT_EQ(RunCtl("--jsonn=1 stats", &text), 2);
  EXPECT_THAT(text, HasSubstr("unknown flag '--jsonn' of stats; did you mean '--json'?"));
  EXPECT_EQ(RunCtl("--sockt= stats", &text), 2);
  EXPECT_THAT(text, HasSubstr("unknown flag '--sockt' of stats"));
  EXPECT_EQ(RunCtl("evict abc", &text), 2);
  EXPECT_THAT(text, HasSubstr("id: 'abc' is not a valid value"));
  EXPECT_EQ(RunCtl("evict", &text), 2);
  EXPECT_THAT(text, HasSubstr("give either id or --gpu"));
  EXPECT_EQ(RunCtl("tuning forget", &text), 2);
  EXPECT_THAT(text, HasSubstr("give either id or --all (tandemctl tuning forget --help)"));
  EXPECT_EQ(RunCtl("evict --gpuu 3", &text), 2);
  EXPECT_THAT(text, HasSubstr("did you mean '--gpu'?"));
  EXPECT_EQ(RunCtl("", &text), 2);
  EXPECT_THAT(text, HasSubstr("a command is missing: health, topo"));
  EXPECT_EQ(RunCtl("explain all_reduc --shape 4", &text), 2);
  EXPECT_THAT(text, testing::AllOf(HasSubstr("unknown operation 'all_reduc'; did you mean 'all_reduce'?"),
                                   HasSubstr("The operations are all_reduce, all_gather,")));
  EXPECT_EQ(RunCtl("explain all_reduce --shape 4 --algorithm bell", &text), 2);
  EXPECT_THAT(text, HasSubstr("he algorithms are auto, one_shot"));
  EXPECT_EQ(RunCtl("explain all_reduce", &text), 2);
  EXPECT_THAT(text, HasSubstr("all_reduce needs --shape"));
  EXPECT_EQ(RunCtl("explain barrier"), 0);
}

TEST(UsageTest, JsonMayStandBeforeAndAfterTheCommand) {
  std::string before, after;
  EXPECT_EQ(RunCtl("--json explain all_reduce --shape 1024", &before), 0);
  EXPECT_EQ(RunCtl("explain all_reduce --shape 1024 --json", &after), 0);
  EXPECT_TRUE(nlohmann::json::accept(before)) << before;
  EXPECT_EQ(before, after);
}

TEST(UsageTest, AnEmptyValueDoesNotSwallowTheNextArgument) {
  std::string text;
  EXPECT_EQ(RunCtl("--runtime-dir= stats", &text), 2);
  EXPECT_THAT(text, HasSubstr("--runtime-dir is empty"));
  EXPECT_EQ(RunCtl("explain all_reduce --shape 1024 --topology= --json", &text), 0);
  EXPECT_TRUE(nlohmann::json::accept(text)) << text;
  for (const char* number :
       {"--timeout= stats", "top --interval=", "explain all_reduce --shape 4 --dim=", "plans --group="}) {
    EXPECT_EQ(RunCtl(number, &text), 2) << number;
    EXPECT_THAT(text, HasSubstr(": a number is missing")) << number;
  }
}

TEST(UsageTest, HelpShowsDefaults) {
  // CLI11 has printed "=5" and "[5]".
  const auto has_default = [](const std::string& value) {
    return testing::ContainsRegex("(=|\\[)" + value + "(\\]|[[:space:]])");
  };
  std::string text;
  EXPECT_EQ(RunCtl("explain --help", &text), 0);
  EXPECT_THAT(text, testing::AllOf(has_default("bf16"), HasSubstr("all_gather_matmul"),
                                   Not(has_default("all_reduce"))));
  EXPECT_EQ(RunCtl("tune --help", &text), 0);
  EXPECT_THAT(text, testing::AllOf(has_default("15"), Not(HasSubstr("[]"))));
  EXPECT_EQ(RunCtl("drain --help", &text), 0);
  EXPECT_THAT(text, has_default("60"));
  EXPECT_EQ(RunCtl("--help", &text), 0);
  EXPECT_THAT(text, testing::AllOf(has_default("5"), HasSubstr("reset"), Not(HasSubstr("unfuse"))));
}

TEST(ExitCodeTest, UsageFailureAndReach) {
  std::string text;
  EXPECT_EQ(RunCtl("", &text), 2);
  EXPECT_EQ(RunCtl("nonsense"), 2);
  EXPECT_EQ(RunCtl("evict"), 2);
  EXPECT_EQ(RunCtl("reset"), 2);
  for (const char* empty : {"tuning show ''", "tuning forget ''", "evict --gpu ''"}) {
    EXPECT_EQ(RunCtl("--runtime-dir /nonexistent/tandem " + std::string(empty), &text), 2)
        << empty << ": " << text;
  }
  EXPECT_EQ(RunCtl("explain all_reduce --shape 4xx"), 2);
  EXPECT_EQ(RunCtl("explain no_such_op"), 2);
  EXPECT_EQ(RunCtl("explain all_reduce --shape 4 --topology /nonexistent.toml"), 4);
  EXPECT_EQ(RunCtl("--runtime-dir /nonexistent/tandem stats", &text), 3);
  EXPECT_THAT(text, HasSubstr("/nonexistent/tandem/client.sock"));
  EXPECT_EQ(RunCtl("drain --runtime-dir /nonexistent/tandem", &text), 3);
  EXPECT_THAT(text, HasSubstr("admin.sock"));
  EXPECT_EQ(RunCtl("--help"), 0);
  EXPECT_EQ(RunCtl("--version", &text), 0);
  EXPECT_THAT(text, HasSubstr("tandemctl 0."));
}

TEST(ExitCodeTest, ExplainPrintsTextJsonAndPrograms) {
  std::string text;
  EXPECT_EQ(RunCtl("explain all_reduce --shape 1024 --program 0", &text), 0);
  EXPECT_THAT(text, HasSubstr("one_shot"));
  EXPECT_THAT(text, HasSubstr("not chosen"));
  EXPECT_THAT(text, HasSubstr("program of rank 0"));
  EXPECT_THAT(text, Not(HasSubstr("program of rank 1")));
  EXPECT_EQ(RunCtl("explain matmul_reduce_scatter --shape 64x32 --b 32x48 --json --program -2", &text), 0);
  EXPECT_EQ(nlohmann::json::parse(text)["programs"].size(), 4u);
}

// Bash's completions after these words, the last of which is unfinished.
std::string Completed(const std::vector<std::string>& words) {
  std::string array;
  for (const std::string& word : words) array += " '" + word + "'";
  const std::string script =
      "eval \"$(" + std::string(TANDEMCTL) + " completion bash)\"; COMP_WORDS=(tandemctl" + array +
      "); COMP_CWORD=" + std::to_string(words.size()) + "; _tandemctl; echo \"${COMPREPLY[@]}\"";
  FILE* pipe = ::popen(("bash -c '" +
                        [&] {
                          std::string quoted;
                          for (char c : script)
                            quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
                          return quoted;
                        }() +
                        "' 2>&1")
                           .c_str(),
                       "r");
  std::string output;
  std::array<char, 4096> buffer;
  size_t length;
  while ((length = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0)
    output.append(buffer.data(), length);
  ::pclose(pipe);
  return output;
}

TEST(CompletionTest, KnowsEveryCommandAndIsValidShell) {
  std::string text;
  ASSERT_EQ(RunCtl("completion bash", &text), 0);
  for (const char* command : {"topo", "doctor", "explain", "evict", "completion"})
    EXPECT_THAT(text, HasSubstr(command));
  EXPECT_EQ(::system((std::string(TANDEMCTL) + " completion bash | bash -n").c_str()), 0);
  EXPECT_EQ(RunCtl("completion zsh"), 0);
  ASSERT_EQ(RunCtl("completion fish", &text), 0);
  EXPECT_THAT(text, HasSubstr("__fish_seen_subcommand_from trace"));
  EXPECT_THAT(text, testing::ContainsRegex("seen_subcommand_from explain' -l dtype -x -a 'f32 f16"));
  EXPECT_THAT(text, testing::ContainsRegex("seen_subcommand_from explain' -a 'all_reduce all_gather"));
  EXPECT_EQ(RunCtl("completion tcsh", &text), 2);
  EXPECT_THAT(text, HasSubstr("bash, zsh, fish"));
}

TEST(CompletionTest, BashKnowsValues) {
  EXPECT_EQ(Completed({"sta"}), "stats\n");
  EXPECT_EQ(Completed({"explain", "matmul_r"}), "matmul_reduce_scatter\n");
  EXPECT_EQ(Completed({"explain", "all_reduce", "--dtype", "b"}), "bf16\n");
  EXPECT_EQ(Completed({"explain", "all_reduce", "--dtype", "=", "f8"}), "f8e4m3 f8e5m2\n");
  EXPECT_EQ(Completed({"explain", "all_reduce", "--algorithm", "two"}), "two_shot\n");
  EXPECT_EQ(Completed({"completion", "f"}), "fish\n");
  EXPECT_EQ(Completed({"tuning", "fo"}), "forget\n");
  EXPECT_EQ(Completed({"tuning", "forget", "--al"}), "--all\n");
  EXPECT_EQ(Completed({"stats", "--time"}), "--timeout\n");
  EXPECT_EQ(Completed({"stats", "--timeout", ""}), "\n") << "a number";
  EXPECT_THAT(Completed({"explain", "x", "--topology", TANDEM_FIXTURES "/dgx-1"}), HasSubstr("dgx-1v.toml"));
}

}  // namespace
}  // namespace tandem::ctl

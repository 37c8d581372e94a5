// Tests of Result and its macros: several in a line, and the end of a process that takes a missing value.
#include "tandem/status.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>

namespace tandem {
namespace {

Result<int> Half(int value) {
  if (value % 2 != 0) return InvalidArgument(std::to_string(value) + " is odd");
  return value / 2;
}

Result<int> SumOfHalves(int a, int b) {
  // clang-format off
  TANDEM_ASSIGN_OR_RETURN(int left, Half(a)); TANDEM_ASSIGN_OR_RETURN(int right, Half(b));
  // clang-format on
  return left + right;
}

TEST(AssignOrReturn, StandsTwiceInOneLine) {
  EXPECT_EQ(*SumOfHalves(4, 6), 5);
  EXPECT_EQ(SumOfHalves(3, 6).status(), InvalidArgument("3 is odd"));
  EXPECT_EQ(SumOfHalves(4, 7).status(), InvalidArgument("7 is odd"));
}

TEST(AssignOrReturn, MovesTheValue) {
  auto take = [](Result<std::unique_ptr<int>> made) -> Result<int> {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<int> value, std::move(made));
    return *value;
  };
  EXPECT_EQ(*take(std::make_unique<int>(7)), 7);
}

TEST(SystemErrors, ALimitOfDescriptorsNamesItsProcess) {
  const Status own = SystemError("socket", EMFILE);
  EXPECT_EQ(own.code(), Code::kResourceExhausted);
  EXPECT_EQ(own.detail().reason, "FD_LIMIT");
  EXPECT_EQ(own.detail().pid, ::getpid());
  EXPECT_GT(own.detail().limit, 0);
  EXPECT_NE(own.message().find(std::to_string(own.detail().limit)), std::string::npos) << own.message();
  EXPECT_NE(own.message().find("common_test"), std::string::npos) << own.message();
  const Status nodes = SystemError("socket", ENFILE);
  EXPECT_EQ(nodes.detail().reason, "FD_LIMIT");
  EXPECT_EQ(nodes.detail().who, "the node");
  EXPECT_EQ(nodes.detail().pid, 0);
}

TEST(ResultDeathTest, TakingTheValueOfAnErrorPrintsTheStatusAndAborts) {
  Result<std::string> failed = NotFound("no plan 12");
  const Result<std::string>& constant = failed;
  const char* printed = "failed result was taken: NOT_FOUND: no plan 12";
  EXPECT_DEATH(failed.value().clear(), printed);
  EXPECT_DEATH((void)constant.value().size(), printed);
  EXPECT_DEATH(std::string(std::move(failed).value()), printed);
  EXPECT_DEATH((*failed).clear(), printed);
  EXPECT_DEATH((void)(*constant).size(), printed);
  EXPECT_DEATH(failed->clear(), printed);
  EXPECT_DEATH((void)constant->size(), printed);
}

}  // namespace
}  // namespace tandem

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "common/cli/arguments.h"
#include "common/cli/nearest_name.h"

namespace tandem::cli {
namespace {

std::vector<std::string> Split(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "program");
  std::vector<std::string> reversed = Arguments(static_cast<int>(arguments.size()), arguments.data());
  return {reversed.rbegin(), reversed.rend()};
}

TEST(ArgumentsTest, AnEmptyValueIsAnArgumentOfItsOwn) {
  using Strings = std::vector<std::string>;
  EXPECT_EQ(Split({"--group=", "--check"}), (Strings{"--group", "", "--check"}));
  EXPECT_EQ(Split({"--group=a=", "-o=", "x=", "--"}), (Strings{"--group=a=", "-o=", "x=", "--"}));
  EXPECT_EQ(Split({"--", "--group="}), (Strings{"--", "--group="}));
}

TEST(ArgumentsTest, AnEmptyValueDoesNotTakeTheNextArgument) {
  CLI::App app;
  std::string group = "default";
  bool check = false;
  app.add_option("--group", group);
  app.add_flag("--check", check);
  const char* argv[] = {"program", "--group=", "--check"};
  std::vector<std::string> arguments = Arguments(3, argv);
  app.parse(arguments);
  EXPECT_EQ(group, "");
  EXPECT_TRUE(check);
}

TEST(NearestNameTest, FindsWhatWasMeant) {
  const std::vector<std::string> names = {"stats", "topo", "top", "queue", "matmul_reduce_scatter"};
  EXPECT_EQ(NearestName("stts", names), "stats");
  EXPECT_EQ(NearestName("top", names), "top");
  EXPECT_EQ(NearestName("matmul_reduce_scater", names), "matmul_reduce_scatter");
  EXPECT_EQ(NearestName("xyzzy", names), "");
  EXPECT_EQ(NearestName("", names), "");
  EXPECT_EQ(NearestName(std::string(1000, 'q'), names), "");
  EXPECT_EQ(DidYouMean("queu", names), "; did you mean 'queue'?");
  EXPECT_EQ(DidYouMean("nothing_like_it", names), "");
}

}  // namespace
}  // namespace tandem::cli

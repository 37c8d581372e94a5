#include "common/log_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace tandem::log {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

TEST(SplitFieldsTest, TakesThePairsAtBothEnds) {
  Line line = SplitFields("session=7 attached pid=12 uid=1000 owner=pod/a-1 name=\"two words\"");
  EXPECT_EQ(line.message, "attached");
  EXPECT_THAT(line.fields, ElementsAre(Pair("session", "7"), Pair("pid", "12"), Pair("uid", "1000"),
                                       Pair("owner", "pod/a-1"), Pair("name", "two words")));
  line = SplitFields("gpu=0 group=3 plan=12 launch=41 failed: rank 2 was killed");
  EXPECT_EQ(line.message, "failed: rank 2 was killed");
  EXPECT_THAT(line.fields,
              ElementsAre(Pair("gpu", "0"), Pair("group", "3"), Pair("plan", "12"), Pair("launch", "41")));
  line = SplitFields("stopped");
  EXPECT_EQ(line.message, "stopped");
  EXPECT_THAT(line.fields, IsEmpty());
}

TEST(SplitFieldsTest, LeavesWhatIsNoPairOfTheLine) {
  const auto unchanged = [](const char* text) {
    const Line line = SplitFields(text);
    EXPECT_EQ(line.message, text);
    EXPECT_THAT(line.fields, IsEmpty()) << text;
  };
  unchanged("engine pid=77 does not end: killing it");
  unchanged("set backend=cuda, or none");
  unchanged("it ended (pid=7 uid=3)");
  unchanged("rank 2 of 'x pid=7'");
  unchanged("configuration: log_level=\"warning\"");
  unchanged("configuration: quotas.plans=1");
  unchanged("name=\"open quotes");
  unchanged("name=\"a\"b");
  unchanged("empty pid=");
  unchanged("=7 a");
  unchanged("it is level=3");
  unchanged("time=1");
  unchanged("line\npid=7");
  unchanged("");
  unchanged(" ");
}

TEST(SplitFieldsTest, TheFirstOfTwoEqualKeysCounts) {
  const Line line = SplitFields("session=7 lost session=8");
  EXPECT_EQ(line.message, "lost session=8");
  EXPECT_THAT(line.fields, ElementsAre(Pair("session", "7")));
}

TEST(SplitFieldsTest, OnlyPairsAreAMessageToo) {
  const Line line = SplitFields("gpu=1 pid=2");
  EXPECT_EQ(line.message, "gpu=1 pid=2");
  EXPECT_THAT(line.fields, ElementsAre(Pair("gpu", "1"), Pair("pid", "2")));
}

TEST(FieldValueTest, QuotesWhatCouldPassForMore) {
  EXPECT_EQ(FieldValue("rank-0"), "rank-0");
  EXPECT_EQ(FieldValue(""), "\"\"");
  for (const char* text : {"a uid=0", "a\" uid=0 b=\"", "back\\slash", "a=b", "end)", "two\nlines", "\\\""}) {
    const Line line = SplitFields("attached uid=7 name=" + FieldValue(text));
    EXPECT_EQ(line.message, "attached") << text;
    EXPECT_THAT(line.fields, ElementsAre(Pair("uid", "7"), Pair("name", text)));
  }
}

TEST(LogLineTest, LogfmtQuotesWhatNeedsIt) {
  EXPECT_EQ(LogfmtLine("T", "info", {"engine ready", {{"gpu", "1"}, {"name", "a \"b\""}, {"none", ""}}}),
            "ts=T level=info msg=\"engine ready\" gpu=1 name=\"a \\\"b\\\"\" none=\"\"");
  EXPECT_EQ(LogfmtLine("T", "error", {"a\nb\x01\xff", {{"name", "\xff"}}}),
            "ts=T level=error msg=\"a\\nb\\u0001\xef\xbf\xbd\" name=\"\xef\xbf\xbd\"");
}

TEST(LogLineTest, JsonIsOneObjectOfALine) {
  const std::string text = JsonLine(
      "T", "warning", {"two\nlines \"x\" \xff\x7f", {{"session", "7"}, {"name", "7"}, {"pid", "x"}}});
  EXPECT_EQ(text.find('\n'), std::string::npos);
  const auto object = nlohmann::json::parse(text);
  EXPECT_EQ(object["time"], "T");
  EXPECT_EQ(object["level"], "warning");
  EXPECT_EQ(object["message"], "two\nlines \"x\" \xef\xbf\xbd\x7f");
  EXPECT_EQ(object["session"], 7);
  EXPECT_EQ(object["name"], "7");
  EXPECT_EQ(object["pid"], "x");
}

TEST(LogLineTest, JournalFieldsCarryTheWholeText) {
  EXPECT_THAT(JournalFields('4', "session=7 two\nlines", {{"session", "7"}, {"exit_code", "a\nMESSAGE=b"}}),
              ElementsAre("PRIORITY=4", "MESSAGE=session=7 two lines", "SYSLOG_IDENTIFIER=tandemd",
                          "TANDEM_SESSION=7", "TANDEM_EXIT_CODE=a MESSAGE=b"));
}

TEST(LogLineTest, TimesAreUtc) {
  using std::chrono::milliseconds;
  EXPECT_EQ(Rfc3339(std::chrono::system_clock::time_point(milliseconds(1767225599007))),
            "2025-12-31T23:59:59.007Z");
}

}  // namespace
}  // namespace tandem::log

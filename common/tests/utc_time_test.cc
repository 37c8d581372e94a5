// UtcNow: the form of the text, and that it is the present time.
#include "common/utc_time.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(UtcTime, IsTheTimeOfTheSystemsClock) {
  const std::time_t before = std::time(nullptr);
  const std::string text = UtcNow();
  const std::time_t after = std::time(nullptr);
  ASSERT_EQ(text.size(), 20u) << text;
  std::tm parts{};
  const char* const end = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  ASSERT_TRUE(end != nullptr && *end == '\0') << text;
  const std::time_t read = ::timegm(&parts);
  EXPECT_LE(before, read);
  EXPECT_LE(read, after);
}

}  // namespace
}  // namespace tandem

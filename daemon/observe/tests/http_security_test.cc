#include "daemon/observe/http_security.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace tandem::daemon {
namespace {

using testing::HasSubstr;

// Certificates are in the integration test, which has openssl make one.
class HttpSecurityTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/security.XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string Write(const std::string& name, const std::string& text, mode_t mode = 0600) {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path) << text;
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path;
  }
  std::shared_ptr<const HttpSecurity> WithPassword(const std::string& text) {
    auto security = HttpSecurity::Load({.user = "u", .password = Write("password", text)});
    EXPECT_TRUE(security.ok()) << security.status().ToString();
    return security.ok() ? *security : nullptr;
  }
  Status Refused(const HttpSecurityFiles& files) { return HttpSecurity::Load(files).status(); }

  std::string directory_;
};

TEST_F(HttpSecurityTest, NothingIsAskedByDefault) {
  const auto security = HttpSecurity::Load({});
  ASSERT_TRUE(security.ok());
  EXPECT_FALSE((*security)->has_tls());
  EXPECT_FALSE((*security)->has_password());
  EXPECT_TRUE((*security)->Allows(""));
}

TEST_F(HttpSecurityTest, OnlyTheNameWithThePasswordIsAllowed) {
  const auto security = WithPassword("p\n");
  ASSERT_NE(security, nullptr);
  EXPECT_TRUE(security->has_password());
  EXPECT_TRUE(security->Allows("Basic dTpw"));  // u:p
  for (const char* wrong :
       {"", "Basic ", "Bearer dTpw", "Basic dTpx" /* u:q */, "Basic dTpwcA==" /* u:pp */,
        "Basic dTo=" /* u: */, "Basic djpw" /* v:p */, "Basic dTpwCg==" /* with a line end */}) {
    EXPECT_FALSE(security->Allows(wrong)) << wrong;
  }
  EXPECT_TRUE(WithPassword("p")->Allows("Basic dTpw"));
  EXPECT_TRUE(WithPassword("p\r\n")->Allows("Basic dTpw"));
}

TEST_F(HttpSecurityTest, FilesThatOthersMayReadAreRefused) {
  for (const mode_t mode : {0640, 0604, 0620, 0602, 0610}) {
    const std::string path = Write("password", "p", mode);
    const Status refused = Refused({.user = "u", .password = path});
    EXPECT_EQ(refused.code(), Code::kPermissionDenied) << mode;
    EXPECT_THAT(refused.message(), HasSubstr(path));
  }
  const std::string certificate = Write("certificate", "none", 0644), key = Write("key", "none", 0644);
  EXPECT_THAT(Refused({.certificate = certificate, .key = key}).message(), HasSubstr(key + " may be read"));
}

TEST_F(HttpSecurityTest, WhatIsNoPasswordIsRefused) {
  for (const char* text : {"", "\n", "two\nlines", "two\n\n"})
    EXPECT_THAT(Refused({.user = "u", .password = Write("password", text)}).message(), HasSubstr("one line"))
        << text;
  EXPECT_EQ(Refused({.user = "u", .password = directory_ + "/none"}).code(), Code::kNotFound);
  EXPECT_THAT(Refused({.user = "u", .password = directory_}).message(), HasSubstr("no regular file"));
}

TEST_F(HttpSecurityTest, WhatIsNoCertificateIsRefused) {
  const std::string certificate = Write("certificate", "none", 0644), key = Write("key", "none");
  EXPECT_THAT(Refused({.certificate = certificate, .key = key}).message(),
              HasSubstr(certificate + " has no certificate"));
  EXPECT_EQ(Refused({.certificate = directory_ + "/none", .key = key}).code(), Code::kNotFound);
}

}  // namespace
}  // namespace tandem::daemon

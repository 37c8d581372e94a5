// The library as C programs use it, against a fake control half that it loads by itself.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tandem/tandem.h"

namespace tandem::client {
namespace {

class LoadedTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { ::setenv("TANDEM_CONTROL_LIBRARY", TANDEM_FAKE_HALF, 1); }
  void Tell() {
    void* half = ::dlopen(TANDEM_FAKE_HALF, RTLD_NOW | RTLD_NOLOAD);
    ASSERT_NE(half, nullptr);
    reinterpret_cast<void (*)()>(::dlsym(half, "fake_half_tell"))();
    ::dlclose(half);
  }
  static void Count(void* user, int, uint64_t, int, const tandem_status*) { ++*static_cast<int*>(user); }
};

TEST_F(LoadedTest, AFreedClientsCallbackIsNotCalledThoughItsGroupLives) {
  tandem_client* client = nullptr;
  ASSERT_EQ(tandem_connect(nullptr, "test", 1000, &client), nullptr);
  tandem_join_options join{};
  join.job_key = "0123456789abcdef";
  join.job_key_bytes = 16;
  join.world_size = 1;
  tandem_group* group = nullptr;
  ASSERT_EQ(tandem_join_group(client, &join, &group), nullptr);
  int calls = 0;
  tandem_client_on_event(client, &Count, &calls);
  Tell();
  EXPECT_EQ(calls, 1);
  tandem_client_free(client);
  Tell();
  EXPECT_EQ(calls, 1);
  tandem_group_free(group);
}

TEST_F(LoadedTest, TheLibraryStaysInAProcessThatClosesIt) {
  void* library = ::dlopen(TANDEM_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << ::dlerror();
  ASSERT_EQ(::dlclose(library), 0);
  library = ::dlopen(TANDEM_LIBRARY, RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr) << "threads of the library would run on in nothing";
  ::dlclose(library);
}

}  // namespace
}  // namespace tandem::client

// The library as C programs use it, against a fake gRPC plugin that it loads by itself.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "tandem/tandem.h"

namespace tandem::client {
namespace {

class LoadedTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { ::setenv("TANDEM_GRPC_LIBRARY", TANDEM_FAKE_PLUGIN, 1); }
  void Tell() {
    void* plugin = ::dlopen(TANDEM_FAKE_PLUGIN, RTLD_NOW | RTLD_NOLOAD);
    ASSERT_NE(plugin, nullptr);
    reinterpret_cast<void (*)()>(::dlsym(plugin, "fake_plugin_tell"))();
    ::dlclose(plugin);
  }
  // A client, and a group that it is the only rank of; the caller frees both.
  static void JoinAlone(tandem_client** client, tandem_group** group) {
    ASSERT_EQ(tandem_connect(nullptr, "test", 1000, client), nullptr);
    tandem_join_options join;
    tandem_join_options_init(&join, sizeof(join));
    join.job_key = "0123456789abcdef";
    join.job_key_bytes = 16;
    join.world_size = 1;
    ASSERT_EQ(tandem_join_group(*client, &join, group), nullptr);
  }
  static void Count(void* user, int, uint64_t, int, const tandem_status*) { ++*static_cast<int*>(user); }
};

TEST_F(LoadedTest, AFreedClientsCallbackIsNotCalledThoughItsGroupLives) {
  tandem_client* client = nullptr;
  tandem_group* group = nullptr;
  ASSERT_NO_FATAL_FAILURE(JoinAlone(&client, &group));
  int calls = 0;
  tandem_client_on_event(client, &Count, &calls);
  Tell();
  EXPECT_EQ(calls, 1);
  tandem_client_free(client);
  Tell();
  EXPECT_EQ(calls, 1);
  tandem_group_free(group);
}

TEST_F(LoadedTest, NumbersThatAreNoneOfTheEnumerationsAreRefused) {
  tandem_client* client = nullptr;
  tandem_group* group = nullptr;
  ASSERT_NO_FATAL_FAILURE(JoinAlone(&client, &group));
  const int64_t shape[] = {4};
  tandem_operand operand;
  tandem_operand_init(&operand, sizeof(operand));
  operand.shape = shape;
  operand.dims = 1;
  const auto prepare = [&](const tandem_request& request) {
    tandem_plan* plan = nullptr;
    tandem_status* status = tandem_prepare(group, "key", &request, 1000, &plan);
    const std::string text =
        tandem_status_code(status) == 3 ? tandem_status_field(status) : "";  // INVALID_ARGUMENT
    tandem_status_free(status);
    tandem_plan_free(plan);
    return text;
  };
  tandem_request right;
  tandem_request_init(&right, sizeof(right));
  right.operands = &operand;
  right.operand_count = 1;
  EXPECT_EQ(prepare(right), "");
  // Numbers that a byte would take for others.
  const std::pair<int tandem_request::*, const char*> fields[] = {
      {&tandem_request::op, "op"},
      {&tandem_request::reduce_op, "reduce_op"},
      {&tandem_request::wire, "wire"},
      {&tandem_request::algorithm, "algorithm"},
      {&tandem_request::on_unfused, "on_unfused"},
      {&tandem_request::placement, "placement"},
      {&tandem_request::determinism, "determinism"},
      {&tandem_request::rounding, "rounding"}};
  for (const auto& [field, name] : fields) {
    for (int value : {256, -256, 1 << 30}) {
      tandem_request wrong = right;
      wrong.*field = value;
      EXPECT_EQ(prepare(wrong), name) << value;
    }
  }
  operand.role = 256;
  EXPECT_EQ(prepare(right), "operands[0].role");
  operand.role = TANDEM_ROLE_INPUT;
  right.operands = nullptr;
  EXPECT_EQ(prepare(right), "operands");
  right.operands = &operand;
  right.transfer_count = 1;
  EXPECT_EQ(prepare(right), "transfers");
  tandem_group_free(group);
  tandem_client_free(client);
}

// A program that was built against another header: its structs are shorter or longer than this library's.
TEST_F(LoadedTest, StructsOfOtherSizesAreReadByTheirSize) {
  tandem_client* client = nullptr;
  tandem_group* group = nullptr;
  ASSERT_NO_FATAL_FAILURE(JoinAlone(&client, &group));
  struct Longer {
    tandem_request request;
    int64_t later_field;
  } longer;
  std::memset(static_cast<void*>(&longer), 0xff, sizeof(longer));
  tandem_request_init(&longer.request, sizeof(longer));
  EXPECT_EQ(longer.request.struct_size, sizeof(longer));
  EXPECT_EQ(longer.later_field, 0);
  const auto prepare = [&](const tandem_request& request) {
    tandem_plan* plan = nullptr;
    tandem_status* status = tandem_prepare(group, "key", &request, 1000, &plan);
    const std::string field = tandem_status_field(status);
    tandem_status_free(status);
    tandem_plan_free(plan);
    return field;
  };
  EXPECT_EQ(prepare(longer.request), "");
  // As long as the first version's, and nothing behind it is read.
  tandem_request shorter;
  std::memset(static_cast<void*>(&shorter), 0xff, sizeof(shorter));
  tandem_request_init(&shorter, offsetof(tandem_request, autotune));
  EXPECT_EQ(shorter.autotune, -1);
  EXPECT_EQ(prepare(shorter), "");
  longer.later_field = 1;
  EXPECT_EQ(prepare(longer.request), "request")
      << "the caller relies on a field that this library does not have";
  tandem_request zeroed{};
  EXPECT_EQ(prepare(zeroed), "request.struct_size");
  tandem_operand operands[2];
  for (tandem_operand& operand : operands) tandem_operand_init(&operand, sizeof(operand));
  operands[1].struct_size = 0;
  tandem_request_init(&zeroed, sizeof(zeroed));
  zeroed.operands = operands;
  zeroed.operand_count = 2;
  EXPECT_EQ(prepare(zeroed), "operand.struct_size");
  // Nothing behind the caller's own size is written.
  unsigned char canary[sizeof(tandem_request)];
  std::memset(canary, 0xab, sizeof(canary));
  tandem_request_init(reinterpret_cast<tandem_request*>(canary), sizeof(size_t));
  EXPECT_EQ(canary[sizeof(size_t)], 0xab);
  tandem_group_free(group);
  tandem_client_free(client);
}

TEST_F(LoadedTest, DeadlinesAreTheDefaultTheCallersOrNone) {
  tandem_client* client = nullptr;
  tandem_group* group = nullptr;
  ASSERT_NO_FATAL_FAILURE(JoinAlone(&client, &group));
  const auto asked = [] {
    void* plugin = ::dlopen(TANDEM_FAKE_PLUGIN, RTLD_NOW | RTLD_NOLOAD);
    return reinterpret_cast<int64_t (*)()>(::dlsym(plugin, "fake_plugin_deadline"))();
  };
  tandem_request request;
  tandem_request_init(&request, sizeof(request));
  for (auto [given, expected] :
       {std::pair<int64_t, int64_t>{TANDEM_DEFAULT_DEADLINE, TANDEM_DEFAULT_DEADLINE_MS},
        {1234, 1234},
        {TANDEM_DO_NOT_WAIT, 0},
        {INT64_MIN, 0}}) {
    tandem_plan* plan = nullptr;
    ASSERT_EQ(tandem_prepare(group, "key", &request, given, &plan), nullptr);
    EXPECT_EQ(asked(), expected) << given;
    tandem_plan_free(plan);
  }
  tandem_group_free(group);
  tandem_client_free(client);
}

TEST_F(LoadedTest, ALaunchWithoutItsBindingsSaysThatNothingIsBound) {
  tandem_client* client = nullptr;
  tandem_group* group = nullptr;
  ASSERT_NO_FATAL_FAILURE(JoinAlone(&client, &group));
  tandem_request request;
  tandem_request_init(&request, sizeof(request));
  tandem_plan* plan = nullptr;
  ASSERT_EQ(tandem_prepare(group, "key", &request, 1000, &plan), nullptr);
  tandem_stream* stream = nullptr;
  ASSERT_EQ(tandem_stream_create(&stream), nullptr);
  tandem_status* status = tandem_launch(plan, stream, nullptr, 2, 0, nullptr);
  EXPECT_EQ(tandem_status_code(status), 3) << tandem_status_message(status);
  tandem_status_free(status);
  tandem_plan_free(plan);
  tandem_group_free(group);
  tandem_client_free(client);
  EXPECT_EQ(tandem_stream_synchronize(stream, 20000), nullptr) << "a freed client's streams go on";
  tandem_stream_free(stream);
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

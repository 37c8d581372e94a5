// Slots of one launch that share memory, by all ways to bind and to launch.
#include <gtest/gtest.h>

#include <vector>

#include "client/lib/base/slot_overlap.h"
#include "client/tests/fake_daemon_test.h"

namespace tandem::client {
namespace {

Operand Of(Role role, std::vector<int64_t> shape, std::vector<int64_t> strides = {}, int alias_of = -1) {
  return {role, {DType::kF32, std::move(shape), std::move(strides)}, false, alias_of};
}

OpRequest AllReduce(int alias_of = -1) {
  OpRequest request{.op = Op::kAllReduce};
  request.operands = {Of(Role::kInput, {256}), Of(Role::kOutput, {256}, {}, alias_of)};
  return request;
}

// The pair that a launch with slots at these addresses shares, as "first second"; "" if none.
std::string Shared(const OpRequest& request, const std::vector<uintptr_t>& at) {
  SlotAddresses addresses{};
  std::copy(at.begin(), at.end(), addresses.begin());
  const auto pair = SlotOverlap(request).Find(addresses);
  return pair.has_value() ? std::to_string(pair->first) + " " + std::to_string(pair->second) : "";
}

TEST(SlotOverlap, ReachesFromTheFirstByteToTheLast) {
  const OpRequest request = AllReduce();
  EXPECT_EQ(Shared(request, {4096, 4096}), "0 1");
  EXPECT_EQ(Shared(request, {4096, 4096 + 1023}), "0 1");
  EXPECT_EQ(Shared(request, {4096 + 1023, 4096}), "0 1");
  EXPECT_EQ(Shared(request, {4096, 4096 + 1024}), "");
  EXPECT_EQ(Shared(request, {4096 + 1024, 4096}), "");
  EXPECT_EQ(Shared(request, {0, 512}), "") << "a slot that is not bound is another error";
}

TEST(SlotOverlap, IsAllowedInPlaceAndOfInputs) {
  EXPECT_EQ(Shared(AllReduce(0), {4096, 4096}), "");
  OpRequest matmul{.op = Op::kMatmulAllReduce};
  matmul.operands = {Of(Role::kA, {8, 8}), Of(Role::kB, {8, 8}), Of(Role::kC, {8, 8})};
  EXPECT_EQ(Shared(matmul, {4096, 4096, 8192}), "") << "both are only read";
  EXPECT_EQ(Shared(matmul, {4096, 8192, 8200}), "1 2");
}

TEST(SlotOverlap, AReceivedSlotIsWritten) {
  OpRequest request{.op = Op::kSendReceive};
  request.operands = {Of(Role::kInput, {8}), Of(Role::kInput, {8}), Of(Role::kOutput, {8})};
  request.transfers = {{true, 1, 0}, {true, 1, 1}, {false, 1, 2}};
  EXPECT_EQ(Shared(request, {4096, 4096, 8192}), "");
  EXPECT_EQ(Shared(request, {4096, 8192, 8192 + 16}), "1 2");
}

// A product with nothing to sum: B has no element and, by columns, a stride of 0.
TEST(SlotOverlap, ATensorWithoutElementsOverlapsNothing) {
  OpRequest request{.op = Op::kMatmulAllReduce};
  request.operands = {Of(Role::kA, {8, 0}), Of(Role::kB, {0, 8}, {1, 0}), Of(Role::kC, {8, 8})};
  EXPECT_EQ(Shared(request, {4096, 8192, 8192}), "");
}

TEST(SlotOverlap, ColumnsOfOneMatrixAreApart) {
  // B0 | B1 -> C0 | C1: two products side by side in a matrix of 32 columns of 4 bytes.
  OpRequest request{.op = Op::kAllGatherMatmul};
  request.operands = {Of(Role::kC, {8, 16}, {32, 1}), Of(Role::kC, {8, 16}, {32, 1})};
  EXPECT_EQ(Shared(request, {4096, 4096 + 64}), "");
  EXPECT_EQ(Shared(request, {4096 + 64, 4096}), "");
  EXPECT_EQ(Shared(request, {4096, 4096 + 60}), "0 1");
  EXPECT_EQ(Shared(request, {4096, 4096 + 68}), "0 1") << "it wraps into the next row";
  EXPECT_EQ(Shared(request, {4096, 4096 + 128}), "0 1") << "the same columns, a row on";
  request.operands[1] = Of(Role::kC, {8, 16}, {33, 1});
  EXPECT_EQ(Shared(request, {4096, 4096 + 64}), "0 1") << "another pitch";
}

class OverlapTest : public HostClientTest {
 protected:
  void SetUp() override {
    HostClientTest::SetUp();
    memory_ = client_->AllocateRegistered(4096, "GPU-0").value();
    tensor_ = group_->Allocate({1024}, DType::kF32).value();
    reduce_ = group_->Prepare("reduce", AllReduce()).value();
  }
  // A refused launch arrives, with a slot that the engine refuses.
  void ExpectRefused(const std::vector<Binding>& bindings) {
    const Status status = reduce_->Launch(stream_.get(), bindings);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.ToString();
    EXPECT_EQ(status.detail().reason, "SLOTS_OVERLAP");
    EXPECT_EQ(status.detail().field, "bindings[1]");
    EXPECT_EQ(status.detail().started, false);
    EXPECT_NE(status.message().find("slot 1"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("slot 0"), std::string::npos) << status.message();
    const LaunchEntry entry = Arrive(Engine());
    EXPECT_EQ(entry.bindings[1].registration_id, 0u);
    Finish(Engine(), entry);
  }

  std::shared_ptr<Memory> memory_;
  std::shared_ptr<SymmetricTensor> tensor_;
  std::shared_ptr<Plan> reduce_;
};

TEST_F(OverlapTest, ALaunchThatReadsWhatItWritesIsRefused) {
  ExpectRefused({{.memory = memory_.get()}, {.memory = memory_.get()}});
  ExpectRefused({{.memory = memory_.get()}, {.memory = memory_.get(), .offset = 1020}});
  ExpectRefused({{.memory = memory_.get()}, {.pointer = memory_->data() + 512}});
  ExpectRefused({{.pointer = memory_->data()}, {.offset = 512, .pointer = memory_->data()}});
  ExpectRefused({{.memory = tensor_.get()}, {.pointer = tensor_->data()}});
  const std::vector<Binding> apart = {{.memory = memory_.get()}, {.memory = memory_.get(), .offset = 1024}};
  EXPECT_TRUE(reduce_->Launch(stream_.get(), apart).ok());
  Finish(Engine(), Arrive(Engine()));
}

TEST_F(OverlapTest, ACaptureIsRefusedWithoutALaunch) {
  ASSERT_TRUE(stream_->BeginCapture().ok());
  const std::vector<Binding> same = {{.memory = memory_.get()}, {.memory = memory_.get()}};
  EXPECT_EQ(reduce_->Launch(stream_.get(), same).detail().reason, "SLOTS_OVERLAP");
  EXPECT_TRUE(stream_->EndCapture().ok());
}

TEST_F(OverlapTest, ALaunchWithoutAStreamReportsItsBindingsWhenItIsWaitedFor) {
  daemon_->wait_launch = [](uint64_t, Milliseconds) {
    return FailedPrecondition("launch 1 was refused on rank 0").WithDetail({.reason = "LAUNCH_REFUSED"});
  };
  const std::vector<Binding> same = {{.memory = memory_.get()}, {.memory = memory_.get()}};
  const uint64_t launch = reduce_->LaunchWithoutStream(same).value();
  EXPECT_EQ(reduce_->WaitLaunch(launch, kLong).detail().reason, "SLOTS_OVERLAP");
}

TEST_F(OverlapTest, ErrorsOfBindingsNameTheSlotAndAReason) {
  const auto launch = [&](const std::vector<Binding>& bindings) {
    const Status status = reduce_->Launch(stream_.get(), bindings);
    Finish(Engine(), Arrive(Engine()));
    return status.detail().reason + " " + status.detail().field;
  };
  EXPECT_EQ(launch({{.memory = memory_.get()}}), "BINDING_COUNT bindings");
  EXPECT_EQ(launch({{.memory = memory_.get()}, {}}), "NOT_BOUND bindings[1]");
  EXPECT_EQ(launch({{.memory = memory_.get()}, {.memory = memory_.get(), .offset = 4000}}),
            "BINDING_TOO_SMALL bindings[1]");
  EXPECT_EQ(launch({{.memory = memory_.get()}, {.pointer = memory_->data() + 4000}}),
            "BINDING_TOO_SMALL bindings[1]");
  int elsewhere = 0;
  EXPECT_EQ(launch({{.pointer = &elsewhere}, {.memory = memory_.get()}}), "NOT_REGISTRABLE bindings[0]");
}

}  // namespace
}  // namespace tandem::client

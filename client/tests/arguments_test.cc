// The library's errors for arguments that cannot be right, and for handles whose time is over, before any
// daemon is asked.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "client/tests/fake_daemon_test.h"

namespace tandem::client {
namespace {

class ArgumentsTest : public HostClientTest {
 protected:
  // A plan of one slot of 1024 bytes.
  std::shared_ptr<Plan> Bound(const std::shared_ptr<Group>& group) {
    OpRequest request{.op = Op::kAllReduce, .operands = {}, .transfers = {}};
    request.operands.push_back({Role::kInput, {DType::kF32, {256}, {}}});
    return group->Prepare("bound", request).value();
  }
  // The error of a launch bound to `binding`, and the slot's binding that the engine gets for it.
  Status Launch(Plan& plan, const Binding& binding, LaunchBinding* sent) {
    Status status = plan.Launch(stream_.get(), {&binding, 1});
    const LaunchEntry entry = Arrive(Engine());
    *sent = entry.bindings[0];
    Finish(Engine(), entry);
    EXPECT_TRUE(stream_->Synchronize(kLong).ok());
    return status;
  }
};

TEST_F(ArgumentsTest, ARankWithoutAGpuOfItsIndexMustNameOne) {
  JoinOptions join;
  join.job_key = "0123456789abcdef";
  join.world_size = 2;
  join.rank = 1;
  const Status status = client_->JoinGroup(join).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.detail().field, "gpu_uuid");
  join.gpu_uuid = "GPU-0";
  EXPECT_TRUE(client_->JoinGroup(join).ok());
}

TEST_F(ArgumentsTest, ATensorMeetsInAGroupOfItsClientOnly) {
  auto another = std::make_shared<FakeDaemon>();
  auto other = ConnectThrough(std::make_unique<FakeControl>(another), {}).value();
  const uint64_t tensor = client_->Empty({16}, DType::kF32, "GPU-0").value();
  EXPECT_TRUE(client_->Rendezvous(tensor, group_).ok());
  EXPECT_EQ(other->Rendezvous(tensor, group_).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(client_->Rendezvous(tensor, nullptr).status().code(), Code::kInvalidArgument);
}

TEST_F(ArgumentsTest, ALaunchRefusesMemoryOfAnotherGroupOrClient) {
  auto plan = Bound(group_);
  daemon_->group_id = 12;
  JoinOptions join;
  join.job_key = "0123456789abcdef";
  join.name = "stages";
  join.world_size = 2;
  auto stages = client_->JoinGroup(join).value();
  auto tensor = stages->Allocate({1024}, DType::kF32).value();
  auto another = std::make_shared<FakeDaemon>();
  auto other = ConnectThrough(std::make_unique<FakeControl>(another), {}).value();
  auto others = other->AllocateRegistered(2048, "GPU-0").value();
  LaunchBinding sent;
  for (const Binding& binding : {Binding{.memory = tensor.get()}, Binding{.pointer = tensor->data() + 64}}) {
    const Status status = Launch(*plan, binding, &sent);
    EXPECT_EQ(status.code(), Code::kFailedPrecondition) << status.ToString();
    EXPECT_EQ(status.detail().reason, "OTHER_GROUP");
    EXPECT_EQ(status.detail().field, "bindings[0]");
    EXPECT_NE(status.message().find("'stages'"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("Rendezvous"), std::string::npos) << status.message();
    EXPECT_EQ(sent.registration_id, 0u) << "the engine refuses it on all ranks";
  }
  const Status status = Launch(*plan, {.memory = others.get()}, &sent);
  EXPECT_EQ(status.detail().reason, "OTHER_CLIENT") << status.ToString();
  EXPECT_EQ(status.detail().field, "bindings[0]");
}

TEST_F(ArgumentsTest, ALaunchRefusesAnOffsetWithinAnElement) {
  auto plan = Bound(group_);
  auto memory = client_->AllocateRegistered(2048, "GPU-0").value();
  LaunchBinding sent;
  for (const Binding& binding :
       {Binding{.memory = memory.get(), .offset = 6}, Binding{.offset = 2, .pointer = memory->data()}}) {
    const Status status = Launch(*plan, binding, &sent);
    EXPECT_EQ(status.detail().reason, "NOT_ALIGNED") << status.ToString();
    EXPECT_EQ(status.detail().field, "bindings[0]");
  }
  EXPECT_TRUE(Launch(*plan, {.memory = memory.get(), .offset = 8}, &sent).ok());
}

TEST_F(ArgumentsTest, AJoinNamesTheFieldThatIsWrong) {
  JoinOptions join;
  join.job_key = "0123456789abcdef";
  join.rank = -1;
  EXPECT_EQ(client_->JoinGroup(join).status().detail().field, "rank");
  join.rank = 0;
  join.launch_deadline = Milliseconds(-1);
  EXPECT_EQ(client_->JoinGroup(join).status().detail().field, "launch_deadline");
}

TEST_F(ArgumentsTest, MemoryOfNoBytesIsMadeAndOfTooManyRefused) {
  auto none = client_->AllocateRegistered(0, "GPU-0");
  EXPECT_TRUE(none.ok()) << none.status().ToString();
  const Status status = client_->AllocateRegistered(std::numeric_limits<size_t>::max(), "GPU-0").status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.ToString();
  EXPECT_EQ(status.detail().field, "bytes");
}

TEST_F(ArgumentsTest, AddressesOfTheSessionsMemoryAreBindings) {
  auto plan = Bound(group_);
  auto tensor = group_->Allocate({1024}, DType::kF32).value();
  auto memory = client_->AllocateRegistered(2048, "GPU-0").value();
  LaunchBinding sent;
  EXPECT_TRUE(Launch(*plan, {.pointer = memory->data()}, &sent).ok());
  EXPECT_EQ(sent.registration_id, memory->registration_id());
  EXPECT_EQ(sent.offset, 0u);
  EXPECT_TRUE(Launch(*plan, {.offset = 512, .pointer = memory->data() + 512}, &sent).ok());
  EXPECT_EQ(sent.offset, 1024u);
  EXPECT_TRUE(Launch(*plan, {.pointer = tensor->data() + 3072}, &sent).ok());
  EXPECT_EQ(sent.registration_id, tensor->registration_id());
  EXPECT_EQ(sent.offset, 3072u);
  // It ends before the slot does, is nobody's, or is not given.
  EXPECT_EQ(Launch(*plan, {.pointer = memory->data() + 1025}, &sent).code(), Code::kOutOfRange);
  EXPECT_EQ(sent.registration_id, 0u);
  std::vector<std::byte> users(1024);
  EXPECT_EQ(Launch(*plan, {.pointer = users.data()}, &sent).code(), Code::kInvalidArgument);
  EXPECT_EQ(Launch(*plan, {}, &sent).code(), Code::kInvalidArgument);
  // Nor once its last handle has gone.
  const std::byte* gone = memory->data();
  memory.reset();
  EXPECT_EQ(Launch(*plan, {.pointer = gone}, &sent).code(), Code::kInvalidArgument);
  EXPECT_EQ(sent.registration_id, 0u);
}

TEST_F(ArgumentsTest, MemoryOfAnotherGpuIsRefused) {
  auto plan = Bound(group_);
  auto elsewhere = client_->AllocateRegistered(2048, "GPU-1").value();
  LaunchBinding sent;
  const Status status = Launch(*plan, {.memory = elsewhere.get()}, &sent);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.detail().reason, "WRONG_DEVICE");
  EXPECT_EQ(sent.registration_id, 0u);
  // By its address too.
  const Status by_address = Launch(*plan, {.pointer = elsewhere->data()}, &sent);
  EXPECT_EQ(by_address.detail().reason, "WRONG_DEVICE") << by_address.ToString();
  EXPECT_EQ(sent.registration_id, 0u);
}

TEST_F(ArgumentsTest, AnotherGroupsTensorIsNoBindingByItsAddress) {
  auto tensor = group_->Allocate({1024}, DType::kF32).value();
  auto another = std::make_shared<FakeDaemon>();
  another->group_id = 12;
  auto other = ConnectThrough(std::make_unique<FakeControl>(another), {}).value();
  JoinOptions join;
  join.job_key = "0123456789abcdef";
  join.world_size = 2;
  auto plan = Bound(other->JoinGroup(join).value());
  const Binding binding{.pointer = tensor->data()};
  EXPECT_EQ(plan->Launch(stream_.get(), {&binding, 1}).code(), Code::kInvalidArgument);
  another->TellLoss("the test ends");
}

TEST_F(ArgumentsTest, WordsAreWrittenInStreamOrderAndWithinTheTensor) {
  auto tensor = group_->Allocate({1024}, DType::kF32).value();
  std::atomic<uint64_t> gate{0};
  ASSERT_TRUE(stream_->WaitWord(&gate, 1).ok());
  ASSERT_TRUE(tensor->StreamWriteValue32(stream_.get(), 1, 4092, 77).ok());
  auto* last = reinterpret_cast<uint32_t*>(tensor->GetBuffer(1, {1}, DType::kI32, 4092).value());
  EXPECT_EQ(std::atomic_ref<uint32_t>(*last).load(), 0u) << "written before its stream came";
  gate = 1;
  ASSERT_TRUE(stream_->Synchronize(kLong).ok());
  EXPECT_EQ(*last, 77u);
  EXPECT_EQ(tensor->StreamWriteValue32(stream_.get(), 1, 4090, 1).code(), Code::kInvalidArgument);
  EXPECT_EQ(tensor->StreamWriteValue32(stream_.get(), 1, 4096, 1).code(), Code::kOutOfRange);
  EXPECT_EQ(tensor->StreamWriteValue32(stream_.get(), 2, 0, 1).code(), Code::kOutOfRange);
  EXPECT_EQ(tensor->StreamWriteValue32(StreamRef::Cuda(nullptr), 1, 0, 1).code(), Code::kInvalidArgument);
  EXPECT_EQ(tensor->StreamWriteValue32(nullptr, 1, 0, 1).code(), Code::kInvalidArgument);
  EXPECT_EQ(tensor->Memset32(stream_.get(), 0, 8, 1, ~size_t{0} / 2).code(), Code::kOutOfRange);
  EXPECT_EQ(tensor->GetBuffer(0, {int64_t{1} << 62, 4}, DType::kI64).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(tensor->GetBuffer(0, {4, -1}, DType::kI64).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(tensor->GetBuffer(0, {1}, DType::kU8, ~size_t{0}).status().code(), Code::kOutOfRange);
  EXPECT_TRUE(tensor->SignalPad(2).empty());
  EXPECT_TRUE(tensor->SignalPad(-1).empty());
}

TEST_F(ArgumentsTest, AGroupIsLeftOnceItsLaunchesHaveEndedAndNotBefore) {
  ASSERT_TRUE(plan_->Launch(stream_.get(), {}).ok());
  const LaunchEntry entry = Arrive(Engine());
  const Status early = group_->Leave(Milliseconds(20));
  EXPECT_EQ(early.code(), Code::kDeadlineExceeded) << early.ToString();
  Finish(Engine(), entry);
  ASSERT_TRUE(plan_->Launch(stream_.get(), {}).ok()) << "the group goes on";
  Finish(Engine(), Arrive(Engine()));
  EXPECT_TRUE(group_->Leave(kLong).ok());
  const Status late = plan_->Launch(stream_.get(), {});
  EXPECT_EQ(late.code(), Code::kFailedPrecondition);
  EXPECT_EQ(plan_->LaunchWithoutStream({}).status().code(), Code::kFailedPrecondition);
}

TEST_F(ArgumentsTest, HandlesOfASessionThatHasDetachedSaySo) {
  auto tensor = group_->Allocate({16}, DType::kF32).value();
  auto memory = client_->AllocateRegistered(64, "GPU-0").value();
  ASSERT_TRUE(client_->Detach().ok());
  const OpRequest empty{.op = Op::kEmpty, .operands = {}, .transfers = {}};
  JoinOptions join;
  join.job_key = "0123456789abcdef";
  const Status statuses[] = {
      client_->Check(),
      client_->Detach(),
      client_->JoinGroup(join).status(),
      client_->Empty({1}, DType::kF32, "GPU-0").status(),
      client_->Rendezvous(1, group_).status(),
      client_->Free(1),
      client_->AllocateRegistered(64, "GPU-0").status(),
      group_->Prepare("more", empty).status(),
      group_->Allocate({1}, DType::kF32).status(),
      group_->Leave(kLong),
      plan_->Launch(stream_.get(), {}),
      plan_->LaunchWithoutStream({}).status(),
      plan_->WaitLaunch(1, kLong),
      plan_->Wait(kLong),
      plan_->Query().status(),
      plan_->Release(),
      tensor->PutSignal(1, 0, kLong),
      tensor->Barrier(0, kLong),
  };
  for (const Status& status : statuses) {
    EXPECT_EQ(status.code(), Code::kUnavailable) << &status - statuses;
    EXPECT_EQ(status.message(), "the client has detached") << &status - statuses;
  }
  std::memset(memory->data(), 1, memory->bytes());  // what is mapped stays so
  std::memset(tensor->data(), 1, tensor->bytes());
}

}  // namespace
}  // namespace tandem::client

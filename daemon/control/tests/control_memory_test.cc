#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>

#include "common/fd_socket.h"
#include "daemon/control/tests/control_fixture.h"

namespace tandem::daemon {
namespace {

using ::testing::HasSubstr;

class ControlMemoryTest : public ControlTest {
 protected:
  Result<v1::RendezvousReply> MakeSymmetric(const SessionRef& session, uint64_t tensor, uint64_t group,
                                            std::chrono::milliseconds deadline = std::chrono::seconds(30)) {
    return Rendezvous(session, tensor, group, Waiter::For(deadline));
  }
};

TEST_F(ControlMemoryTest, TensorsLieAtTheSameOffsetAndCostOneSegment) {
  Start(4);
  const auto sessions = AttachAll(4);
  const uint64_t group = Join(sessions);
  std::set<uint64_t> offsets;
  for (int i = 0; i < 20; ++i) {
    auto replies = Together(4, [&](int rank) {
      const SessionRef& session = sessions[static_cast<size_t>(rank)];
      return MakeSymmetric(session, Empty(session, rank, 1000), group);
    });
    for (auto& reply : replies) {
      ASSERT_TRUE(reply.ok()) << reply.status().ToString();
      EXPECT_EQ(reply->buffer_offset(), replies[0]->buffer_offset());
      EXPECT_EQ(reply->registration_id(), replies[0]->registration_id());
      EXPECT_GE(reply->pad_offset(), reply->buffer_offset() + 1000);
      EXPECT_LE(reply->pad_offset() + reply->signal_pad_bytes(), reply->segment_bytes());
    }
    EXPECT_TRUE(offsets.insert(replies[0]->buffer_offset()).second);
    EXPECT_TRUE(engines->Look(3).registrations.contains(replies[0]->registration_id()));
  }
  // One control segment and one of tensors, of each rank.
  EXPECT_EQ(control->SnapshotPools()[0].segments.size(), 2u);
  EXPECT_EQ(lease.sent(), 20u * 4 * 4);
}

TEST_F(ControlMemoryTest, SizesAreComparedAndLateRanksNamed) {
  Start(2);
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  auto replies = Together(2, [&](int rank) {
    return MakeSymmetric(sessions[static_cast<size_t>(rank)],
                         Empty(sessions[static_cast<size_t>(rank)], rank, 100 + rank), group);
  });
  for (auto& reply : replies) {
    EXPECT_EQ(reply.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(reply.status().message(), HasSubstr("rank 0 has 100 bytes, rank 1 has 101"));
  }
  const uint64_t tensor = Empty(sessions[0], 0, 64);
  const Status late = MakeSymmetric(sessions[0], tensor, group, std::chrono::milliseconds(20)).status();
  EXPECT_EQ(late.code(), Code::kDeadlineExceeded);
  EXPECT_THAT(late.message(), HasSubstr("rank 1"));
  // The late rank hears of it at once, and the next barrier works.
  EXPECT_EQ(MakeSymmetric(sessions[1], Empty(sessions[1], 1, 64), group).status().code(),
            Code::kDeadlineExceeded);
  auto again = Together(2, [&](int rank) {
    return MakeSymmetric(sessions[static_cast<size_t>(rank)],
                         Empty(sessions[static_cast<size_t>(rank)], rank, 64), group);
  });
  EXPECT_TRUE(again[0].ok() && again[1].ok());
  EXPECT_EQ(MakeSymmetric(sessions[0], 999999, group).status().code(), Code::kNotFound);
  EXPECT_EQ(MakeSymmetric(sessions[0], Empty(sessions[1], 1, 64), group).status().code(), Code::kNotFound);
}

TEST_F(ControlMemoryTest, NamesPersistAndFreedMemoryComesBack) {
  Start(2);
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  std::vector<uint64_t> named(2);
  auto first = Together(2, [&](int rank) {
    const size_t r = static_cast<size_t>(rank);
    named[r] = Empty(sessions[r], rank, 4096, "kv");
    return MakeSymmetric(sessions[r], named[r], group);
  });
  ASSERT_TRUE(first[0].ok() && first[1].ok());
  for (int rank = 0; rank < 2; ++rank) {
    const size_t r = static_cast<size_t>(rank);
    EXPECT_TRUE(control->Free(sessions[r], named[r]).ok());
    EXPECT_EQ(Empty(sessions[r], rank, 4096, "kv"), named[r]);
  }
  auto second = MakeSymmetric(sessions[0], named[0], group);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->buffer_offset(), first[0]->buffer_offset());
  EXPECT_EQ(second->registration_id(), first[0]->registration_id());

  std::vector<uint64_t> tensors(2);
  auto plain = Together(2, [&](int rank) {
    const size_t r = static_cast<size_t>(rank);
    tensors[r] = Empty(sessions[r], rank, 5000);
    return MakeSymmetric(sessions[r], tensors[r], group);
  });
  const uint64_t used = control->SnapshotPools()[0].used_bytes;
  ASSERT_TRUE(control->Free(sessions[0], tensors[0]).ok());
  EXPECT_EQ(control->SnapshotPools()[0].used_bytes, used);  // rank 1 still has it
  ASSERT_TRUE(control->Free(sessions[1], tensors[1]).ok());
  EXPECT_LT(control->SnapshotPools()[0].used_bytes, used);
  const uint64_t registration = plain[0]->registration_id();
  EXPECT_TRUE(Eventually([&] { return !engines->Look(0).registrations.contains(registration); }));
  EXPECT_EQ(control->Free(sessions[0], tensors[0]).code(), Code::kNotFound);
}

TEST_F(ControlMemoryTest, ATensorMeetsInTwoGroups) {
  Start(2);
  const auto sessions = AttachAll(2);
  const uint64_t a = Join(sessions, "a"), b = Join(sessions, "b");
  std::vector<uint64_t> tensors = {Empty(sessions[0], 0, 64), Empty(sessions[1], 1, 64)};
  auto in_a = Together(2, [&](int r) { return MakeSymmetric(sessions[size_t(r)], tensors[size_t(r)], a); });
  auto in_b = Together(2, [&](int r) { return MakeSymmetric(sessions[size_t(r)], tensors[size_t(r)], b); });
  ASSERT_TRUE(in_a[0].ok() && in_b[0].ok()) << in_b[0].status().ToString();
  EXPECT_EQ(in_a[0]->buffer_offset(), in_b[1]->buffer_offset());
  EXPECT_NE(in_a[0]->registration_id(), in_b[0]->registration_id());
  // The memory outlives the group that it met in first.
  for (const auto& session : sessions)
    ASSERT_TRUE(control->LeaveGroup(session, a, Waiter::For(kWaitBudget)).ok());
  EXPECT_TRUE(engines->Look(0).registrations.contains(in_b[0]->registration_id()));
  for (int r = 0; r < 2; ++r) ASSERT_TRUE(control->Free(sessions[size_t(r)], tensors[size_t(r)]).ok());
  for (const auto& session : sessions)
    ASSERT_TRUE(control->LeaveGroup(session, b, Waiter::For(kWaitBudget)).ok());
  EXPECT_EQ(control->Snapshot().segment_bytes, 0u);
}

TEST_F(ControlMemoryTest, ForeignDescriptorsAreChecked) {
  Start(1);
  const SessionRef session = Attach();
  const auto send = [&](uint64_t id, UniqueFd fd) {
    v1::FdTransfer part;
    part.set_transfer_id(id);
    part.set_total(1);
    std::vector<UniqueFd> fds;
    fds.push_back(std::move(fd));
    ASSERT_TRUE(control->AddTransfer(IdOf(0), part, std::move(fds)).ok());
  };
  v1::RegisterTensorRequest request;
  request.set_gpu_uuid(control->options().topology.gpus[0].uuid);
  request.set_bytes(8192);
  request.add_chunk_bytes(8192);
  const auto attempt = [&](uint64_t id, std::chrono::milliseconds deadline = kWaitBudget) {
    request.set_transfer_id(id);
    return control->RegisterTensor(session, request, Waiter::For(deadline));
  };
  const size_t before = OpenDescriptors();
  send(1, UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC)));
  EXPECT_THAT(attempt(1).status().message(), HasSubstr("not a memfd"));
  send(2, UniqueFd(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  EXPECT_THAT(attempt(2).status().message(), HasSubstr("F_SEAL_SHRINK"));
  send(3, std::move(*CreateSealedMemfd("small", 4096)));
  EXPECT_THAT(attempt(3).status().message(), HasSubstr("4096 bytes"));
  EXPECT_EQ(attempt(4, std::chrono::milliseconds(200)).status().detail().reason, "NO_TRANSFER");
  EXPECT_TRUE(Eventually([&] { return OpenDescriptors() == before; }));
  send(5, std::move(*CreateSealedMemfd("good", 8192)));
  auto good = attempt(5);
  ASSERT_TRUE(good.ok()) << good.status().ToString();
  EXPECT_EQ(engines->Look(0).registrations.count(good->registration_id()), 1u);
  EXPECT_EQ(control->SnapshotPools()[0].registered_bytes, 8192u);
  ASSERT_TRUE(control->Deregister(session, good->registration_id(), Waiter::For(kWaitBudget)).ok());
  EXPECT_TRUE(engines->Look(0).registrations.empty());
  EXPECT_TRUE(Eventually([&] { return OpenDescriptors() == before; }));
  EXPECT_EQ(control->Deregister(session, good->registration_id(), Waiter::For(kWaitBudget)).code(),
            Code::kNotFound);
}

// More chunks than a message carries descriptors: they go to the engine in parts, and to the next one again.
TEST_F(ControlMemoryTest, ARangeOfManyChunksGoesInParts) {
  constexpr uint32_t kChunks = 150;
  constexpr uint64_t kChunkBytes = 4096;
  Start(1);
  const SessionRef session = Attach();
  const size_t before = OpenDescriptors();
  v1::RegisterTensorRequest request;
  request.set_gpu_uuid(control->options().topology.gpus[0].uuid);
  request.set_bytes(kChunks * kChunkBytes);
  request.set_transfer_id(1);
  for (uint32_t first = 0; first < kChunks; first += kMaxFdsPerMessage) {
    v1::FdTransfer part;
    part.set_transfer_id(1);
    part.set_index(first);
    part.set_total(kChunks);
    std::vector<UniqueFd> fds;
    for (uint32_t i = first; i < std::min<uint32_t>(kChunks, first + kMaxFdsPerMessage); ++i) {
      fds.push_back(std::move(*CreateSealedMemfd("chunk", kChunkBytes)));
      request.add_chunk_bytes(kChunkBytes);
    }
    ASSERT_TRUE(control->AddTransfer(IdOf(0), part, std::move(fds)).ok());
  }
  auto registered = control->RegisterTensor(session, request, Waiter::For(kWaitBudget));
  ASSERT_TRUE(registered.ok()) << registered.status().ToString();
  const uint64_t id = registered->registration_id();
  const std::vector<size_t> ahead = {kMaxFdsPerMessage, kMaxFdsPerMessage};
  EXPECT_EQ(engines->Look(0).arriving.at(id), ahead);
  EXPECT_EQ(engines->Look(0).registrations.count(id), 1u);
  engines->Kill(0);
  engines->Restart(0);
  EXPECT_TRUE(Eventually([&] { return engines->Look(0).registrations.contains(id); }));
  EXPECT_EQ(engines->Look(0).arriving.at(id), ahead);
  ASSERT_TRUE(control->Deregister(session, id, Waiter::For(kWaitBudget)).ok());
  EXPECT_TRUE(Eventually([&] { return OpenDescriptors() == before; }));
}

TEST_F(ControlMemoryTest, TwoHundredRoundsOfDeathLeaveNothing) {
  Start(2);
  size_t descriptors = 0;
  for (int round = 0; round < 200; ++round) {
    const auto sessions = AttachAll(2);
    const uint64_t group = Join(sessions);
    auto replies = Together(2, [&](int r) {
      return MakeSymmetric(sessions[size_t(r)], Empty(sessions[size_t(r)], r, 100), group);
    });
    ASSERT_TRUE(replies[0].ok() && replies[1].ok());
    auto plans = Together(2, [&](int r) {
      return control->Prepare(sessions[size_t(r)], AllReduce(group, "k"), Waiter::For(kWaitBudget));
    });
    ASSERT_TRUE(plans[0].ok()) << plans[0].status().ToString();
    control->SessionLost(IdOf(round % 2), "test");
    control->SessionLost(IdOf(1 - round % 2), "test");
    ASSERT_TRUE(Eventually([&] {
      const auto a = engines->Look(0), b = engines->Look(1);
      return a.segments.empty() && b.segments.empty() && a.plans.empty() && b.plans.empty() &&
             a.groups.empty();
    }));
    lease.Forget();  // as clients that have died
    if (round == 2) descriptors = OpenDescriptors();
  }
  EXPECT_TRUE(Eventually([&] { return OpenDescriptors() <= descriptors; }));
  EXPECT_EQ(control->Snapshot().descriptors, 0u);
  EXPECT_EQ(control->Snapshot().segment_bytes, 0u);
}

}  // namespace
}  // namespace tandem::daemon

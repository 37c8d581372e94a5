#include "daemon/control/base/validate.h"

#include <gtest/gtest.h>

#include "tandem/v1/tandem.pb.h"

namespace tandem::daemon {
namespace {

v1::OpRequest Good() {
  OpRequest request;
  request.op = Op::kAllGatherMatmul;
  request.dim = -2;
  request.operands = {{Role::kA, {DType::kF32, {4, 8}, {}}, false, -1},
                      {Role::kB, {DType::kF32, {8, 6}, {1, 8}}, false, -1},
                      {Role::kC, {DType::kF32, {8, 6}, {}}, true, -1}};
  request.on_unfused = OnUnfused::kError;
  request.determinism = Determinism::kBatch;
  request.rounding = Rounding::kModel;
  request.restartable = true;
  request.placement = PlanPlacement::kClient;
  return OpRequestToProto(request);
}

TEST(Validate, RequestsSurviveTheProtocol) {
  Result<OpRequest> parsed = ParseOpRequest(Good(), 2);
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(OpRequestToProto(*parsed).SerializeAsString(), Good().SerializeAsString());
}

TEST(Validate, NamesTheFieldThatIsWrong) {
  const auto field = [](auto change) {
    v1::OpRequest request = Good();
    change(request);
    Result<OpRequest> parsed = ParseOpRequest(request, 2);
    return parsed.ok() ? std::string("accepted") : parsed.status().detail().field;
  };
  EXPECT_EQ(field([](auto& r) { r.set_op(0); }), "op");
  EXPECT_EQ(field([](auto& r) { r.set_op(99); }), "op");
  EXPECT_EQ(field([](auto& r) { r.set_root(2); }), "root");
  EXPECT_EQ(field([](auto& r) { r.set_root(-1); }), "root");
  EXPECT_EQ(field([](auto& r) { r.set_dim(100); }), "dim");
  EXPECT_EQ(field([](auto& r) { r.set_algorithm(77); }), "algorithm");
  EXPECT_EQ(field([](auto& r) { r.mutable_operands(1)->set_role(0); }), "operands[1].role");
  EXPECT_EQ(field([](auto& r) { r.mutable_operands(1)->set_alias_of(2); }), "operands[1].alias_of");
  EXPECT_EQ(field([](auto& r) { r.mutable_operands(0)->mutable_spec()->set_dtype(8); }), "operands[0].dtype");
  EXPECT_EQ(field([](auto& r) { r.mutable_operands(0)->mutable_spec()->set_shape(0, -1); }),
            "operands[0].shape");
  EXPECT_EQ(field([](auto& r) { r.mutable_operands(0)->mutable_spec()->set_shape(0, INT64_MAX); }),
            "operands[0].shape");
  EXPECT_EQ(field([](auto& r) { r.mutable_operands(1)->mutable_spec()->add_strides(1); }),
            "operands[1].strides");
  EXPECT_EQ(field([](auto& r) { r.mutable_operands(1)->mutable_spec()->set_strides(0, INT64_MAX); }),
            "operands[1]");
  EXPECT_EQ(field([](auto& r) { r.add_transfers()->set_peer(2); }), "transfers[0].peer");
  EXPECT_EQ(field([](auto& r) { r.add_transfers()->set_slot(3); }), "transfers[0].slot");
  const auto fill = [](int operands) {
    return [operands](auto& r) {
      while (r.operands_size() < operands) *r.add_operands() = r.operands(0);
    };
  };
  EXPECT_EQ(field(fill(28)), "accepted") << "two messages each way between eight ranks";
  EXPECT_EQ(field(fill(29)), "operands");
}

TEST(Validate, Registrations) {
  v1::RegisterTensorRequest request;
  request.set_gpu_uuid("g");
  request.set_bytes(100);
  EXPECT_EQ(ValidateRegister(request).detail().field, "chunk_bytes");
  request.add_chunk_bytes(64);
  EXPECT_EQ(ValidateRegister(request).detail().field, "chunk_bytes");
  request.add_chunk_bytes(64);
  EXPECT_TRUE(ValidateRegister(request).ok());
  request.add_chunk_bytes(UINT64_MAX);
  EXPECT_EQ(ValidateRegister(request).detail().field, "chunk_bytes");
  request.set_bytes(UINT64_MAX);
  EXPECT_EQ(ValidateRegister(request).detail().field, "bytes");
}

TEST(Validate, JoinsAttachesChannelsLaunches) {
  v1::JoinGroupRequest join;
  join.set_job_key("short");
  EXPECT_EQ(ValidateJoin(join).detail().field, "job_key");
  join.set_job_key(std::string(16, '\0'));
  EXPECT_EQ(ValidateJoin(join).detail().field, "name");
  join.set_name("a\nb");
  EXPECT_EQ(ValidateJoin(join).detail().field, "name");
  join.set_name("tp");
  join.set_gpu_uuid("g");
  EXPECT_TRUE(ValidateJoin(join).ok());
  v1::AttachRequest attach;
  attach.set_protocol_min(2);
  attach.set_protocol_max(1);
  EXPECT_EQ(ValidateAttach(attach).detail().field, "protocol_min");
  v1::OpenChannelRequest channel;
  channel.set_gpu_uuid("g");
  for (uint32_t entries : {1u, 3u, 1u << 30, UINT32_MAX}) {
    channel.set_entries(entries);
    EXPECT_EQ(ValidateOpenChannel(channel).detail().field, "entries") << entries;
  }
  v1::LaunchRequest launch;
  launch.set_tag(std::string(5000, 'x'));
  EXPECT_EQ(ValidateLaunch(launch).detail().field, "tag");
}

}  // namespace
}  // namespace tandem::daemon

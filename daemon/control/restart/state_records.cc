#include "daemon/control/restart/state_records.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include "daemon/control/base/status_proto.h"
#include "daemon/control/base/validate.h"

namespace tandem::daemon {
namespace {

constexpr uint64_t kIdStep = 1024;

// The journal's field for a counter that it keeps.
const google::protobuf::FieldDescriptor* FieldOf(const NodeCounter& counter) {
  return state::v1::Node::descriptor()->FindFieldByName(std::string(counter.name()));
}

uint64_t Reserved(uint64_t next) { return (next / kIdStep + 1) * kIdStep; }

int64_t Nanoseconds(Waiter::Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

void FillPayer(const Payer& from, state::v1::Payer* to) {
  to->set_uid(from.uid);
  to->set_cgroup(from.cgroup);
  to->set_gid(from.gid);
  to->set_path(from.path);
}

void FillTensor(const TensorRecord& from, state::v1::Tensor* to) TANDEM_REQUIRES(registry_mutex) {
  to->set_id(from.id);
  to->set_session_id(from.session_id);
  to->set_gpu(from.gpu);
  to->set_bytes(from.bytes);
  to->set_name(from.name);
  to->set_block_rank(from.block_rank);
  if (from.block) {
    to->set_set(NameOf(from.block->set));
    to->set_offset(from.block->offset);
    to->set_pad_offset(from.block->pad_offset);
  }
}

// A rank that has entered a barrier by number enters it again, by that number, at the next tandemd.
uint64_t EndedRendezvous(const GroupRecord& group, size_t rank) TANDEM_REQUIRES(registry_mutex) {
  uint64_t ended = group.members[rank].unnamed_barriers;
  for (const auto& [key, barrier] : group.tensor_barriers) {
    const bool waits = !barrier->over() && barrier->tensors[rank] && key.starts_with('#');
    if (waits && ended > 0) --ended;
  }
  return ended;
}

}  // namespace

std::string SessionKey(uint64_t id) { return "session/" + std::to_string(id); }
std::string LaunchKey(uint64_t id) { return "launch/" + std::to_string(id); }
std::string GroupKey(uint64_t id) { return "group/" + std::to_string(id); }
std::string PlanKey(uint64_t id) { return "plan/" + std::to_string(id); }
std::string PlanUseKey(uint64_t id) { return "plan-use/" + std::to_string(id); }
std::string SetKey(const SegmentSet& set) { return "set/" + std::to_string(set.segment_ids[0]); }

uint64_t NameOf(const std::shared_ptr<SegmentSet>& set) { return set ? set->segment_ids[0] : 0; }

std::string Serialized(const google::protobuf::MessageLite& message) {
  std::string text;
  {
    google::protobuf::io::StringOutputStream stream(&text);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    message.SerializeToCodedStream(&coded);
  }
  return text;
}

Status FullStatusOf(const v1::StatusDetail& detail) {
  Status status = StatusOf(detail);
  if (status.ok()) return status;
  StatusDetail full = status.detail();
  full.who = detail.who();
  full.limit = detail.limit();
  full.usage = detail.usage();
  full.ranks.assign(detail.ranks().begin(), detail.ranks().end());
  full.pid = detail.pid();
  if (detail.has_gpu()) full.gpu = detail.gpu();
  if (detail.has_started()) full.started = detail.started();
  return status.WithDetail(std::move(full));
}

bool IsKept(const GroupRecord& group) {
  return group.state() != GroupState::kInstalling && group.state() != GroupState::kDoomed &&
         group.state() != GroupState::kEnded;
}

state::v1::Node StateOf(const Registry& registry) {
  state::v1::Node node;
  node.set_next_id(Reserved(registry.next_id));
  node.set_next_plan_id(Reserved(registry.next_plan_id));
  node.set_admission(static_cast<uint32_t>(registry.admission));
  SetCounters(registry.counters, &node);
  return node;
}

void SetCounters(const NodeCounters& counters, state::v1::Node* node) {
  for (const NodeCounter& counter : kNodeCounters) {
    if (counter.kept) node->GetReflection()->SetUInt64(node, FieldOf(counter), counters.*counter.value);
  }
}

NodeCounters CountersOf(const state::v1::Node& node) {
  NodeCounters counters;
  for (const NodeCounter& counter : kNodeCounters) {
    if (counter.kept) counters.*counter.value = node.GetReflection()->GetUInt64(node, FieldOf(counter));
  }
  return counters;
}

state::v1::Session StateOf(const SessionRecord& session) {
  state::v1::Session to;
  to.set_id(session.id);
  to.set_token(session.token.data(), session.token.size());
  to.set_protocol(session.protocol);
  to.set_suspends(session.suspends);
  to.set_checkpoint_secret(session.checkpoint.secret);
  to.set_checkpoint_token(session.checkpoint.token);
  if (session.checkpoint.since.has_value()) to.set_checkpointed_ns(Nanoseconds(*session.checkpoint.since));
  to.set_uid(session.peer.uid);
  to.set_gid(session.peer.gid);
  to.set_pid(session.peer.pid);
  to.set_start_ticks(session.peer.start_ticks);
  to.set_started_ns(Nanoseconds(session.peer.started));
  to.set_cgroup(session.peer.cgroup);
  to.set_bound_to_gpus(session.gpus.has_value());
  if (session.gpus.has_value()) to.mutable_gpus()->Add(session.gpus->begin(), session.gpus->end());
  to.set_name(session.name);
  to.set_command(session.command);
  to.set_mps_directory(session.mps.directory);
  to.set_mps_answers(session.mps.answers);
  to.set_mps_device(session.mps.device);
  to.set_mps_inode(session.mps.inode);
  to.set_device_max_connections(session.device_max_connections);
  to.set_since_ns(Nanoseconds(session.since));
  for (const auto& [id, tensor] : session.tensors) FillTensor(*tensor, to.add_tensors());
  for (const auto& [id, registration] : session.registrations) {
    if (!registration.acknowledged) continue;
    state::v1::Registration& kept = *to.add_registrations();
    kept.set_id(id);
    kept.set_gpu(registration.gpu);
    kept.set_bytes(registration.bytes);
    kept.mutable_chunk_bytes()->Add(registration.chunk_bytes.begin(), registration.chunk_bytes.end());
    kept.set_descriptors(static_cast<uint32_t>(registration.fds.size()));
    kept.set_ipc_handle(registration.ipc_handle);
    kept.set_offset(registration.offset);
  }
  for (const auto& [id, channel] : session.channels) {
    if (!channel.acknowledged) continue;
    state::v1::Channel& kept = *to.add_channels();
    kept.set_id(id);
    kept.set_gpu(channel.gpu);
    kept.set_entries(channel.entries);
    kept.set_over(channel.over);
  }
  return to;
}

state::v1::Launch StateOf(uint64_t id, const LaunchRecord& launch, uint64_t session_id) {
  state::v1::Launch to;
  to.set_id(id);
  to.set_gpu(launch.gpu);
  to.set_session_id(session_id);
  to.set_done(launch.done);
  if (!launch.status.ok()) FillStatusDetail(launch.status, to.mutable_status());
  return to;
}

state::v1::Set StateOf(const SegmentSet& set) {
  state::v1::Set to;
  to.mutable_segment_ids()->Add(set.segment_ids.begin(), set.segment_ids.end());
  to.set_purpose(set.purpose);
  to.set_group_id(set.group_id);
  to.set_for_clients(set.for_clients);
  FillPayer(set.payer, to.mutable_payer());
  to.set_bytes(set.bytes);
  to.mutable_gpus()->Add(set.gpus.begin(), set.gpus.end());
  to.mutable_mapped()->Add(set.mapped.begin(), set.mapped.end());
  to.set_owned(set.owned);
  to.set_dropped(set.dropped);
  to.mutable_blocks()->insert(set.allocator.blocks().begin(), set.allocator.blocks().end());
  return to;
}

state::v1::Group StateOf(const GroupRecord& group) {
  state::v1::Group to;
  to.set_id(group.id);
  to.set_scope(group.scope);
  to.set_name(group.name);
  FillPayer(group.payer, to.mutable_payer());
  to.set_incarnation(group.incarnation);
  to.mutable_gpus()->Add(group.gpus.begin(), group.gpus.end());
  to.set_launch_deadline_ms(group.launch_deadline_ms);
  to.set_on_slow_placement(static_cast<uint32_t>(group.on_slow_placement));
  to.mutable_options()->insert(group.options.begin(), group.options.end());
  to.set_state(static_cast<uint32_t>(group.state()));
  if (!group.lifecycle.why().ok()) FillStatusDetail(group.lifecycle.why(), to.mutable_why());
  to.set_generation(group.generation);
  for (size_t rank = 0; rank < group.members.size(); ++rank) {
    const MemberRecord& member = group.members[rank];
    state::v1::Member& kept = *to.add_members();
    kept.set_session_id(member.session_id);
    kept.set_pid(member.pid);
    kept.set_gpu(member.gpu);
    kept.set_left(member.left);
    kept.set_rendezvous(EndedRendezvous(group, rank));
    kept.set_client_products(member.client_products);
    kept.set_client_signal_bytes(member.client_signal_bytes);
    kept.set_renews_engines(member.renews_engines);
  }
  to.set_next_plan_index(group.next_plan_index);
  to.set_next_launch_number(group.next_launch_number);
  to.set_communicates(group.communicates);
  for (const auto& [id, tensor] : group.tensors) {
    if (!tensor.acknowledged) continue;
    state::v1::GroupTensor& kept = *to.add_tensors();
    kept.set_id(id);
    kept.set_bytes(tensor.bytes);
    for (const auto& own : tensor.tensors) {
      state::v1::Tensor* const place = kept.add_tensors();
      if (own) FillTensor(*own, place);
    }
    for (const bool freed : tensor.freed) kept.add_freed(freed);
  }
  to.set_control(NameOf(group.control));
  to.set_half0(NameOf(group.half0));
  to.set_half1(NameOf(group.half1));
  to.set_bulk(NameOf(group.bulk));
  for (const auto& set : group.outgrown) to.add_outgrown(NameOf(set));
  for (const auto& set : group.symmetric) to.add_symmetric(NameOf(set));
  to.set_half_bytes(group.half_bytes);
  to.set_bulk_bytes(group.bulk_bytes);
  to.set_client_signals(NameOf(group.client.signals));
  to.set_client_workspace(NameOf(group.client.workspace));
  to.set_client_half_bytes(group.client.half_bytes);
  to.set_client_bulk_bytes(group.client.bulk_bytes);
  to.set_client_renewals(group.client.renewals);
  if (group.client.stall.stalled()) FillStatusDetail(group.client.stall.why(), to.mutable_client_stalled());
  to.set_engine_renewals(group.engine_renewals);
  if (group.state() == GroupState::kAsleep) to.set_asleep_since_ns(Nanoseconds(group.suspension->since));
  if (group.engine_stall.stalled()) FillStatusDetail(group.engine_stall.why(), to.mutable_engines_stalled());
  return to;
}

state::v1::Plan StateOf(uint64_t group_id, const PlanRecord& plan) {
  state::v1::Plan to;
  to.set_id(plan.id);
  to.set_group_id(group_id);
  to.set_key(plan.key);
  to.set_index(plan.index);
  to.set_info(plan.info);
  for (const std::string& command : plan.commands) to.add_commands(command);
  to.set_kept_bytes(plan.kept_bytes);
  to.set_half_bytes(plan.half_bytes);
  to.set_bulk_bytes(plan.bulk_bytes);
  for (const std::optional<OpRequest>& request : plan.requests) {
    to.add_requests(request ? OpRequestToProto(*request).SerializeAsString() : std::string());
  }
  to.set_in_client(plan.client != nullptr);
  if (!plan.client) return to;
  for (const std::string& program : plan.client->programs) to.add_programs(program);
  to.set_client_family(plan.client->family);
  to.set_client_workspace(NameOf(plan.client->workspace));
  to.set_client_half_bytes(plan.client->half_bytes);
  to.set_client_bulk_bytes(plan.client->bulk_bytes);
  return to;
}

state::v1::PlanUse UseOf(const PlanRecord& plan) {
  state::v1::PlanUse to;
  to.set_id(plan.id);
  for (const bool released : plan.released) to.add_released(released);
  if (!plan.client || !plan.client->armed.over()) return to;
  to.set_armed(true);
  if (!plan.client->armed.verdict().ok()) {
    FillStatusDetail(plan.client->armed.verdict(), to.mutable_not_armed());
  }
  return to;
}

}  // namespace tandem::daemon

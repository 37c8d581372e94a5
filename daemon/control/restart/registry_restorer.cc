#include "daemon/control/restart/registry_restorer.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "daemon/control/base/foreign_fds.h"
#include "daemon/control/base/validate.h"
#include "daemon/control/restart/state_records.h"
#include "ipc/order_log.h"

namespace tandem::daemon {
namespace {

Waiter::Clock::time_point TimeOf(int64_t nanoseconds) {
  return Waiter::Clock::time_point(
      std::chrono::duration_cast<Waiter::Clock::duration>(std::chrono::nanoseconds(nanoseconds)));
}

Payer PayerOf(const state::v1::Payer& from) { return {from.uid(), from.cgroup(), from.gid(), from.path()}; }

}  // namespace

void RegistryRestorer::Restore() {
  Registry& registry = core_.registry;
  const state::v1::Node& node = state_.node;
  registry.next_id = node.next_id();
  registry.next_plan_id = node.next_plan_id() > kLogIdMask ? 1 : node.next_plan_id();
  registry.admission = static_cast<Admission>(node.admission());
  registry.counters = CountersOf(node);
  RestoreSets();
  RestoreSessions();
  for (const auto& [id, group] : state_.groups) RestoreGroup(group);
  KeepUsedSets();
  Charge();
}

std::vector<SharedFd> RegistryRestorer::FdsOf(EngineHoldings::Kind kind, uint64_t id) const {
  for (const auto& engine : engines_) {
    if (!engine.has_value()) continue;
    if (std::vector<SharedFd> fds = engine->FdsOf(kind, id); !fds.empty()) return fds;
  }
  return {};
}

void RegistryRestorer::RestoreSets() {
  for (const auto& [name, from] : state_.sets) {
    auto set = std::make_shared<SegmentSet>();
    set->purpose = from.purpose();
    set->group_id = from.group_id();
    set->for_clients = from.for_clients();
    set->payer = PayerOf(from.payer());
    set->bytes = from.bytes();
    set->gpus.assign(from.gpus().begin(), from.gpus().end());
    set->segment_ids.assign(from.segment_ids().begin(), from.segment_ids().end());
    set->mapped.assign(from.mapped().begin(), from.mapped().end());
    set->owned = from.owned();
    set->dropped = from.dropped();
    set->allocator = OffsetAllocator(set->bytes);
    for (const auto& [offset, bytes] : from.blocks()) set->allocator.Take(offset, bytes).ok();
    for (const uint64_t id : set->segment_ids) {
      std::vector<SharedFd> fds = FdsOf(engine::v1::Held::SEGMENT, id);
      set->fds.push_back(fds.empty() ? nullptr : fds[0]);
    }
    sets_[name] = std::move(set);
  }
}

std::shared_ptr<SegmentSet> RegistryRestorer::SetOf(uint64_t name) {
  const auto found = sets_.find(name);
  if (found == sets_.end()) return nullptr;
  used_.insert(found->second);
  return found->second;
}

std::shared_ptr<TensorRecord> RegistryRestorer::TensorOf(const state::v1::Tensor& from) {
  if (from.id() == 0) return nullptr;
  std::shared_ptr<TensorRecord>& tensor = tensors_[from.id()];
  if (tensor) return tensor;
  tensor = std::make_shared<TensorRecord>();
  tensor->id = from.id();
  tensor->session_id = from.session_id();
  tensor->gpu = from.gpu();
  tensor->bytes = from.bytes();
  tensor->name = from.name();
  tensor->block_rank = from.block_rank();
  tensor->freed = true;  // unless its session has it
  const std::shared_ptr<SegmentSet> set = SetOf(from.set());
  if (!set) return tensor;
  std::shared_ptr<SymmetricBlock>& block = blocks_[{from.set(), from.offset()}];
  if (!block) {
    block = std::make_shared<SymmetricBlock>();
    block->set = set;
    block->offset = from.offset();
    block->pad_offset = from.pad_offset();
  }
  tensor->block = block;
  return tensor;
}

void RegistryRestorer::RestoreSessions() {
  Registry& registry = core_.registry;
  for (const auto& [id, from] : state_.sessions) {
    auto session = std::make_shared<SessionRecord>(core_.options.limits.transfers_per_session);
    session->id = id;
    std::copy(from.token().begin(), from.token().end(), session->token.begin());
    session->peer = {.uid = from.uid(),
                     .gid = from.gid(),
                     .pid = from.pid(),
                     .cgroup = from.cgroup(),
                     .started = TimeOf(from.started_ns()),
                     .start_ticks = from.start_ticks()};
    session->protocol = from.protocol();
    session->suspends = from.suspends();
    session->owner = OwnerOf(from.cgroup());
    if (from.bound_to_gpus()) session->gpus.emplace(from.gpus().begin(), from.gpus().end());
    session->name = from.name();
    session->command = from.command();
    session->mps = {.directory = from.mps_directory(),
                    .answers = from.mps_answers(),
                    .device = from.mps_device(),
                    .inode = from.mps_inode()};
    session->device_max_connections = from.device_max_connections();
    session->since = TimeOf(from.since_ns());
    session->checkpoint = {.secret = from.checkpoint_secret(), .token = from.checkpoint_token()};
    if (from.checkpointed_ns() != 0) session->checkpoint.since = TimeOf(from.checkpointed_ns());
    session->away = !session->checkpoint.since.has_value();
    for (const state::v1::Tensor& saved : from.tensors()) {
      const std::shared_ptr<TensorRecord> tensor = TensorOf(saved);
      tensor->freed = false;
      if (tensor->block) ++tensor->block->tensors;
      session->tensors[tensor->id] = tensor;
      if (!tensor->name.empty())
        session->named_tensors[std::to_string(tensor->gpu) + "/" + tensor->name] = tensor->id;
    }
    for (const state::v1::Registration& saved : from.registrations()) {
      RegistrationRecord& record = session->registrations[saved.id()];
      record.gpu = saved.gpu();
      record.bytes = saved.bytes();
      record.chunk_bytes.assign(saved.chunk_bytes().begin(), saved.chunk_bytes().end());
      record.ipc_handle = saved.ipc_handle();
      record.offset = saved.offset();
      record.acknowledged = true;
      for (const SharedFd& fd : FdsOf(engine::v1::Held::REGISTRATION, saved.id()))
        record.fds.push_back(ShareForeign(UniqueFd(::fcntl(fd->get(), F_DUPFD_CLOEXEC, 0))));
    }
    for (const state::v1::Channel& saved : from.channels()) {
      ChannelRecord& record = session->channels[saved.id()];
      record.gpu = saved.gpu();
      record.entries = saved.entries();
      record.over = saved.over();
      record.acknowledged = true;
      const std::vector<SharedFd> fds = FdsOf(engine::v1::Held::CHANNEL, saved.id());
      if (fds.size() == 2) record.words = fds[1];
    }
    if (const auto launches = state_.launches.find(id); launches != state_.launches.end()) {
      for (const auto& [launch_id, launch] : launches->second) {
        session->launches[launch_id] = {launch.gpu(), launch.done(), FullStatusOf(launch.status())};
        registry.launches[launch_id] = session;
      }
    }
    for (const auto& [tensor_id, tensor] : session->tensors) registry.UseEngine(*session, tensor->gpu);
    for (const auto& [record_id, record] : session->registrations) registry.UseEngine(*session, record.gpu);
    for (const auto& [channel_id, channel] : session->channels) registry.UseEngine(*session, channel.gpu);
    core_.KeepAnEngine(*session);
    registry.sessions[id] = std::move(session);
  }
}

void RegistryRestorer::RestoreGroup(const state::v1::Group& from) {
  Registry& registry = core_.registry;
  auto group = std::make_shared<GroupRecord>(core_.IllegalTransitionHandler());
  group->id = from.id();
  group->scope = from.scope();
  group->name = from.name();
  group->payer = PayerOf(from.payer());
  group->incarnation = from.incarnation();
  group->gpus.assign(from.gpus().begin(), from.gpus().end());
  group->launch_deadline_ms = from.launch_deadline_ms();
  group->engine_renewals = from.engine_renewals();
  if (from.has_engines_stalled()) group->engine_stall.TakeOver(FullStatusOf(from.engines_stalled()));
  group->on_slow_placement = static_cast<OnSlowPlacement>(from.on_slow_placement());
  group->options.insert(from.options().begin(), from.options().end());
  group->lifecycle.TakeOver(static_cast<GroupState>(from.state()), FullStatusOf(from.why()));
  group->generation = from.generation();
  if (group->state() == GroupState::kAsleep) {
    // Ranks that were unmapping its memory, or mapping it, begin again with this step.
    group->suspension =
        std::make_shared<Suspension>(group->gpus.size(), group->name, group->illegal_transition);
    group->suspension->TakeOver(SuspensionState::kUnmapping);
    // 0: the earlier tandemd has kept no time.
    group->suspension->since =
        from.asleep_since_ns() != 0 ? TimeOf(from.asleep_since_ns()) : Waiter::Clock::now();
  }
  for (const state::v1::Member& saved : from.members()) {
    MemberRecord member;
    const auto session = registry.sessions.find(saved.session_id());
    const bool there = session != registry.sessions.end() && !saved.left();
    member.session =
        session != registry.sessions.end() ? session->second : std::make_shared<SessionRecord>(0);
    member.session_id = saved.session_id();
    member.pid = saved.pid();
    member.gpu = saved.gpu();
    member.left = saved.left();
    member.unnamed_barriers = saved.rendezvous();
    member.client_products = saved.client_products();
    member.client_signal_bytes = saved.client_signal_bytes();
    member.renews_engines = saved.renews_engines();
    if (there) registry.UseEngine(*session->second, member.gpu);
    if (there) session->second->groups.insert(group->id);
    // tandemd ended while it wrote of the session's end: the session's record goes first.
    if (!there && !saved.left()) orphans_.emplace_back(group->id, static_cast<int>(group->members.size()));
    group->members.push_back(std::move(member));
    group->engines.push_back(registry.GenerationOf(saved.gpu()));
  }
  group->next_plan_index = from.next_plan_index();
  group->next_launch_number = from.next_launch_number();
  group->communicates = from.communicates();
  group->control = SetOf(from.control());
  group->half0 = SetOf(from.half0());
  group->half1 = SetOf(from.half1());
  group->bulk = SetOf(from.bulk());
  for (const uint64_t name : from.outgrown()) {
    if (auto set = SetOf(name)) group->outgrown.push_back(std::move(set));
  }
  for (const uint64_t name : from.symmetric()) {
    if (auto set = SetOf(name)) group->symmetric.push_back(std::move(set));
  }
  group->half_bytes = from.half_bytes();
  group->bulk_bytes = from.bulk_bytes();
  if (std::vector<SharedFd> fds = FdsOf(engine::v1::Held::ARRIVALS, group->id); !fds.empty())
    group->arrivals = fds[0];
  RestoreClientMemory(from, *group);
  RestoreTensors(from, *group);
  RestorePlans(from, group);
  joins_.FillContext(*group);
  NameRecord& name = registry.names[group->scope];
  name.incarnation = group->incarnation;
  name.current = group;
  registry.groups[group->id] = group;
}

void RegistryRestorer::RestoreClientMemory(const state::v1::Group& from, GroupRecord& group) {
  group.client.signals = SetOf(from.client_signals());
  group.client.workspace = SetOf(from.client_workspace());
  group.client.half_bytes = from.client_half_bytes();
  group.client.bulk_bytes = from.client_bulk_bytes();
  group.client.renewals = from.client_renewals();
  if (from.has_client_stalled()) group.client.stall.TakeOver(FullStatusOf(from.client_stalled()));
  if (!group.client.signals) return;
  std::vector<SharedFd> fds = FdsOf(engine::v1::Held::PAGES, group.id);
  if (fds.size() != group.world()) return;
  for (const SharedFd& fd : fds) {
    Result<VerdictPage> page = VerdictPage::Map(fd->get());
    if (!page.ok()) {
      group.client.pages.clear();
      return;
    }
    group.client.pages.push_back(std::move(*page));
  }
  group.client.page_fds = std::move(fds);
}

void RegistryRestorer::RestoreTensors(const state::v1::Group& from, GroupRecord& group) {
  for (const state::v1::GroupTensor& saved : from.tensors()) {
    GroupTensor& tensor = group.tensors[saved.id()];
    tensor.bytes = saved.bytes();
    tensor.acknowledged = true;
    tensor.freed.assign(saved.freed().begin(), saved.freed().end());
    tensor.freed.resize(group.world());
    for (const state::v1::Tensor& own : saved.tensors()) tensor.tensors.push_back(TensorOf(own));
    tensor.tensors.resize(group.world());
    for (size_t rank = 0; rank < group.world(); ++rank) {
      if (tensor.tensors[rank] && !group.members[rank].left)
        tensor.tensors[rank]->registrations[group.id] = saved.id();
    }
  }
}

void RegistryRestorer::RestorePlans(const state::v1::Group& from, const std::shared_ptr<GroupRecord>& group) {
  const auto plans = state_.plans.find(from.id());
  if (plans == state_.plans.end()) return;
  for (const auto& [id, body] : plans->second) {
    const auto use = state_.plan_uses.find(id);
    if (use == state_.plan_uses.end()) continue;
    const state::v1::PlanUse& saved = use->second;
    PlanRecord plan;
    plan.id = id;
    plan.key = body.key();
    plan.index = body.index();
    plan.info = body.info();
    plan.commands.assign(body.commands().begin(), body.commands().end());
    plan.kept_bytes = body.kept_bytes();
    plan.half_bytes = body.half_bytes();
    plan.bulk_bytes = body.bulk_bytes();
    plan.released.assign(saved.released().begin(), saved.released().end());
    plan.released.resize(group->world());
    for (const std::string& text : body.requests()) {
      v1::OpRequest request;
      const bool parses = !text.empty() && request.ParseFromString(text);
      auto parsed =
          parses ? ParseOpRequest(request, static_cast<int>(group->world())) : Internal("no request");
      plan.requests.push_back(parsed.ok() ? std::optional(*std::move(parsed)) : std::nullopt);
    }
    plan.requests.resize(group->world());
    plan.acknowledged = true;
    const std::string what = "key '" + plan.key + "' of group '" + group->name + "'";
    const auto now = Waiter::Clock::now();
    if (body.in_client()) {
      plan.client = std::make_shared<PlanRecord::InClient>(group->world(), what);
      plan.client->programs.assign(body.programs().begin(), body.programs().end());
      plan.client->family = body.client_family();
      plan.client->workspace = SetOf(body.client_workspace());
      plan.client->half_bytes = body.client_half_bytes();
      plan.client->bulk_bytes = body.client_bulk_bytes();
      if (saved.armed()) {
        for (size_t rank = 0; rank < group->world(); ++rank) plan.client->armed.Take(rank, now);
        plan.client->armed.End(FullStatusOf(saved.not_armed()));
      }
    }
    // The same key with the same request gets the plan again.
    auto barrier = std::make_shared<PrepareBarrier>(group->world(), what, "prepare it");
    barrier->requests = plan.requests;
    barrier->plan_id = plan.id;
    for (size_t rank = 0; rank < group->world(); ++rank) {
      barrier->Take(rank, now);
      barrier->Acknowledge(rank);
    }
    barrier->End(Status::Ok());
    group->prepares[plan.key] = std::move(barrier);
    core_.registry.plan_groups[plan.id] = group;
    group->plans.emplace(plan.id, std::move(plan));
  }
}

void RegistryRestorer::KeepUsedSets() {
  for (const std::shared_ptr<SegmentSet>& set : used_) {
    std::vector<uint64_t> unused;
    for (const auto& [offset, bytes] : set->allocator.blocks()) {
      if (!blocks_.contains({set->segment_ids[0], offset})) unused.push_back(offset);
    }
    for (const uint64_t offset : unused) set->allocator.Free(offset).ok();
    core_.registry.sets.insert(set);
  }
}

void RegistryRestorer::Charge() {
  Registry& registry = core_.registry;
  Ledger& ledger = registry.ledger;
  for (const auto& [id, session] : registry.sessions) {
    const Payer payer = session->payer();
    ledger.TakeOver(payer, Resource::kSessions, 1);
    ledger.TakeOver(payer, Resource::kDescriptors, 1 + session->channels.size());
    ledger.TakeOver(payer, Resource::kTensors, session->tensors.size() + session->registrations.size());
    ledger.TakeOver(payer, Resource::kLaunches, session->launches.size());
    for (const auto& [registration_id, registration] : session->registrations) {
      ledger.TakeOver(payer, Resource::kRegisteredBytes, registration.bytes);
      ledger.TakeOver(payer, Resource::kDescriptors, registration.fds.size());
    }
  }
  for (const auto& [id, group] : registry.groups) {
    ledger.TakeOver(group->payer, Resource::kGroups, 1);
    ledger.TakeOver(group->payer, Resource::kPlans, group->plans.size());
    for (const auto& [plan_id, plan] : group->plans)
      ledger.TakeOver(group->payer, Resource::kPlanBytes, plan.kept_bytes);
    ledger.TakeOver(group->payer, Resource::kDescriptors, group->client.pages.size());
  }
  for (const auto& set : registry.sets) {
    if (set->dropped) continue;
    const uint64_t world = set->segment_ids.size();
    ledger.TakeOver(set->payer, Resource::kSegmentBytes, set->bytes * world);
    ledger.TakeOver(set->payer, Resource::kDescriptors, world);
  }
}

}  // namespace tandem::daemon

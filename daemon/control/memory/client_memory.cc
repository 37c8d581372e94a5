#include "daemon/control/memory/client_memory.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "program/program.h"

namespace tandem::daemon {
namespace {

constexpr uint64_t kLeastBulkBytes = uint64_t{2} << 20;  // where a plan has any

}  // namespace

Status ClientMemoryService::MakePages(GroupRecord& group) {
  if (!group.client.pages.empty()) return Status::Ok();
  Ledger& ledger = core_.registry.ledger;
  TANDEM_RETURN_IF_ERROR(ledger.Charge(group.payer, Resource::kDescriptors, group.world()));
  GroupRecord::ClientMemory made;
  for (size_t rank = 0; rank < group.world(); ++rank) {
    Result<UniqueFd> fd = VerdictPage::Create();
    Result<VerdictPage> page = fd.ok() ? VerdictPage::Map(fd->get()) : fd.status();
    if (!page.ok()) {
      ledger.Refund(group.payer, Resource::kDescriptors, group.world());
      return page.status();
    }
    made.page_fds.push_back(std::make_shared<const UniqueFd>(std::move(*fd)));
    made.pages.push_back(std::move(*page));
  }
  group.client.page_fds = std::move(made.page_fds);
  group.client.pages = std::move(made.pages);
  PostPages(group, true);
  return Status::Ok();
}

void ClientMemoryService::PostPages(const GroupRecord& group, bool keep, int only_gpu) {
  if (!core_.registry.state) return;
  for (const int gpu : group.gpus) {
    if (only_gpu >= 0 && gpu != only_gpu) continue;
    engine::v1::Command command;
    command.mutable_keep_pages()->set_group_id(group.id);
    core_.registry.MailboxOf(gpu).Post(std::move(command),
                                       keep ? group.client.page_fds : std::vector<SharedFd>());
  }
}

void ClientMemoryService::SendAgain(int gpu) {
  for (const auto& [id, group] : core_.registry.groups) {
    if (!group->client.pages.empty() && group->UsesGpu(gpu)) PostPages(*group, true, gpu);
  }
}

Status ClientMemoryService::Provide(GroupRecord& group, uint64_t half_bytes, uint64_t bulk_bytes,
                                    const Waiter& waiter, PlanRecord::InClient* plan) {
  uint64_t half = 0, bulk = 0;
  bool first = false, grows = false;
  {
    RegistryLock lock(core_.registry);
    const GroupRecord::ClientMemory& has = group.client;
    first = has.signals == nullptr;
    grows = half_bytes > has.half_bytes || bulk_bytes > has.bulk_bytes;
    half = std::max(has.half_bytes, AllocatedHalf(half_bytes));
    // By doubling, as products of many sizes come: each plan keeps the set that it was made with.
    bulk = bulk_bytes <= has.bulk_bytes ? has.bulk_bytes
                                        : std::max({kLeastBulkBytes, bulk_bytes, 2 * has.bulk_bytes});
  }
  std::shared_ptr<SegmentSet> signals, workspace;
  Status status;
  const auto make = [&](uint64_t bytes, const char* purpose, std::shared_ptr<SegmentSet>* set) {
    if (!status.ok()) return;
    Result<std::shared_ptr<SegmentSet>> made =
        segments_.MakeSet(group, bytes, purpose, waiter, nullptr, /*for_clients=*/true);
    if (made.ok()) *set = *made;
    status = made.status();
  };
  const plan::GroupContext& context = group.context;
  const bool more = context.dense_packets || context.client_kernels == plan::ClientKernels::kFused ||
                    context.client_kernels == plan::ClientKernels::kAll;
  if (first) make(more ? plan::kClientSignalAreaBytes : plan::kSignalAreaBytes, "client signals", &signals);
  if (grows) make(2 * half + bulk, "client workspace", &workspace);
  RegistryLock lock(core_.registry);
  if (status.ok() && !core_.registry.Has(group)) status = Unavailable("group '" + group.name + "' has ended");
  if (status.ok() && !group.lifecycle.why().ok()) status = group.lifecycle.why();
  if (status.ok()) status = MakePages(group);
  if (!status.ok()) {
    for (const auto& set : {signals, workspace}) {
      if (set) segments_.RemoveSet(set);
    }
    return status;
  }
  GroupRecord::ClientMemory& has = group.client;
  core_.registry.Touch(group);
  if (signals) has.signals = signals;
  if (workspace) {
    if (has.workspace) group.outgrown.push_back(has.workspace);
    has.workspace = workspace;
    has.half_bytes = half;
    has.bulk_bytes = bulk;
  }
  if (half_bytes + bulk_bytes == 0) return Status::Ok();
  plan->workspace = has.workspace;
  plan->half_bytes = has.half_bytes;
  plan->bulk_bytes = has.bulk_bytes;
  return Status::Ok();
}

std::vector<SharedFd> ClientMemoryService::Describe(const GroupRecord& group,
                                                    const PlanRecord::InClient& plan, size_t rank,
                                                    v1::ClientPlacement* message) const {
  const SegmentSet& signals = *group.client.signals;
  std::vector<SharedFd> fds = {group.client.page_fds[rank]};
  message->set_program(plan.programs[rank]);
  message->set_signal_segment_bytes(signals.bytes);
  message->mutable_signal_segment_ids()->Add(signals.segment_ids.begin(), signals.segment_ids.end());
  fds.insert(fds.end(), signals.fds.begin(), signals.fds.end());
  if (plan.workspace) {
    const SegmentSet& workspace = *plan.workspace;
    message->set_workspace_segment_bytes(workspace.bytes);
    message->mutable_workspace_segment_ids()->Add(workspace.segment_ids.begin(), workspace.segment_ids.end());
    fds.insert(fds.end(), workspace.fds.begin(), workspace.fds.end());
  }
  message->set_half_bytes(plan.half_bytes);
  message->set_bulk_bytes(plan.bulk_bytes);
  message->set_launch_deadline_ms(group.launch_deadline_ms);
  if (!plan.family.empty()) message->mutable_family()->ParseFromString(plan.family);
  return fds;
}

void ClientMemoryService::Remove(GroupRecord& group) {
  for (const auto& set : {group.client.signals, group.client.workspace}) {
    if (set) segments_.RemoveSet(set);
  }
  if (!group.client.pages.empty()) {
    PostPages(group, false);
    core_.registry.ledger.Refund(group.payer, Resource::kDescriptors, group.client.pages.size());
  }
  group.client = {};
}

}  // namespace tandem::daemon

#include "client/lib/client_launch/plan_members.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "client/lib/client_launch/tried_rows.h"
#include "daemon/planner/members/member.h"

namespace tandem::client {
namespace {

// Members that are kept, of one family: some ten kilobytes each.
constexpr size_t kMaxMembers = 2048;

}  // namespace

Status NotAFamily() {
  return InvalidArgument("rows: the plan is of one shape; prepare a family for other numbers of rows")
      .WithDetail({.reason = "NOT_A_FAMILY", .field = "rows", .started = false});
}

Result<std::unique_ptr<PlanMembers>> PlanMembers::Make(const ClientPlacementInfo& info,
                                                       const OpRequest& request, ClientQueue& queue,
                                                       const ClientLaunchMemory& memory,
                                                       std::shared_ptr<void> keep) {
  std::unique_ptr<PlanMembers> made(new PlanMembers(queue, memory, info.program, std::move(keep)));
  if (info.family != nullptr) made->trials_ = Trials::kBrief;
  TANDEM_ASSIGN_OR_RETURN(made->bound_, made->MakeMember(info.program, request));
  if (info.family == nullptr) return made;
  if (info.family->members_version != plan::kMembersVersion) {
    return FailedPrecondition("tandemd plans families by version " +
                              std::to_string(info.family->members_version) + ", this library by version " +
                              std::to_string(plan::kMembersVersion) + ": they must be of one version")
        .WithDetail({.reason = "MEMBERS_VERSION", .field = "max_rows"});
  }
  made->family_ = info.family;
  TANDEM_ASSIGN_OR_RETURN(made->row_requests_, RowRequests::Make({&request, 1}, info.program.world_size));
  made->bound_->rows = made->family_->table.max_rows;
  const bool has_products = std::any_of(request.operands.begin(), request.operands.end(),
                                        [](const Operand& operand) { return operand.role == Role::kB; });
  TANDEM_RETURN_IF_ERROR(made->MakeFirstMembers(has_products));
  made->trials_ = Trials::kNone;
  return made;
}

// The first launch may be in a capture, so everything is loaded before. Each range has its kernels, and products
// have others within a range.
Status PlanMembers::MakeFirstMembers(bool has_products) {
  const plan::RowTable& table = family_->table;
  int64_t first = 0;
  for (const plan::RowRange& range : table.ranges) {
    for (const int64_t rows : {first, range.last}) TANDEM_RETURN_IF_ERROR(Find(rows).status());
    first = range.last + table.unit;
  }
  if (!has_products) return Status::Ok();
  int64_t doubled = 0;
  for (const int64_t rows : TriedRows(table.unit, table.max_rows)) {
    // Operands that are not aligned are rare.
    trials_ = rows >= 2 * doubled ? Trials::kBrief : Trials::kBriefAligned;
    if (trials_ == Trials::kBrief) doubled = rows;
    TANDEM_RETURN_IF_ERROR(Find(rows).status());
  }
  return Status::Ok();
}

Result<std::shared_ptr<PlanMember>> PlanMembers::MakeMember(const plan::RankProgram& program,
                                                            const OpRequest& request) const {
  auto member = std::make_shared<PlanMember>(request);
  member->keep = keep_;
  std::vector<runtime::SlotLimit> limits;
  for (int slot = 0; slot < static_cast<int>(request.operands.size()); ++slot) {
    TANDEM_ASSIGN_OR_RETURN(const int64_t bytes, BoundBytes(request, slot));
    member->slot_bytes.push_back(static_cast<uint64_t>(bytes));
    limits.push_back({member->slot_bytes.back(), request.operands[static_cast<size_t>(slot)].symmetric});
  }
  TANDEM_ASSIGN_OR_RETURN(member->work, queue_.Prepare(program, std::move(limits), memory_, trials_));
  return member;
}

Result<std::shared_ptr<PlanMember>> PlanMembers::MakeMember(int64_t rows) const {
  // The table says first what is wrong with the number.
  TANDEM_RETURN_IF_ERROR(family_->table.Find(rows).status());
  TANDEM_ASSIGN_OR_RETURN(const std::vector<OpRequest> own, row_requests_->At(rows));
  const std::vector<OpRequest> requests(world_size_, own[0]);
  TANDEM_ASSIGN_OR_RETURN(const plan::OperationPlan plan,
                          plan::MakeMember(family_->table, requests, family_->group, rows));
  TANDEM_ASSIGN_OR_RETURN(auto member, MakeMember(plan.programs[rank_], own[0]));
  member->rows = rows;
  return member;
}

Result<std::shared_ptr<const PlanMember>> PlanMembers::Find(int64_t rows) {
  using Found = Result<std::shared_ptr<const PlanMember>>;
  if (rows == LaunchOptions::kBoundRows) return Found(bound_);
  if (family_ == nullptr) return NotAFamily();
  if (rows == bound_->rows) return Found(bound_);
  std::lock_guard lock(mutex_);
  if (const auto known = by_rows_.find(rows); known != by_rows_.end()) {
    latest_.splice(latest_.begin(), latest_, known->second);
    return Found(latest_.front());
  }
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<PlanMember> member, MakeMember(rows));
  latest_.push_front(std::move(member));
  by_rows_.emplace(rows, latest_.begin());
  if (latest_.size() > kMaxMembers) {
    by_rows_.erase(latest_.back()->rows);
    latest_.pop_back();
  }
  return Found(latest_.front());
}

}  // namespace tandem::client

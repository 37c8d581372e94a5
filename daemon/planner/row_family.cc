#include "daemon/planner/row_family.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <variant>

#include "daemon/planner/choice/placement.h"
#include "daemon/planner/members/member.h"
#include "daemon/planner/planner.h"
#include "daemon/planner/problem/problem.h"
#include "program/text.h"

namespace tandem::plan {
namespace {

// A table of more ranges would have no structure that rows follow.
constexpr size_t kMaxRanges = 64;

// The structure of a plan: equal ones differ in sizes and offsets only.
struct Structure {
  Algorithm algorithm = Algorithm::kAuto, collective = Algorithm::kAuto;
  size_t steps = 0;
  int shots = 0;
  bool dense = false, skinny = false, in_bulk = false, norm_in_sum = false;
  bool operator==(const Structure&) const = default;
};

Structure StructureOf(const OperationPlan& plan) {
  Structure structure;
  structure.algorithm = plan.algorithm;
  structure.collective = plan.collective;
  structure.in_bulk = plan.bulk_bytes > 0;
  const RankProgram& program = plan.programs[0];
  structure.steps = program.steps.size();
  for (const Step& step : program.steps) {
    if (const auto* norm = std::get_if<NormStep>(&step.work)) structure.norm_in_sum = norm->row_blocks > 0;
    const auto* collective = std::get_if<CollectiveStep>(&step.work);
    if (collective == nullptr) continue;
    structure.shots = collective->shots;
    structure.dense = collective->dense;
    structure.skinny = collective->skinny.has_value();
  }
  return structure;
}

// Finds the ranges. Plans are made once a number of rows.
class RangeFinder {
 public:
  RangeFinder(const RowRequests& requests, const GroupContext& group) : requests_(requests), group_(group) {
    group_.placement = PlanPlacement::kClient;
  }

  Result<std::vector<RowRange>> Find(int64_t max_rows) {
    TANDEM_RETURN_IF_ERROR(Plan(0));
    const int64_t unit = requests_.unit();
    int64_t before = unit;
    TANDEM_RETURN_IF_ERROR(Plan(before));
    // Steps of half an octave: no algorithm's range is known to be narrower.
    for (int64_t power = 1; before < max_rows; power *= 2) {
      for (const int64_t steps : {power, power + power / 2}) {
        const int64_t next = std::min(steps * unit, max_rows);
        if (next <= before) continue;
        TANDEM_RETURN_IF_ERROR(Plan(next));
        TANDEM_RETURN_IF_ERROR(Split(before, next));
        before = next;
      }
    }
    return Ranges();
  }

 private:
  struct Known {
    Structure structure;
    RowRange range;
  };

  Status Plan(int64_t rows) {
    if (plans_.contains(rows)) return Status::Ok();
    TANDEM_ASSIGN_OR_RETURN(std::vector<OpRequest> requests, requests_.At(rows));
    // A kernel that a request names may have nothing to do with no rows at all.
    for (OpRequest& request : requests) {
      if (rows > 0) break;
      request.algorithm = Algorithm::kAuto;
      request.on_unfused = OnUnfused::kAllow;
    }
    TANDEM_ASSIGN_OR_RETURN(const OperationPlan plan, MakePlan(requests, group_));
    std::string reason = plan.norm.empty() ? plan.reason : Text(plan.reason, "; norm: ", plan.norm);
    plans_[rows] = {StructureOf(plan),
                    {rows, plan.algorithm, plan.collective, plan.predicted_us, std::move(reason)}};
    return Status::Ok();
  }

  // Plans the last number of rows of each structure in [first, last], both of which are planned.
  Status Split(int64_t first, int64_t last) {
    if (plans_[first].structure == plans_[last].structure || last - first <= requests_.unit())
      return Status::Ok();
    if (plans_.size() > kMaxRanges * 32) return Internal("a family of more structures than a table has");
    const int64_t middle = first + (last - first) / requests_.unit() / 2 * requests_.unit();
    TANDEM_RETURN_IF_ERROR(Plan(middle));
    TANDEM_RETURN_IF_ERROR(Split(first, middle));
    return Split(middle, last);
  }

  std::vector<RowRange> Ranges() const {
    std::vector<RowRange> ranges;
    const Structure* before = nullptr;
    for (const auto& [rows, known] : plans_) {
      // 0 rows are a range of their own: their parts are empty, and prove nothing about other numbers.
      if (before != nullptr && *before == known.structure && rows > requests_.unit()) {
        ranges.back() = known.range;
      } else {
        ranges.push_back(known.range);
      }
      before = &known.structure;
    }
    return ranges;
  }

  const RowRequests& requests_;
  GroupContext group_;
  std::map<int64_t, Known> plans_;
};

}  // namespace

std::vector<int64_t> RowsToProve(const RowTable& table) {
  // Sizes, in units, that tiles, vectors of 16 bytes and the ranks' parts are multiples of.
  constexpr int64_t kCuts[] = {8, 16, 64, 128};
  std::set<int64_t> chosen;
  int64_t first = 0;
  for (const RowRange& range : table.ranges) {
    const auto add = [&](int64_t rows) {
      if (rows >= first && rows <= range.last) chosen.insert(rows);
    };
    for (const int64_t beside : {int64_t{0}, table.unit}) {
      add(first + beside);
      add(range.last - beside);
    }
    const int64_t middle = (first + range.last) / table.unit / 2;
    for (const int64_t cut : kCuts) {
      const int64_t multiple = middle / cut * cut * table.unit;
      for (const int64_t beside : {-table.unit, int64_t{0}, table.unit}) add(multiple + beside);
    }
    first = range.last + table.unit;
  }
  return {chosen.begin(), chosen.end()};
}

Result<RowTable> PlanRows(const RowRequests& requests, int64_t max_rows, const GroupContext& group) {
  if (max_rows < requests.unit() || max_rows % requests.unit() != 0) {
    return FieldError("max_rows", Text(max_rows, " is no positive multiple of ", requests.unit()));
  }
  // The bound says first what is wrong with the request.
  TANDEM_ASSIGN_OR_RETURN(const std::vector<OpRequest> bound, requests.At(max_rows));
  TANDEM_RETURN_IF_ERROR(MakeProblem(bound, group).status());
  RowTable table;
  table.max_rows = max_rows;
  table.unit = requests.unit();
  TANDEM_ASSIGN_OR_RETURN(table.ranges, RangeFinder(requests, group).Find(max_rows));
  if (table.ranges.size() > kMaxRanges) return Internal("a family of more structures than a table has");
  for (const int64_t rows : RowsToProve(table)) {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<OpRequest> own, requests.At(rows));
    Result<OperationPlan> member = MakeMember(table, own, group, rows);
    const Status proven =
        member.ok() ? CheckClientPlacement(*member, own, group.client_kernels) : member.status();
    if (!proven.ok())
      return Status(Code::kInternal, Text(rows, " rows: ", proven.message()), proven.detail());
    table.workspace_bytes = std::max(table.workspace_bytes, member->workspace_bytes);
    table.bulk_bytes = std::max(table.bulk_bytes, member->bulk_bytes);
  }
  return table;
}

Result<OperationPlan> MakeFamily(std::span<const OpRequest> requests, const GroupContext& group) {
  const StatusDetail placed{.reason = "FAMILY_OF_ENGINES", .field = "placement"};
  if (!group.no_client_plans.empty()) {
    return FailedPrecondition("a family runs on the ranks' own streams: " + group.no_client_plans)
        .WithDetail(placed);
  }
  if (requests[0].placement == PlanPlacement::kEngine) {
    return FailedPrecondition("placement = engine: engines run plans of one shape").WithDetail(placed);
  }
  TANDEM_ASSIGN_OR_RETURN(const RowRequests rows, RowRequests::Make(requests, group.topology.size()));
  TANDEM_ASSIGN_OR_RETURN(RowTable table, PlanRows(rows, requests[0].max_rows, group));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<OpRequest> bound, rows.At(table.max_rows));
  TANDEM_ASSIGN_OR_RETURN(OperationPlan plan, MakePlan(bound, group));
  plan.workspace_bytes = table.workspace_bytes;
  plan.bulk_bytes = table.bulk_bytes;
  plan.placement_reason = Text("a family of up to ", table.max_rows, " rows runs on the ranks' own streams");
  plan.rows = std::move(table);
  return plan;
}

}  // namespace tandem::plan

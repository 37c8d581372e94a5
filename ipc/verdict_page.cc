#include "ipc/verdict_page.h"

#include <utility>

#include "ipc/status_record.h"

namespace tandem {

Result<UniqueFd> VerdictPage::Create() { return CreateSealedMemfd("tandem-verdict", kVerdictPageBytes); }

Result<VerdictPage> VerdictPage::Map(int fd) {
  TANDEM_RETURN_IF_ERROR(CheckForeignMemfd(fd, kVerdictPageBytes));
  VerdictPage page;
  TANDEM_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Map(fd, 0, kVerdictPageBytes, true));
  page.mapping_ = std::make_shared<const Mapping>(std::move(mapping));
  return page;
}

void VerdictPage::Abort(uint64_t from, const Status& why) {
  const uint64_t before = FirstAbortedLaunch();
  if (from == 0 || (before != 0 && before <= from)) return;
  WriteStatusRecord(&layout()->reason, from, why, 0);
  layout()->first_aborted_launch.store(from, std::memory_order_release);
}

uint64_t VerdictPage::PlanOfLaunch(uint64_t number) const {
  const auto is_kept = [&] {
    const uint64_t last = Launched();
    return number <= last && last - number < kLaunchedPlans - 1;
  };
  if (!is_kept()) return 0;
  const uint64_t plan_id = layout()->launched_plans[number % kLaunchedPlans].load(std::memory_order_acquire);
  return is_kept() ? plan_id : 0;  // a later launch may have taken its place meanwhile
}

Status VerdictPage::Reason() const {
  Status status = ReadStatusRecord(&layout()->reason).status;
  return status.ok() ? Unavailable("the group's launches were ended without a reason") : status;
}

}  // namespace tandem

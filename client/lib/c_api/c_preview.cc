// Previews of plans, of the C interface.
#include "client/lib/c_api/c_handles.h"
#include "client/lib/plan_json.h"

using namespace tandem;     // NOLINT: this file is all glue
using namespace tandem::c;  // NOLINT

extern "C" {

tandem_status* tandem_preview_plan(tandem_group* group, const tandem_request* request,
                                   tandem_preview** preview) try {
  Clear(preview);
  TANDEM_C_RETURN_IF_NULL({"group", group}, {"request", request}, {"preview", preview});
  auto op = ToRequest(*request);
  TANDEM_C_RETURN_IF_ERROR(op);
  auto info = group->group->Preview(*op);
  TANDEM_C_RETURN_IF_ERROR(info);
  std::string json = client::PlanJson(*info), explanation = Explain(*info);
  *preview = new tandem_preview{*std::move(info), std::move(json), std::move(explanation)};
  return nullptr;
}
TANDEM_C_CATCH
void tandem_preview_free(tandem_preview* preview) { delete preview; }
int tandem_preview_algorithm(const tandem_preview* preview) {
  return preview == nullptr ? TANDEM_ALGORITHM_AUTO : static_cast<int>(preview->info.algorithm);
}
int tandem_preview_fused(const tandem_preview* preview) {
  return preview != nullptr && preview->info.fused ? 1 : 0;
}
int tandem_preview_placement(const tandem_preview* preview) {
  return preview == nullptr ? TANDEM_PLACEMENT_AUTO : static_cast<int>(preview->info.placed);
}
double tandem_preview_predicted_us(const tandem_preview* preview) {
  return preview == nullptr ? 0 : preview->info.predicted_us;
}
const char* tandem_preview_reason(const tandem_preview* preview) {
  return preview == nullptr ? "" : preview->info.reason.c_str();
}
const char* tandem_preview_explanation(const tandem_preview* preview) {
  return preview == nullptr ? "" : preview->explanation.c_str();
}
const char* tandem_preview_json(const tandem_preview* preview) {
  return preview == nullptr ? "{}" : preview->json.c_str();
}

}  // extern "C"

// Holds of captures in the C interface.
#include "client/lib/c_api/c_handles.h"
#include "tandem/capture_hold.h"

using namespace tandem;     // NOLINT: this file is all glue
using namespace tandem::c;  // NOLINT

struct tandem_capture_hold {
  std::unique_ptr<CaptureHold> hold;
};

extern "C" {

tandem_status* tandem_capture_hold_begin(void* cuda_stream, tandem_capture_hold** hold) try {
  Clear(hold);
  TANDEM_C_RETURN_IF_NULL({"hold", hold});
  auto made = CaptureHold::Begin(StreamRef::Cuda(cuda_stream));
  TANDEM_C_RETURN_IF_ERROR(made);
  *hold = new tandem_capture_hold{*std::move(made)};
  return nullptr;
}
TANDEM_C_CATCH
void tandem_capture_hold_free(tandem_capture_hold* hold) { delete hold; }

}  // extern "C"

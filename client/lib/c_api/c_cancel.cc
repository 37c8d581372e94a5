// Cancellation in the C interface.
#include "client/lib/base/cancellation.h"
#include "client/lib/c_api/c_handles.h"

using namespace tandem;          // NOLINT: this file is all glue
using namespace tandem::c;       // NOLINT
using namespace tandem::client;  // NOLINT

struct tandem_cancellation {
  std::shared_ptr<Cancellation> cancellation;
};

namespace tandem::client {

Status CheckCancelled() {
  const CancelScope scope(ThisThreadsCancellation(), [] {});
  return scope.Cancelled() ? Status(Code::kCancelled, "the call was cancelled") : Status::Ok();
}

std::shared_ptr<Cancellation>& ThisThreadsCancellation() {
  thread_local std::shared_ptr<Cancellation> cancellation;
  return cancellation;
}

}  // namespace tandem::client

extern "C" {

tandem_status* tandem_cancellation_create(tandem_cancellation** cancellation) try {
  Clear(cancellation);
  TANDEM_C_RETURN_IF_NULL({"cancellation", cancellation});
  *cancellation = new tandem_cancellation{std::make_shared<Cancellation>()};
  return nullptr;
}
TANDEM_C_CATCH
void tandem_cancellation_free(tandem_cancellation* cancellation) { delete cancellation; }
void tandem_cancellation_use(tandem_cancellation* cancellation) {
  ThisThreadsCancellation() = cancellation == nullptr ? nullptr : cancellation->cancellation;
}
void tandem_cancellation_cancel(tandem_cancellation* cancellation) {
  if (cancellation != nullptr) cancellation->cancellation->Cancel();
}

}  // extern "C"

// The log's callback in the C interface.
#include "client/lib/c_api/c_handles.h"
#include "tandem/log.h"

using namespace tandem;     // NOLINT: this file is all glue
using namespace tandem::c;  // NOLINT

extern "C" {

tandem_status* tandem_set_log_callback(tandem_log_callback callback, void* user, int least_level) try {
  if (least_level < TANDEM_LOG_DEBUG || least_level > TANDEM_LOG_ERROR)
    return ToC(BadField("least_level", "is " + std::to_string(least_level) + ", which is no level"));
  if (callback == nullptr) return ToC(SetLogCallback(nullptr));
  const auto call = [callback, user](ClientLogLevel severity, std::string_view text) {
    callback(user, static_cast<int>(severity), std::string(text).c_str());
  };
  return ToC(SetLogCallback(call, static_cast<ClientLogLevel>(least_level)));
}
TANDEM_C_CATCH

}  // extern "C"

// Statuses of the C interface.
#include "client/lib/c_api/c_handles.h"

namespace {

const tandem::StatusDetail& Detail(const tandem_status* status) {
  static const tandem::StatusDetail none;
  return status == nullptr ? none : status->status.detail();
}

}  // namespace

extern "C" {

int tandem_status_code(const tandem_status* status) {
  return status == nullptr ? TANDEM_OK : static_cast<int>(status->status.code());
}
const char* tandem_status_message(const tandem_status* status) {
  return status == nullptr ? "" : status->status.message().c_str();
}
const char* tandem_status_reason(const tandem_status* status) { return Detail(status).reason.c_str(); }
const char* tandem_status_who(const tandem_status* status) { return Detail(status).who.c_str(); }
const char* tandem_status_field(const tandem_status* status) { return Detail(status).field.c_str(); }
int tandem_status_started(const tandem_status* status) {
  const std::optional<bool>& started = Detail(status).started;
  return started.has_value() ? static_cast<int>(*started) : -1;
}
size_t tandem_status_ranks(const tandem_status* status, int* ranks, size_t capacity) {
  const auto& all = Detail(status).ranks;
  for (size_t i = 0; ranks != nullptr && i < all.size() && i < capacity; ++i)
    ranks[i] = static_cast<int>(all[i]);
  return all.size();
}
int64_t tandem_status_pid(const tandem_status* status) { return Detail(status).pid; }
int tandem_status_gpu(const tandem_status* status) { return Detail(status).gpu; }
int64_t tandem_status_limit(const tandem_status* status) { return Detail(status).limit; }
int64_t tandem_status_usage(const tandem_status* status) { return Detail(status).usage; }
void tandem_status_free(tandem_status* status) {
  if (status != tandem::c::NoMemoryStatus()) delete status;
}

}  // extern "C"

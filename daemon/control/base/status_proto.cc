#include "daemon/control/base/status_proto.h"

#include <string>

#include "tandem/v1/types.pb.h"

namespace tandem::daemon {
namespace {

constexpr size_t kMaxMessage = 2048;
constexpr size_t kMaxField = 256;

std::string Cut(const std::string& text, size_t limit) {
  return text.size() <= limit ? text : text.substr(0, limit - 3) + "...";
}

}  // namespace

void FillStatusDetail(const Status& status, v1::StatusDetail* detail) {
  const StatusDetail& from = status.detail();
  detail->set_code(static_cast<int>(status.code()));
  detail->set_message(Cut(status.message(), kMaxMessage));
  detail->set_reason(Cut(from.reason, kMaxField));
  detail->set_who(Cut(from.who, kMaxField));
  detail->set_field(Cut(from.field, kMaxField));
  detail->set_limit(from.limit);
  detail->set_usage(from.usage);
  for (const uint32_t rank : from.ranks) detail->add_ranks(rank);
  detail->set_pid(from.pid);
  if (from.gpu >= 0) detail->set_gpu(from.gpu);
  if (from.started.has_value()) detail->set_started(*from.started);
}

Status StatusOf(const v1::StatusDetail& detail) {
  const bool known = detail.code() >= 0 && detail.code() <= static_cast<int>(Code::kUnauthenticated);
  const Code code = known ? static_cast<Code>(detail.code()) : Code::kUnknown;
  if (code == Code::kOk) return Status::Ok();
  return Status(code, Cut(detail.message(), kMaxMessage),
                {.reason = Cut(detail.reason(), kMaxField), .field = Cut(detail.field(), kMaxField)});
}

}  // namespace tandem::daemon

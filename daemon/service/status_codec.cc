#include "daemon/service/status_codec.h"

#include <string>

#include "tandem/v1/types.pb.h"

namespace tandem::daemon {
namespace {

// HTTP/2 headers are bounded (8 KiB by default, message and trailer together): long texts are cut here, not
// lost there.
constexpr size_t kMaxMessage = 2048;
constexpr size_t kMaxField = 256;

std::string Cut(const std::string& text, size_t limit) {
  return text.size() <= limit ? text : text.substr(0, limit - 3) + "...";
}

}  // namespace

void FillStatusDetail(const Status& status, v1::StatusDetail* detail) {
  detail->set_code(static_cast<int>(status.code()));
  detail->set_message(Cut(status.message(), kMaxMessage));
  detail->set_reason(Cut(status.detail().reason, kMaxField));
  detail->set_who(Cut(status.detail().who, kMaxField));
  detail->set_field(Cut(status.detail().field, kMaxField));
  detail->set_limit(status.detail().limit);
  detail->set_usage(status.detail().usage);
}

grpc::Status ToGrpc(grpc::ServerContext* context, const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  v1::StatusDetail detail;
  FillStatusDetail(status, &detail);
  context->AddTrailingMetadata(kStatusTrailer, detail.SerializeAsString());
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), detail.message());
}

}  // namespace tandem::daemon

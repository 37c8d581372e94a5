#include "daemon/service/status_codec.h"

#include "daemon/control/base/status_proto.h"
#include "tandem/v1/types.pb.h"

namespace tandem::daemon {

grpc::Status ToGrpc(grpc::ServerContext* context, const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  v1::StatusDetail detail;
  FillStatusDetail(status, &detail);
  context->AddTrailingMetadata(kStatusTrailer, detail.SerializeAsString());
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), detail.message());
}

}  // namespace tandem::daemon

// Collectives in one call each, of the C interface.
#include "client/lib/c_api/c_handles.h"

using namespace tandem;     // NOLINT: this file is all glue
using namespace tandem::c;  // NOLINT

namespace {

tandem_status* LaunchOn(tandem_group* group, void* stream, const CollectiveCall& call) {
  if (group->is_cuda) return ToC(group->collectives->Launch(StreamRef::Cuda(stream), call));
  TANDEM_C_RETURN_IF_NULL({"stream", stream});
  return ToC(group->collectives->Launch(static_cast<tandem_stream*>(stream)->stream.get(), call));
}

tandem_status* LaunchOne(tandem_group* group, tandem_collective collective, void* stream) {
  TANDEM_C_RETURN_IF_NULL({"group", group});
  collective.struct_size = sizeof(collective);
  auto call = ToCollectiveCall(collective);
  TANDEM_C_RETURN_IF_ERROR(call);
  return LaunchOn(group, stream, *call);
}

}  // namespace

tandem_status* tandem::c::Give(Result<std::shared_ptr<Group>> joined, bool is_cuda, tandem_group** group) {
  TANDEM_C_RETURN_IF_ERROR(joined);
  auto collectives = Collectives::Make(*joined);
  TANDEM_C_RETURN_IF_ERROR(collectives);
  *group = new tandem_group{*std::move(joined), *std::move(collectives), is_cuda};
  return nullptr;
}

extern "C" {

tandem_status* tandem_all_reduce(tandem_group* group, const void* input, void* output, size_t count,
                                 int dtype, int reduce_op, void* stream) try {
  return LaunchOne(group, {0, TANDEM_OP_ALL_REDUCE, dtype, input, output, count, reduce_op, 0}, stream);
}
TANDEM_C_CATCH
tandem_status* tandem_all_gather(tandem_group* group, const void* input, void* output, size_t count,
                                 int dtype, void* stream) try {
  return LaunchOne(group, {0, TANDEM_OP_ALL_GATHER, dtype, input, output, count, 0, 0}, stream);
}
TANDEM_C_CATCH
tandem_status* tandem_reduce_scatter(tandem_group* group, const void* input, void* output, size_t count,
                                     int dtype, int reduce_op, void* stream) try {
  return LaunchOne(group, {0, TANDEM_OP_REDUCE_SCATTER, dtype, input, output, count, reduce_op, 0}, stream);
}
TANDEM_C_CATCH
tandem_status* tandem_all_to_all(tandem_group* group, const void* input, void* output, size_t count,
                                 int dtype, void* stream) try {
  return LaunchOne(group, {0, TANDEM_OP_ALL_TO_ALL, dtype, input, output, count, 0, 0}, stream);
}
TANDEM_C_CATCH
tandem_status* tandem_broadcast(tandem_group* group, const void* input, void* output, size_t count, int dtype,
                                int root, void* stream) try {
  return LaunchOne(group, {0, TANDEM_OP_BROADCAST, dtype, input, output, count, 0, root}, stream);
}
TANDEM_C_CATCH
tandem_status* tandem_reduce(tandem_group* group, const void* input, void* output, size_t count, int dtype,
                             int reduce_op, int root, void* stream) try {
  return LaunchOne(group, {0, TANDEM_OP_REDUCE, dtype, input, output, count, reduce_op, root}, stream);
}
TANDEM_C_CATCH

tandem_status* tandem_collective_prepare(tandem_group* group, const tandem_collective* collective,
                                         int64_t deadline_ms) try {
  TANDEM_C_RETURN_IF_NULL({"group", group}, {"collective", collective});
  auto call = ToCollectiveCall(*collective);
  TANDEM_C_RETURN_IF_ERROR(call);
  return ToC(group->collectives->Prepare(*call, ToDeadline(deadline_ms, kDefaultDeadline)));
}
TANDEM_C_CATCH
tandem_status* tandem_collective_launch(tandem_group* group, const tandem_collective* collective,
                                        void* stream) try {
  TANDEM_C_RETURN_IF_NULL({"group", group}, {"collective", collective});
  auto call = ToCollectiveCall(*collective);
  TANDEM_C_RETURN_IF_ERROR(call);
  return LaunchOn(group, stream, *call);
}
TANDEM_C_CATCH
tandem_status* tandem_collectives_wait(tandem_group* group, int64_t deadline_ms) try {
  TANDEM_C_RETURN_IF_NULL({"group", group});
  return ToC(group->collectives->Wait(ToDeadline(deadline_ms, kDefaultWaitDeadline)));
}
TANDEM_C_CATCH
tandem_status* tandem_collectives_query(tandem_group* group, int* ended) try {
  TANDEM_C_RETURN_IF_NULL({"group", group}, {"ended", ended});
  auto result = group->collectives->Query();
  TANDEM_C_RETURN_IF_ERROR(result);
  *ended = *result ? 1 : 0;
  return nullptr;
}
TANDEM_C_CATCH

}  // extern "C"

#include "client/grpc_plugin/family.h"

#include <memory>
#include <utility>

#include "program/program_codec.h"
#include "tandem/program/v1/program.pb.h"

namespace tandem::client {
namespace {

Result<std::shared_ptr<const FamilyInfo>> FamilyFrom(const v1::Family& family, const v1::RowTable& rows,
                                                     int world_size) {
  const auto world = static_cast<size_t>(world_size);
  const auto pairs = static_cast<int>(world * world);
  if (world_size < 1 || world_size > kMaxGpus || family.switch_links_size() != world_size ||
      family.nvlinks_size() != pairs || family.peer_access_size() != pairs || rows.unit() < 1 ||
      rows.ranges().empty()) {
    return Internal("the daemon's answer about a family does not fit together");
  }
  auto info = std::make_shared<FamilyInfo>();
  info->members_version = family.members_version();
  plan::GroupContext& group = info->group;
  group.packet_kernels = family.packet_kernels();
  group.dense_packets = family.dense_packets();
  group.fused_kernels = family.fused_kernels();
  group.client_kernels = static_cast<plan::ClientKernels>(family.client_kernels());
  group.kernel_sms = family.kernel_sms();
  group.placement = PlanPlacement::kClient;
  group.topology.gpus.resize(world);
  for (size_t i = 0; i < world; ++i) {
    group.topology.gpus[i].switch_links = family.switch_links(static_cast<int>(i));
    for (size_t j = 0; j < world; ++j) {
      const auto pair = static_cast<int>(i * world + j);
      group.topology.nvlinks[i][j] = family.nvlinks(pair);
      group.topology.p2p[i][j] = family.peer_access(pair);
    }
  }
  info->table.max_rows = rows.max_rows();
  info->table.unit = rows.unit();
  for (const v1::RowRange& range : rows.ranges()) {
    info->table.ranges.push_back({range.last(),
                                  static_cast<Algorithm>(range.algorithm()),
                                  static_cast<Algorithm>(range.collective()),
                                  range.predicted_us(),
                                  {}});
  }
  return std::shared_ptr<const FamilyInfo>(std::move(info));
}

}  // namespace

Result<ClientPlacementInfo> ReadPlacement(const v1::ClientPlacement& reply, std::vector<UniqueFd> fds) {
  const auto signals = static_cast<size_t>(reply.signal_segment_ids_size());
  const auto workspace = static_cast<size_t>(reply.workspace_segment_ids_size());
  program::v1::RankProgram program;
  if (fds.size() != 1 + signals + workspace || !program.ParseFromString(reply.program())) {
    return Internal("the daemon's answer about a client-placed plan is malformed");
  }
  ClientPlacementInfo info;
  TANDEM_ASSIGN_OR_RETURN(info.program, plan::DecodeProgram(program));
  info.verdict_page = std::move(fds[0]);
  for (size_t i = 0; i < signals; ++i) info.signals.push_back(std::move(fds[1 + i]));
  for (size_t i = 0; i < workspace; ++i) info.workspace.push_back(std::move(fds[1 + signals + i]));
  info.signal_ids.assign(reply.signal_segment_ids().begin(), reply.signal_segment_ids().end());
  info.workspace_ids.assign(reply.workspace_segment_ids().begin(), reply.workspace_segment_ids().end());
  info.signal_bytes = reply.signal_segment_bytes();
  info.workspace_bytes = reply.workspace_segment_bytes();
  info.half_bytes = reply.half_bytes();
  info.bulk_bytes = reply.bulk_bytes();
  info.launch_deadline = Milliseconds(reply.launch_deadline_ms());
  return info;
}

Status AddFamily(const v1::PrepareReply& reply, ClientPlacementInfo* placement) {
  if (!reply.client().has_family()) return Status::Ok();
  TANDEM_ASSIGN_OR_RETURN(placement->family, FamilyFrom(reply.client().family(), reply.plan().rows(),
                                                        placement->program.world_size));
  return Status::Ok();
}

}  // namespace tandem::client

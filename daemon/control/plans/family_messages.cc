#include "daemon/control/plans/family_messages.h"

#include "daemon/planner/members/member.h"

namespace tandem::daemon {

void FillRows(const plan::RowTable& from, v1::RowTable* rows) {
  rows->set_max_rows(from.max_rows);
  rows->set_unit(from.unit);
  for (const plan::RowRange& range : from.ranges) {
    v1::RowRange& to = *rows->add_ranges();
    to.set_last(range.last);
    to.set_algorithm(static_cast<uint32_t>(range.algorithm));
    to.set_collective(static_cast<uint32_t>(range.collective));
    to.set_predicted_us(range.predicted_us);
    to.set_reason(range.reason);
  }
}

void FillFamily(const plan::GroupContext& group, v1::Family* family) {
  family->set_members_version(plan::kMembersVersion);
  family->set_packet_kernels(group.packet_kernels);
  family->set_dense_packets(group.dense_packets);
  family->set_fused_kernels(group.fused_kernels);
  family->set_client_kernels(static_cast<uint32_t>(group.client_kernels));
  family->set_kernel_sms(group.kernel_sms);
  const auto world = static_cast<size_t>(group.topology.size());
  for (size_t i = 0; i < world; ++i) {
    family->add_switch_links(group.topology.gpus[i].switch_links);
    for (size_t j = 0; j < world; ++j) {
      family->add_nvlinks(group.topology.nvlinks[i][j]);
      family->add_peer_access(group.topology.p2p[i][j]);
    }
  }
}

}  // namespace tandem::daemon

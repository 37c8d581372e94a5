#include "client/lib/client_launch/client_program.h"

#include <string>
#include <utility>

namespace tandem::client {

Result<std::unique_ptr<ClientProgram>> ClientProgram::Make(const plan::RankProgram& program,
                                                           std::vector<runtime::SlotLimit> slots,
                                                           const ClientLaunchMemory& memory,
                                                           std::unique_ptr<ClientLane> lane) {
  if (lane == nullptr) lane = std::make_unique<ClientLane>();
  std::unique_ptr<ClientProgram> made(new ClientProgram(memory, program.rank, std::move(lane)));
  runtime::ProgramLimits limits{program.rank, program.world_size, memory.half_bytes, memory.bulk_bytes,
                                std::move(slots)};
  TANDEM_ASSIGN_OR_RETURN(made->program_, runtime::CompiledProgram::Compile(program, limits));
  if (made->program_->lanes() > 1 || made->program_->needs_communicator()) {
    return Unimplemented("the program has " + std::to_string(made->program_->lanes()) +
                         " lanes or needs NCCL: engines run it");
  }
  return made;
}

Status ClientProgram::Run(ClientLaunch launch, std::span<const runtime::SlotAddress> slots) {
  launch.own_words = memory_.signals[static_cast<size_t>(rank_)];
  lane_->Begin(launch);
  runtime::LaunchContext context;
  context.launch_number = launch.number;
  context.signals = memory_.signals;
  context.bulk = memory_.bulk;
  for (size_t rank = 0; rank < context.workspace.size(); ++rank) {
    std::byte* const half0 = memory_.workspace[rank];
    context.workspace[rank] = half0 == nullptr ? nullptr : half0 + (launch.number & 1) * memory_.half_bytes;
  }
  context.slots = slots;
  return executor_.Enqueue(*program_, context);
}

}  // namespace tandem::client

#include "client/lib/placed/placed_program.h"

#include <string>
#include <utility>

namespace tandem::client {

Result<std::unique_ptr<PlacedProgram>> PlacedProgram::Make(const plan::RankProgram& program,
                                                           std::vector<engine::SlotLimit> slots,
                                                           const PlacedMemory& memory,
                                                           std::unique_ptr<PlacedLane> lane) {
  if (lane == nullptr) lane = std::make_unique<PlacedLane>();
  std::unique_ptr<PlacedProgram> made(new PlacedProgram(memory, program.rank, std::move(lane)));
  engine::ProgramLimits limits{program.rank, program.world_size, memory.half_bytes, memory.bulk_bytes,
                               std::move(slots)};
  TANDEM_ASSIGN_OR_RETURN(made->program_, engine::CompiledProgram::Compile(program, limits));
  if (made->program_->lanes() > 1 || made->program_->needs_communicator()) {
    return Unimplemented("the program has " + std::to_string(made->program_->lanes()) +
                         " lanes or needs NCCL: engines run it");
  }
  return made;
}

Status PlacedProgram::Run(PlacedLaunch launch, std::span<const engine::SlotAddress> slots) {
  launch.own_words = memory_.signals[static_cast<size_t>(rank_)];
  lane_->Begin(launch);
  engine::LaunchContext context;
  context.epoch = launch.number;
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

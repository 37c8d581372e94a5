// Fuzzes rank programs on their way to an engine: bytes are refused, or give a program that encodes and
// decodes to itself and that the executor's compiler and the verifier judge without harm.
#include <google/protobuf/stubs/logging.h>

#include <string>

#include "program/program.h"
#include "program/program_codec.h"
#include "program/verifier/verifier.h"
#include "runtime/executor/executor.h"
#include "tandem/program/v1/program.pb.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

constexpr size_t kMaxSteps = 64;
constexpr uint64_t kBytes = 1 << 16;

// A view's bytes are expanded step by step there: only boxes of a launch's usual size.
bool Small(const tandem::plan::RankProgram& program) {
  return program.steps.size() <= kMaxSteps && program.world_size <= 2;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  google::protobuf::SetLogHandler(nullptr);
  program::v1::RankProgram message;
  if (!message.ParseFromArray(data, static_cast<int>(size))) return 0;
  Result<plan::RankProgram> program = plan::DecodeProgram(message);
  if (!program.ok()) return 0;
  program::v1::RankProgram encoded;
  plan::EncodeProgram(*program, &encoded);
  Result<plan::RankProgram> again = plan::DecodeProgram(encoded);
  fuzz::Expect(again.ok(), "what was encoded does not decode: " + again.status().ToString());
  program::v1::RankProgram encoded_again;
  plan::EncodeProgram(*again, &encoded_again);
  fuzz::Expect(encoded.SerializeAsString() == encoded_again.SerializeAsString(), "the codec loses something");
  fuzz::Expect(plan::ListProgram(*program) == plan::ListProgram(*again), "the listing changes");

  runtime::ProgramLimits limits;
  limits.rank = program->rank;
  limits.world_size = program->world_size;
  limits.workspace_bytes = limits.bulk_bytes = kBytes;
  limits.slots = {{.bytes = kBytes, .symmetric = true}, {.bytes = kBytes, .symmetric = false}};
  runtime::CompiledProgram::Compile(*program, limits).ok();

  if (Small(*program)) {
    std::vector<plan::RankProgram> programs(static_cast<size_t>(program->world_size), *program);
    for (size_t rank = 0; rank < programs.size(); ++rank) programs[rank].rank = static_cast<int>(rank);
    plan::VerifyContext context;
    context.operand_bytes.assign(programs.size(), {kBytes, kBytes});
    context.symmetric = {true, false};
    context.alias = {-1, -1};
    plan::VerifyPrograms(programs, context, {.launches = 2, .hardware_queues = 0, .alternate_parity = true})
        .ok();
  }
  return 0;
}

// The order of sums over ranks: each element of an output is traced back to the sum that made it, and each
// source of that sum to the input that it came from.
#include <set>
#include <string>
#include <variant>

#include "program/verifier/graph.h"
#include "program/verifier/regions.h"

namespace tandem::plan {
namespace {

// A copy or a reduction of one rank, in the order of its program.
struct Write {
  const CopyStep* copy = nullptr;
  const ReduceStep* sum = nullptr;
  int rank = 0;
  size_t at = 0;

  const View& target() const { return copy != nullptr ? copy->dst : sum->dst; }
};

// What a view holds: an input's elements, or the result of a sum.
struct TracedOrigin {
  const Write* sum = nullptr;
  const View* input = nullptr;
};

std::string Who(const Write& write) {
  return "rank " + std::to_string(write.rank) + ", step " + std::to_string(write.at);
}

using verify::AreAlike;
using verify::Overlap;

class Tracer {
 public:
  Tracer(std::span<const RankProgram> programs, const SumOrder& order) : programs_(programs), order_(order) {}

  Status Run() {
    for (const RankProgram& program : programs_) {
      size_t at = 0;
      TANDEM_RETURN_IF_ERROR(Collect(program.rank, program.steps, &at));
    }
    for (size_t rank = 0; rank < programs_.size(); ++rank) {
      if (order_.has_output[rank]) TANDEM_RETURN_IF_ERROR(CheckOutput(order_.outputs[rank]));
    }
    return Status::Ok();
  }

 private:
  Status Collect(int rank, std::span<const Step> steps, size_t* at) {
    for (const Step& step : steps) {
      Write write{.rank = rank, .at = *at};
      if (const auto* collective = std::get_if<CollectiveStep>(&step.work)) {
        TANDEM_RETURN_IF_ERROR(Collect(rank, collective->expansion, at));
        continue;
      }
      ++*at;
      if (std::holds_alternative<NcclStep>(step.work) || std::holds_alternative<MatmulStep>(step.work))
        return verify::Refuse("SUM_ORDER", Who(write) + ": a step whose order of sums nobody knows");
      write.copy = std::get_if<CopyStep>(&step.work);
      write.sum = std::get_if<ReduceStep>(&step.work);
      if (write.copy != nullptr || write.sum != nullptr) writes_.push_back(write);
    }
    return Status::Ok();
  }

  Status CheckOutput(const View& output) {
    int64_t written = 0;
    for (const Write& write : writes_) {
      if (!Overlap(write.target(), output)) continue;
      written += Elements(write.target());
      TracedOrigin origin{.sum = &write};
      if (write.copy != nullptr) {
        TANDEM_ASSIGN_OR_RETURN(origin, Trace(write.copy->src, write));
      }
      if (origin.sum == nullptr) return verify::Refuse("SUM_ORDER", Who(write) + ": an output without a sum");
      TANDEM_RETURN_IF_ERROR(CheckSum(*origin.sum));
    }
    if (written == Elements(output)) return Status::Ok();
    return verify::Refuse("SUM_ORDER",
                          "rank " + std::to_string(output.ref.rank) + ": " + std::to_string(written) +
                              " elements are written of an output of " + std::to_string(Elements(output)));
  }

  // What `view` holds when `reader` reads it.
  Result<TracedOrigin> Trace(const View& view, const Write& reader) const {
    const bool operand = view.ref.space == Space::kOperand;
    if (operand && view.ref.rank != reader.rank)
      return verify::Refuse("SUM_ORDER", Who(reader) + ": reads a peer's operand");
    const Write* writer = nullptr;
    for (const Write& write : writes_) {
      if (&write == &reader || !Overlap(write.target(), view)) continue;
      // Own operands hold the inputs until this rank writes there. Each part of a workspace has one writer.
      if (operand && (write.rank != reader.rank || write.at > reader.at)) continue;
      if (!operand && writer != nullptr)
        return verify::Refuse("SUM_ORDER", Who(reader) + ": reads what is written twice");
      writer = &write;
    }
    if (writer == nullptr && operand) return TracedOrigin{.input = &view};
    if (writer == nullptr)
      return verify::Refuse("SUM_ORDER", Who(reader) + ": reads what nobody has written");
    if (!AreAlike(writer->target(), view))
      return verify::Refuse("SUM_ORDER", Who(reader) + ": reads a part of what " + Who(*writer) + " wrote");
    if (writer->sum != nullptr) return TracedOrigin{.sum = writer};
    return Trace(writer->copy->src, *writer);
  }

  Status CheckSum(const Write& write) {
    if (!checked_.insert(&write).second) return Status::Ok();
    const ReduceStep& sum = *write.sum;
    const auto refuse = [&write](const std::string& why) {
      return verify::Refuse("SUM_ORDER", Who(write) + ": " + why);
    };
    if (sum.sources.size() != programs_.size())
      return refuse("adds " + std::to_string(sum.sources.size()) + " parts, not one of each rank");
    if (sum.has_bias || sum.has_result_scale || sum.scale != Factor()) return refuse("has another factor");
    const View* first = nullptr;
    for (size_t rank = 0; rank < sum.sources.size(); ++rank) {
      TANDEM_ASSIGN_OR_RETURN(const TracedOrigin origin, Trace(sum.sources[rank], write));
      if (origin.sum != nullptr) return refuse("adds what has been rounded before by " + Who(*origin.sum));
      const View& input = *origin.input;
      if (input.ref.rank != rank || input.ref.slot != order_.inputs[rank].ref.slot)
        return refuse("adds the part of rank " + std::to_string(input.ref.rank) + " in the place of rank " +
                      std::to_string(rank));
      if (first == nullptr) first = &input;
      if (!AreAlike(*first, input)) return refuse("adds other elements of rank " + std::to_string(rank));
    }
    return Status::Ok();
  }

  // The factor of all sums: the first one's.
  float Factor() const {
    for (const Write& write : writes_) {
      if (write.sum != nullptr) return write.sum->scale;
    }
    return 1.0f;
  }

  const std::span<const RankProgram> programs_;
  const SumOrder& order_;
  std::vector<Write> writes_;
  std::set<const Write*> checked_;
};

}  // namespace

Status VerifySumOrder(std::span<const RankProgram> programs, const SumOrder& order) {
  if (order.inputs.size() != programs.size() || order.outputs.size() != programs.size() ||
      order.has_output.size() != programs.size())
    return verify::Refuse("MALFORMED", "inputs and outputs are not of all ranks");
  return Tracer(programs, order).Run();
}

}  // namespace tandem::plan

#include "client/tandemctl/names.h"

#include "common/cli/nearest_name.h"
#include "common/op_tables.h"

namespace tandem::ctl {
namespace {

Status Unknown(const std::string& what, const std::string& name, const std::vector<std::string>& known) {
  std::string near = cli::DidYouMean(name, known);
  return InvalidArgument("unknown " + what + " '" + name + "'" + (near.empty() ? "; the " : near + " The ") +
                         what + "s are " + Listed(known));
}

}  // namespace

std::vector<std::string> OpNames() { return NamesOf<Op>(); }

std::vector<std::string> AlgorithmNames() { return NamesOf<Algorithm>(); }

std::vector<std::string> DTypeNames() {
  std::vector<std::string> names;
  for (const auto& [type, name] : kNamedValues<DType>) {
    if (IsFloating(type)) names.emplace_back(name);
  }
  return names;
}

std::vector<std::string> ScaleNames() { return {"tensor_wise", "row_wise", "block_wise"}; }

std::vector<std::string> PlacementNames() { return NamesOf<PlanPlacement>(); }
std::vector<std::string> DeterminismNames() { return NamesOf<Determinism>(); }
std::vector<std::string> RoundingNames() { return NamesOf<Rounding>(); }

std::vector<std::string> ShellNames() { return {"bash", "zsh", "fish"}; }

std::string Listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

Result<Op> ReadOp(const std::string& name) {
  Result<Op> op = ParseOp(name);
  return op.ok() ? op : Unknown("operation", name, OpNames());
}

Result<Algorithm> ReadAlgorithm(const std::string& name) {
  Result<Algorithm> algorithm = ParseAlgorithm(name);
  return algorithm.ok() ? algorithm : Unknown("algorithm", name, AlgorithmNames());
}

Result<DType> ReadDType(const std::string& name) {
  Result<DType> dtype = ParseDType(name);
  return dtype.ok() ? dtype : Unknown("type", name, DTypeNames());
}

}  // namespace tandem::ctl

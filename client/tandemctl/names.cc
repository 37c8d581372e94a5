#include "client/tandemctl/names.h"

#include "common/cli/nearest_name.h"

namespace tandem::ctl {
namespace {

Status Unknown(const std::string& what, const std::string& name, const std::vector<std::string>& known) {
  std::string near = cli::DidYouMean(name, known);
  return InvalidArgument("unknown " + what + " '" + name + "'" + (near.empty() ? "; the " : near + " The ") +
                         what + "s are " + Listed(known));
}

}  // namespace

std::vector<std::string> OpNames() {
  std::vector<std::string> names;
  for (int op = 1; op <= static_cast<int>(Op::kEmpty); ++op) names.emplace_back(OpName(static_cast<Op>(op)));
  return names;
}

std::vector<std::string> AlgorithmNames() {
  std::vector<std::string> names;
  for (int algorithm = 0; algorithm <= static_cast<int>(Algorithm::kDirect); ++algorithm) {
    names.emplace_back(AlgorithmName(static_cast<Algorithm>(algorithm)));
  }
  return names;
}

std::vector<std::string> DTypeNames() { return {"f32", "f16", "bf16", "f8e4m3", "f8e5m2"}; }

std::vector<std::string> ScaleNames() { return {"tensor_wise", "row_wise", "block_wise"}; }

std::vector<std::string> PlacementNames() { return {"auto", "engine", "client"}; }

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

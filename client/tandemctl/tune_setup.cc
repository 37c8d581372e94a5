#include "client/tandemctl/tune_setup.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

#include "client/tandemctl/names.h"
#include "daemon/planner/cost/measured.h"
#include "daemon/planner/planner.h"

namespace tandem::ctl {
namespace {

// Short: the candidates' turns of a round lie close together, and there are more rounds in the same time.
constexpr double kBatchUs = 6000;
constexpr int kMaxBatch = 200;

std::string Text(int64_t a, int64_t b) { return std::to_string(a) + "x" + std::to_string(b); }

// A number at the front of `text`, which it is taken from; 0 if there is none.
int TakeNumber(std::string_view* text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc()) return 0;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return number;
}

Result<TuneCandidate> ParseCandidate(std::string_view text, Op op) {
  const std::string whole(text);
  const size_t colon = text.find(':');
  TuneCandidate candidate;
  TANDEM_ASSIGN_OR_RETURN(candidate.algorithm, ReadAlgorithm(std::string(text.substr(0, colon))));
  const std::vector<Algorithm> known = plan::AlgorithmsOf(op);
  if (std::find(known.begin(), known.end(), candidate.algorithm) == known.end()) {
    return InvalidArgument(std::string(OpName(op)) + " has no algorithm " +
                           std::string(AlgorithmName(candidate.algorithm)));
  }
  if (colon == std::string_view::npos) return candidate;
  std::string_view rest = text.substr(colon + 1);
  candidate.steps = TakeNumber(&rest);
  if (rest.starts_with('x')) {
    rest.remove_prefix(1);
    candidate.lanes = TakeNumber(&rest);
  }
  if (!rest.empty() || (candidate.steps <= 0 && candidate.lanes <= 0) || candidate.steps < 0 ||
      candidate.lanes < 0) {
    return InvalidArgument("'" + whole + "' is no candidate such as ring:8x2 or pipeline:x3");
  }
  return candidate;
}

}  // namespace

std::string TuneCase::Name() const {
  std::string text = what.op + " " + shape + " " + what.dtype;
  std::replace(text.begin(), text.end(), ',', 'x');
  if (!scales.empty()) text += " " + scales;
  if (what.b_rows) text += " b_rows";
  if (what.symmetric) text += " symmetric";
  if (what.exact) text += " exact";
  if (what.slow_accumulation) text += " slow_accumulation";
  return text;
}

Result<OpRequest> TuneRequest(const TuneCase& one, int world) {
  ExplainOptions what = one.what;
  what.algorithm = "auto";
  what.world = world;
  TANDEM_ASSIGN_OR_RETURN(const Op op, ReadOp(what.op));
  if (!plan::IsTunable(op))
    return InvalidArgument(what.op + " has no choice of algorithms that could be tuned");
  if (what.world < 2) return InvalidArgument("--world must be 2 to 8");
  what.shape = one.shape;
  what.scales = one.scales;
  if (!one.scales.empty() && !plan::IsFusedOp(op)) return InvalidArgument("--scales is for products of fp8");
  std::vector<int64_t> product;
  if (plan::IsFusedOp(op)) {
    TANDEM_ASSIGN_OR_RETURN(product, ParseShape(one.shape));
    if (product.size() != 3)
      return InvalidArgument("--shape must be MxNxK of the whole product, as in 8192x3584x8192");
    const int64_t rows = product[0], n = product[1], k = product[2];
    const bool gather = op == Op::kAllGatherMatmul;
    if (gather && rows % what.world != 0) return InvalidArgument("M must be divisible by the world size");
    what.shape = Text(gather ? rows / what.world : rows, k);
    what.b_shape = Text(k, n);
  }
  TANDEM_ASSIGN_OR_RETURN(std::vector<OpRequest> requests, MakeRequests(what));
  return std::move(requests[0]);
}

std::string TuneCandidate::Name() const {
  std::string name(AlgorithmName(algorithm));
  if (steps != 0 || lanes != 0) name += " " + (steps != 0 ? std::to_string(steps) : std::string());
  if (lanes != 0) name += "x" + std::to_string(lanes);
  return name;
}

std::vector<TuneCandidate> DefaultCandidates(Op op) {
  std::vector<TuneCandidate> candidates;
  for (Algorithm algorithm : plan::AlgorithmsOf(op)) {
    if (plan::MeasuredOnRequestOnly(algorithm)) continue;
    candidates.push_back({algorithm, 0, 0});
    if (algorithm != Algorithm::kPipeline) continue;
    for (int lanes : {3, 4}) candidates.push_back({algorithm, 0, lanes});  // two by default
  }
  return candidates;
}

Result<std::vector<TuneCandidate>> ParseCandidates(const std::string& text, Op op) {
  std::vector<TuneCandidate> candidates;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    TANDEM_ASSIGN_OR_RETURN(TuneCandidate candidate,
                            ParseCandidate(std::string_view(text).substr(at, end - at), op));
    const bool twice = std::any_of(candidates.begin(), candidates.end(), [&](const TuneCandidate& other) {
      return other.Name() == candidate.Name();
    });
    if (!twice) candidates.push_back(candidate);
    at = end + 1;
  }
  return candidates;
}

void Summarise(std::vector<double> rounds, admin::v1::TuningCandidate* to) {
  std::sort(rounds.begin(), rounds.end());
  const size_t count = rounds.size();
  const auto percentile = [&](double share) {
    const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(count)));
    return rounds[std::clamp<size_t>(rank, 1, count) - 1];
  };
  // Whole nanoseconds, as the table's file has them: what is read back is what was shown.
  const auto whole = [](double us) { return std::round(us * 1e3) / 1e3; };
  to->set_samples(static_cast<int>(count));
  to->set_median_us(
      whole(count % 2 == 1 ? rounds[count / 2] : (rounds[count / 2 - 1] + rounds[count / 2]) / 2));
  to->set_p10_us(whole(percentile(0.1)));
  to->set_p90_us(whole(percentile(0.9)));
}

std::string ShortRefusal(const std::string& message, Op op) {
  std::string text = message;
  const std::string_view cannot = "cannot run by ";
  if (const size_t at = text.find(cannot); at != std::string::npos) {
    if (const size_t colon = text.find(": ", at); colon != std::string::npos) text.erase(0, colon + 2);
  }
  const std::string others = " (" + std::string(AlgorithmName(plan::AlgorithmsOf(op)[0])) + ": ";
  if (const size_t at = text.find(others); at != std::string::npos) text.erase(at);
  for (char& c : text) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  if (text.size() > plan::kMaxTuningText) text.resize(plan::kMaxTuningText);
  return text.empty() ? "refused without a reason" : text;
}

int BatchOf(double us) {
  return us <= 0 ? kMaxBatch : std::clamp(static_cast<int>(kBatchUs / us), 1, kMaxBatch);
}

}  // namespace tandem::ctl

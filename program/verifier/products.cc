// The order of sums in products. Each element of an output is traced back to the sum over ranks that made it.
// Each source of that sum is traced back to products of one rank, which are to add over all of K.
#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "program/verifier/graph.h"
#include "program/verifier/regions.h"

namespace tandem::plan {
namespace {

using verify::AreAlike;
using verify::Overlap;

// A step that writes; `at` counts the steps of a rank's program.
struct TracedWrite {
  const View* target = nullptr;
  const View* copied = nullptr;  // of a copy: its source
  const MatmulStep* product = nullptr;
  const ReduceStep* sum = nullptr;
  int rank = 0, lane = 0;
  size_t at = 0;
};

// A signal to `peer`, or the wait for a signal from `peer`.
struct SignalledWord {
  bool wait = false;
  int rank = 0, peer = 0, index = 0, lane = 0;
  size_t at = 0;
};

// The contents of a view: all or a part of what products of one rank wrote.
struct TracedProducts {
  int rank = 0;
  View view;  // where the rank wrote it
  std::vector<const MatmulStep*> steps;
};

std::string Who(const TracedWrite& write) {
  return "rank " + std::to_string(write.rank) + ", step " + std::to_string(write.at);
}

Status Found(const TracedWrite& write, const std::string& what) {
  return verify::Refuse("SUM_ORDER", Who(write) + ": " + what);
}

class ProductTracer {
 public:
  ProductTracer(std::span<const RankProgram> programs, const SumOrder& order)
      : programs_(programs), order_(order) {}

  Status Run() {
    for (const RankProgram& program : programs_) {
      size_t at = 0;
      TANDEM_RETURN_IF_ERROR(Collect(program.rank, -1, program.steps, &at));
    }
    for (size_t rank = 0; rank < programs_.size(); ++rank) {
      if (order_.has_output[rank]) TANDEM_RETURN_IF_ERROR(CheckOutput(order_.outputs[rank]));
    }
    return Status::Ok();
  }

 private:
  // `outer`: the lane of the collective whose expansion these are; -1: none.
  Status Collect(int rank, int outer, std::span<const Step> steps, size_t* at) {
    for (const Step& step : steps) {
      const int lane = outer < 0 ? step.lane : outer;
      if (const auto* collective = std::get_if<CollectiveStep>(&step.work)) {
        TANDEM_RETURN_IF_ERROR(Collect(rank, lane, collective->expansion, at));
        continue;
      }
      TracedWrite write{.rank = rank, .lane = lane, .at = (*at)++};
      if (const auto* nccl = std::get_if<NcclStep>(&step.work)) {
        if (order_.sums) return Found(write, "a step whose order of sums nobody knows");
        write.target = &nccl->out;  // what it gathers is no product
      } else if (const auto* copy = std::get_if<CopyStep>(&step.work)) {
        write.target = &copy->dst;
        write.copied = &copy->src;
      } else if (const auto* product = std::get_if<MatmulStep>(&step.work)) {
        write.target = &product->c;
        write.product = product;
      } else if (const auto* sum = std::get_if<ReduceStep>(&step.work)) {
        write.target = &sum->dst;
        write.sum = sum;
      } else if (const auto* group = std::get_if<TransferGroupStep>(&step.work)) {
        for (const TransferPart& part : group->parts) {
          if (!part.send) continue;
          write.target = &part.dst;
          write.copied = &part.src;
          writes_.push_back(write);
        }
        continue;
      } else if (const auto* signal = std::get_if<SignalStep>(&step.work)) {
        words_.push_back({false, rank, signal->to_rank, signal->index, lane, write.at});
      } else if (const auto* wait = std::get_if<WaitStep>(&step.work)) {
        words_.push_back({true, rank, wait->from_rank, wait->index, lane, write.at});
      }
      if (write.target != nullptr && Elements(*write.target) > 0) writes_.push_back(write);
    }
    return Status::Ok();
  }

  Status CheckOutput(const View& output) {
    int64_t written = 0;
    const bool ends = std::any_of(writes_.begin(), writes_.end(), [&](const TracedWrite& write) {
      return write.sum != nullptr && Overlap(*write.target, output);
    });
    for (const TracedWrite& write : writes_) {
      if (!Overlap(*write.target, output)) continue;
      if (!order_.sums && ends) {  // one rank's bias, scale or type behind the product
        if (write.product != nullptr) continue;
        written += Elements(*write.target);
        if (write.sum == nullptr || write.sum->sources.size() != 1)
          return Found(write, "an output that is no product");
        TANDEM_RETURN_IF_ERROR(Trace(write.sum->sources[0], write).status());
        continue;
      }
      if (order_.sums && write.product != nullptr) continue;  // on its way to the sum, or nobody adds it
      if (order_.sums && IsReadByEndInPlace(write, output.ref.rank))
        continue;  // the check of the end sees it
      written += Elements(*write.target);
      if (!order_.sums) {
        if (write.product == nullptr) return Found(write, "an output that is no product");
        TANDEM_RETURN_IF_ERROR(CheckWhole(write));
        continue;
      }
      const TracedWrite* sum = &write;
      while (sum->copied != nullptr) {
        TANDEM_ASSIGN_OR_RETURN(const std::vector<const TracedWrite*> from, Seen(*sum->copied, *sum));
        if (from.size() != 1 || !AreAlike(*from[0]->target, *sum->copied))
          return Found(*sum, "an output that is a part of a sum, or of several");
        sum = from[0];
      }
      if (sum->sum == nullptr) return Found(*sum, "an output without a sum");
      TANDEM_RETURN_IF_ERROR(CheckSum(*sum));
    }
    if (written == Elements(output)) return Status::Ok();
    return verify::Refuse("SUM_ORDER",
                          "rank " + std::to_string(output.ref.rank) + ": " + std::to_string(written) +
                              " elements are written of an output of " + std::to_string(Elements(output)));
  }

  // Whether a later step of `rank` adds what follows the sum to all that `write` wrote, in place.
  bool IsReadByEndInPlace(const TracedWrite& write, int rank) const {
    return std::any_of(writes_.begin(), writes_.end(), [&](const TracedWrite& end) {
      if (end.rank != rank || end.sum == nullptr || end.sum->sources.size() != 1 ||
          !AreAlike(end.sum->sources[0], *end.target) || !verify::LiesWithin(*write.target, *end.target))
        return false;
      return write.rank == rank ? write.at < end.at : IsTold(write, end);
    });
  }

  Status CheckWhole(const TracedWrite& write) const {
    const MatmulStep& product = *write.product;
    if (product.accumulate || product.a.extent.back() != order_.k || product.b.extent[0] != order_.k)
      return Found(write, "a product of a part of K");
    return product.fixed_order ? Status::Ok() : Found(write, "a product whose kernel may cut K");
  }

  // Whether a signal from the rank of `first` to the rank of `second` orders the two.
  bool IsTold(const TracedWrite& first, const TracedWrite& second) const {
    return std::any_of(words_.begin(), words_.end(), [&](const SignalledWord& reported) {
      if (reported.wait || reported.rank != first.rank || reported.peer != second.rank ||
          reported.lane != first.lane || reported.at < first.at)
        return false;
      return std::any_of(words_.begin(), words_.end(), [&](const SignalledWord& heard) {
        return heard.wait && heard.rank == second.rank && heard.peer == first.rank &&
               heard.index == reported.index && heard.lane == second.lane && heard.at < second.at;
      });
    });
  }

  // The writes that `reader` may find in `view`, last ones first: earlier ones of the reader's rank, or
  // peers'. Programs without races order a rank's writes before later steps of that rank.
  Result<std::vector<const TracedWrite*>> Before(const View& view, const TracedWrite& reader) const {
    std::vector<const TracedWrite*> own, remote;
    for (const TracedWrite& write : writes_) {
      if (&write == &reader || !Overlap(*write.target, view)) continue;
      if (write.rank == reader.rank) {
        if (write.at < reader.at) own.push_back(&write);
      } else if (!IsTold(reader, write)) {
        remote.push_back(&write);
      }
    }
    std::reverse(own.begin(), own.end());
    if (own.empty()) return remote;
    for (const TracedWrite* write : remote) {
      const bool is_last = IsTold(*write, reader) &&
                           std::all_of(own.begin(), own.end(),
                                       [&](const TracedWrite* before) { return IsTold(*before, *write); });
      if (!is_last) return Found(reader, "reads what is written twice");
    }
    return remote.empty() ? own : remote;
  }

  // The writes that make up what `reader` reads in `view`: one that has all of it, or several side by side.
  Result<std::vector<const TracedWrite*>> Seen(const View& view, const TracedWrite& reader) const {
    if (view.ref.space == Space::kOperand && view.ref.rank != reader.rank)
      return Found(reader, "reads a peer's operand");
    TANDEM_ASSIGN_OR_RETURN(const std::vector<const TracedWrite*> before, Before(view, reader));
    const bool own = !before.empty() && before[0]->rank == reader.rank;
    std::vector<const TracedWrite*> seen;
    int64_t covered = 0;
    for (const TracedWrite* write : before) {
      if (covered >= Elements(view) && own) break;
      if (covered >= Elements(view) || std::any_of(seen.begin(), seen.end(), [&](const TracedWrite* later) {
            return Overlap(*later->target, *write->target);
          }))
        return Found(reader, "reads what is written twice");
      const bool has_all = verify::LiesWithin(view, *write->target) && seen.empty();
      if (!has_all && !verify::LiesWithin(*write->target, view))
        return Found(reader, "reads a part of what " + Who(*write) + " wrote");
      seen.push_back(write);
      covered += has_all ? Elements(view) : Elements(*write->target);
    }
    if (covered != Elements(view)) return Found(reader, "reads what nobody has written");
    std::sort(seen.begin(), seen.end(), [](const TracedWrite* a, const TracedWrite* b) {
      return a->target->ref.offset < b->target->ref.offset;
    });
    return seen;
  }

  // The products that `view` holds when `reader` reads it.
  Result<TracedProducts> Trace(const View& view, const TracedWrite& reader) const {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<const TracedWrite*> seen, Seen(view, reader));
    TracedProducts products;
    products.rank = seen[0]->rank;
    products.view = view;
    for (const TracedWrite* write : seen) {
      if (write->rank != products.rank) return Found(reader, "reads what several ranks wrote");
      if (write->sum != nullptr) return Found(reader, "adds what has been rounded before by " + Who(*write));
      if (write->product != nullptr) {
        TANDEM_RETURN_IF_ERROR(CheckWhole(*write));
        products.steps.push_back(write->product);
        continue;
      }
      if (write->copied == nullptr) return Found(reader, "adds what is no product");
      const bool alike = AreAlike(*write->target, view);
      if (seen.size() == 1 && !alike) return Found(reader, "reads a part of what " + Who(*write) + " wrote");
      TANDEM_ASSIGN_OR_RETURN(const TracedProducts from, Trace(*write->copied, *write));
      if (from.rank != products.rank) return Found(reader, "reads what several ranks wrote");
      if (seen.size() == 1) return from;
      products.steps.insert(products.steps.end(), from.steps.begin(), from.steps.end());
    }
    return products;
  }

  // All of the products, not a part of one.
  static bool IsWhole(const TracedProducts& products) {
    int64_t elements = 0;
    for (const MatmulStep* step : products.steps) elements += Elements(step->c);
    return elements == Elements(products.view);
  }

  // Whether both hold the same rows and columns of their ranks' products.
  static bool HoldAlike(const TracedProducts& one, const TracedProducts& other) {
    if (one.steps.size() != other.steps.size() || IsWhole(one) != IsWhole(other)) return false;
    for (size_t i = 0; i < one.steps.size(); ++i) {
      const MatmulStep &a = *one.steps[i], &b = *other.steps[i];
      if (!AreAlike(a.a, b.a) || !AreAlike(a.b, b.b) || a.c.extent != b.c.extent || a.c.dtype != b.c.dtype)
        return false;
    }
    if (IsWhole(one)) return true;
    const View &a = one.steps[0]->c, &b = other.steps[0]->c;
    return one.steps.size() == 1 && a.stride == b.stride &&
           one.view.ref.offset - a.ref.offset == other.view.ref.offset - b.ref.offset &&
           Elements(one.view) == Elements(other.view) &&
           ((IsContiguous(one.view) && IsContiguous(other.view)) ||
            (one.view.extent == other.view.extent && one.view.stride == other.view.stride));
  }

  Status CheckSum(const TracedWrite& write) {
    if (!checked_.insert(&write).second) return Status::Ok();
    const ReduceStep& sum = *write.sum;
    if (sum.sources.size() == 1 && programs_.size() > 1) return CheckEnd(write);
    if (sum.sources.size() != programs_.size())
      return Found(write, "adds " + std::to_string(sum.sources.size()) + " parts, not one of each rank");
    if (first_ == nullptr) first_ = &sum;
    if (sum.scale != first_->scale || sum.has_bias != first_->has_bias ||
        sum.has_result_scale != first_->has_result_scale)
      return Found(write, "has another factor");
    std::optional<TracedProducts> before;
    for (size_t rank = 0; rank < sum.sources.size(); ++rank) {
      TANDEM_ASSIGN_OR_RETURN(const TracedProducts products, Trace(sum.sources[rank], write));
      if (products.rank != static_cast<int>(rank)) {
        return Found(write, "adds the part of rank " + std::to_string(products.rank) +
                                " in the place of rank " + std::to_string(rank));
      }
      if (before && !HoldAlike(*before, products))
        return Found(write, "adds other elements of rank " + std::to_string(rank));
      before = products;
    }
    return Status::Ok();
  }

  // Checks a step of one source: it adds bias, scale or the output's type to a sum. The sum has not been
  // rounded, or nothing follows.
  Status CheckEnd(const TracedWrite& write) {
    const ReduceStep& end = *write.sum;
    TANDEM_ASSIGN_OR_RETURN(const std::vector<const TracedWrite*> from, Seen(end.sources[0], write));
    for (const TracedWrite* sum : from) {
      const TracedWrite* made = sum;
      while (made->copied != nullptr) {
        TANDEM_ASSIGN_OR_RETURN(const std::vector<const TracedWrite*> behind, Seen(*made->copied, *made));
        if (behind.size() != 1) return Found(*made, "an output that is a part of a sum, or of several");
        made = behind[0];
      }
      if (made->sum == nullptr || made->sum->sources.size() == 1)
        return Found(write, "an output without a sum");
      const bool rounded = made->sum->dst.dtype != DType::kF32;
      const bool same = !end.has_bias && !end.has_result_scale && end.scale == 1.0f &&
                        end.dst.dtype == made->sum->dst.dtype;
      if (rounded && !same) return Found(write, "rounds what has been rounded before by " + Who(*made));
      TANDEM_RETURN_IF_ERROR(CheckSum(*made));
    }
    return Status::Ok();
  }

  const std::span<const RankProgram> programs_;
  const SumOrder& order_;
  std::vector<TracedWrite> writes_;
  std::vector<SignalledWord> words_;
  std::set<const TracedWrite*> checked_;
  const ReduceStep* first_ = nullptr;  // whose factors all sums have
};

}  // namespace

Status VerifyProductOrder(std::span<const RankProgram> programs, const SumOrder& order) {
  if (order.outputs.size() != programs.size() || order.has_output.size() != programs.size())
    return verify::Refuse("MALFORMED", "outputs are not of all ranks");
  return ProductTracer(programs, order).Run();
}

}  // namespace tandem::plan

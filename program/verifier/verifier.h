// File: verifier.h
//
// The verifier. By vector clocks over the steps of all ranks' programs it proves four things: no deadlock; no
// two unordered steps touch the same bytes while one writes; every access lies within its buffer; and every
// program closes: each rank's done follows every rank's first step.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "program/program.h"
#include "tandem/op_request.h"
#include "tandem/status.h"

namespace tandem::plan {

// The sizes that accesses are checked against. operand_bytes[rank][slot]; symmetric[slot]: peers may touch
// it.
struct VerifyContext {
  std::vector<std::vector<uint64_t>> operand_bytes;
  std::vector<bool> symmetric;
  // Slots that are the same memory: alias[slot] is the slot it lies on, or -1.
  std::vector<int> alias;
  // Slots that no step may write; empty: no such slots.
  std::vector<bool> read_only = {};
};

// The context of a request: sizes from its specs.
Result<VerifyContext> ContextOf(std::span<const OpRequest> requests);

struct VerifyOptions {
  int launches = 3;         // back to back, parity alternating: rank starts n + 1 after all its lanes ended n
  int hardware_queues = 0;  // over 0: lanes alias onto this many in-order queues, as on a GPU
  bool alternate_parity = true;  // false: every launch uses workspace half 0, to show what the halves are for
  // The ranks' own streams run the launches, and no engine starts them (docs/client-placement-safety.md).
  // Bulk programs then have no turn. A program must let a peer's launch begin by a word before it touches
  // that peer's bulk area or symmetric operands: else "NO_ENTRY". A word that a fused kernel writes at a peer
  // must be awaited there in the same launch: else "UNAWAITED". Programs that meet no peer do not close.
  bool in_client = false;
};

// OK, or INTERNAL. The message names the two steps (rank, launch, step index, label) and the fault.
// detail.reason is "DEADLOCK", "RACE", "BOUNDS", "NOT_CLOSED", "NO_ENTRY", "UNAWAITED", "SIGNAL",
// "UNCOALESCED", "INPUT_WRITTEN" or "MALFORMED".
Status VerifyPrograms(std::span<const RankProgram> programs, const VerifyContext& context,
                      const VerifyOptions& options = {});

// The same for launches of P and Q that alternate in one group (P Q P Q), sharing workspace and signals.
Status VerifyPair(std::span<const RankProgram> p, const VerifyContext& p_context,
                  std::span<const RankProgram> q, const VerifyContext& q_context,
                  const VerifyOptions& options = {});

// Where the sums of a reduction over ranks begin and end, by rank.
struct SumOrder {
  std::vector<View> inputs, outputs;  // of a product: A, and C
  std::vector<bool> has_output;       // false: the rank gets no result
  int64_t k = 0;                      // of a product: all of K
  bool sums = true;                   // of a product: C is the sum of all ranks' products, else one product
};

// Proves the order of sums over ranks: each element of each output is x0 + x1 + …, the same element of each
// rank's input in the order of ranks, rounded once, and times one factor. So its bits depend on these elements
// alone. INTERNAL with detail.reason "SUM_ORDER" names the step. Expects programs that have no race.
Status VerifySumOrder(std::span<const RankProgram> programs, const SumOrder& order);

// The same for products. Each element of each output is one product, or a sum of all ranks' products in the order
// of ranks. These products are of the same row of A and the same columns of B. They are rounded to one type before
// the sum, and all sums have the same factors. Each product adds over all of K and has MatmulStep::fixed_order.
Status VerifyProductOrder(std::span<const RankProgram> programs, const SumOrder& order);

// Checks the form that client placement needs: every rank's program is one kernel that meets the peers, and
// beside it steps on the rank's own operands and bulk area. FAILED_PRECONDITION with detail.reason
// "NOT_ONE_KERNEL" and a message that names the step. Expects programs that have been verified. Says nothing
// about the order of launches: for that verify with `in_client`.
Status CheckOneKernel(std::span<const RankProgram> programs);

}  // namespace tandem::plan

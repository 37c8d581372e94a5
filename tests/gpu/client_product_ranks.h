// File: client_product_ranks.h
//
// The ranks of one operation with a product, placed in the client, in one process. Each has a program,
// memory, counters and a stream, as in the client library. Results are compared with a plain reference.
// Values are small integers, so that results are exact in any order of summation.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/lib/client_launch/cuda/client_products.h"
#include "client/lib/client_launch/cuda/cuda_client_work.h"
#include "daemon/planner/planner.h"
#include "kernels/cuda/device/cuda_device.h"
#include "runtime/executor/tests/test_machine.h"

namespace tandem::runtime {

struct ProductCase {
  Op op = Op::kMatmulReduceScatter;
  Algorithm algorithm = Algorithm::kUnfused;
  int world = 2;
  int64_t m = 0, n = 0, k = 0;  // of the whole product
  int dim = 0;                  // gathered or scattered
  DType type = DType::kBf16;    // of A and B
  DType c_type = DType::kBf16;
  bool bias = false;
  bool gathered_a = false;  // is wanted back
  bool b_columns = true;    // B lies column by column, as a layer's weight does
  bool norm = false;        // of a matmul_all_reduce: C is normed, and not compared

  std::string name() const;
};

// Made on a machine whose ranks may share GPUs; takes its memory anew.
class ClientProductRanks {
 public:
  static constexpr int kSets = 3;  // of operands, each with separate data

  ClientProductRanks(TestMachine* machine, const ProductCase& test);
  ~ClientProductRanks();

  // OK, or why there is nothing to launch.
  const Status& status() const { return status_; }
  const plan::OperationPlan& plan() const { return plan_; }
  void SetLimit(uint64_t ns) { limit_ns_ = ns; }

  enum class Part : uint8_t {
    kAll,
    kMeeting,  // of a fused matmul: without its products
  };
  // One launch with the operands of `set`, eager or into the capture of the rank's stream.
  Status Launch(int rank, int set, Part part = Part::kAll);
  // The value that `writer` has last written to `rank` in a word of fused matmuls.
  uint64_t FusedWord(int rank, int writer, int index);
  cudaStream_t stream(int rank) const { return ranks_[static_cast<size_t>(rank)].stream; }
  // Makes the rank's context current.
  void Enter(int rank);
  // Waits for all streams; false after `seconds`.
  bool Finish(double seconds = 20);

  // Fills all outputs with bytes that no result has.
  void SpoilOutputs();
  // The outputs that differ from the reference: a text about the first; empty if none does.
  std::string Compare();

  // The count that all counters of a rank have; -1 if they differ.
  int64_t Count(int rank);
  cuda::LaunchReport Report(int rank);

 private:
  struct Private {
    uint64_t counters[cuda::kLaunchCounters];
    uint64_t failed, looked;
    uint64_t pushed[cuda::kPushedUnits];
    cuda::LaunchReport report;
  };
  struct Rank {
    std::shared_ptr<client::CudaClientWork> work;
    std::shared_ptr<cuda::CudaDevice> device;
    SharedMemory state;
    cudaStream_t stream = nullptr;
    std::vector<std::vector<SharedMemory>> operands;             // by set and slot
    std::vector<std::vector<std::vector<float>>> inputs, right;  // by set and slot; `right` of outputs
  };

  OpRequest RequestOf() const;
  Status MakeRank(int rank);
  void FillInputs(int rank);
  // Fills `right` from all ranks' inputs.
  void Compute();
  // The element of a slot's [rows, columns] matrix that lies at `row`, `column`.
  size_t IndexOf(size_t slot, int64_t row, int64_t column) const;
  Private Read(int rank);

  TestMachine* machine_;
  const ProductCase test_;
  OpRequest request_;
  plan::OperationPlan plan_;
  Status status_;
  uint64_t half_bytes_ = 0, limit_ns_ = 20'000'000'000;
  Word* first_aborted_launch_ = nullptr;
  std::vector<SharedMemory> workspace_, bulk_, signals_;
  std::vector<Rank> ranks_;
};

}  // namespace tandem::runtime

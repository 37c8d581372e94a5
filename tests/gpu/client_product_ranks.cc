#include "tests/gpu/client_product_ranks.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <random>
#include <thread>
#include <utility>

#include "drivers/cuda/cuda_driver.h"
#include "kernels/cuda/cuda_backend.h"

namespace tandem::runtime {
namespace {

constexpr int kSmsOfAllRanks = 96;  // the rest is left to products while kernels wait for peers
constexpr uint64_t kTag = 5;

Operand Matrix(Role role, DType type, int64_t rows, int64_t columns, bool by_columns = false) {
  Operand operand;
  operand.role = role;
  operand.spec.dtype = type;
  operand.spec.shape = {rows, columns};
  if (by_columns) operand.spec.strides = {1, rows};
  return operand;
}

// Shared by the products of one GPU: once in this process, as in a client.
struct Gpu {
  std::shared_ptr<cuda::CudaDevice> device;
  std::shared_ptr<client::ClientProducts> products;
};
Result<Gpu> GpuOf(int ordinal) {
  static std::map<int, Gpu> gpus;
  Gpu& gpu = gpus[ordinal];
  if (gpu.products == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(cuda::CudaDriver * driver, cuda::LoadCudaDriver());
    TANDEM_ASSIGN_OR_RETURN(gpu.device, cuda::CudaDevice::Create(driver, ordinal));
    gpu.products = std::make_shared<client::ClientProducts>(gpu.device);
  }
  return gpu;
}

}  // namespace

std::string ProductCase::name() const {
  return std::string(OpName(op)) + " " + std::string(AlgorithmName(algorithm)) +
         " W=" + std::to_string(world) + " " + std::to_string(m) + "x" + std::to_string(n) + "x" +
         std::to_string(k) + " dim " + std::to_string(dim) + " " + std::string(DTypeName(type)) + " -> " +
         std::string(DTypeName(c_type)) + (bias ? " bias" : "") + (gathered_a ? " gathered A" : "") +
         (b_columns ? "" : " B by rows") + (norm ? " normed" : "");
}

ClientProductRanks::ClientProductRanks(TestMachine* machine, const ProductCase& test)
    : machine_(machine), test_(test), request_(RequestOf()) {
  plan::GroupContext context;
  context.topology = EmulatedTopology(test.world);
  context.packet_kernels = true;
  context.fused_kernels = true;
  context.kernel_sms = kSmsOfAllRanks / test.world;
  context.placement = plan::PlanPlacement::kClient;
  context.client_kernels = plan::ClientKernels::kFused;
  const std::vector<OpRequest> requests(static_cast<size_t>(test.world), request_);
  Result<plan::OperationPlan> plan = plan::MakePlan(requests, context);
  status_ = plan.status();
  if (!status_.ok()) return;
  plan_ = *std::move(plan);
  machine_->Reset();
  half_bytes_ = (plan_.workspace_bytes + 255) / 256 * 256;
  first_aborted_launch_ = machine_->AllocateWord();
  for (int rank = 0; rank < test.world; ++rank) {
    workspace_.push_back(machine_->Allocate(rank, 2 * half_bytes_));
    bulk_.push_back(machine_->Allocate(rank, plan_.bulk_bytes));
    signals_.push_back(machine_->Allocate(rank, plan::kClientSignalAreaBytes));
  }
  ranks_.resize(static_cast<size_t>(test.world));
  for (int rank = 0; rank < test.world && status_.ok(); ++rank) status_ = MakeRank(rank);
  if (!status_.ok()) return;
  Compute();
}

ClientProductRanks::~ClientProductRanks() {
  for (Rank& rank : ranks_) {
    if (rank.stream != nullptr) (void)cudaStreamDestroy(rank.stream);
  }
}

OpRequest ClientProductRanks::RequestOf() const {
  const ProductCase& t = test_;
  const bool gathers = t.op == Op::kAllGatherMatmul, scatters = t.op == Op::kMatmulReduceScatter;
  const int64_t a_rows = gathers && t.dim == 0 ? t.m / t.world : t.m;
  const int64_t a_columns = gathers && t.dim == 1 ? t.k / t.world : t.k;
  const int64_t c_rows = scatters && t.dim == 0 ? t.m / t.world : t.m;
  const int64_t c_columns = scatters && t.dim == 1 ? t.n / t.world : t.n;
  OpRequest request;
  request.op = t.op;
  request.algorithm = t.algorithm;
  request.dim = t.dim;
  request.operands = {Matrix(Role::kA, t.type, a_rows, a_columns),
                      Matrix(Role::kB, t.type, t.k, t.n, t.b_columns),
                      Matrix(Role::kC, t.c_type, c_rows, c_columns)};
  if (t.bias) {
    Operand bias = Matrix(Role::kBias, t.c_type, 1, t.n);
    bias.spec.shape = {t.n};
    request.operands.push_back(std::move(bias));
  }
  if (t.gathered_a) request.operands.push_back(Matrix(Role::kGatheredA, t.type, t.m, t.k));
  if (t.norm) {
    request.norm_epsilon = 1;
    Operand weight = Matrix(Role::kNormWeight, t.c_type, 1, t.n);
    weight.spec.shape = {t.n};
    request.operands.push_back(std::move(weight));
  }
  return request;
}

void ClientProductRanks::Enter(int rank) {
  ASSERT_TRUE(ranks_[static_cast<size_t>(rank)].device->Enter().ok());
}

Status ClientProductRanks::MakeRank(int rank) {
  Rank& own = ranks_[static_cast<size_t>(rank)];
  const auto viewer = static_cast<size_t>(rank);
  TANDEM_ASSIGN_OR_RETURN(const Gpu gpu, GpuOf(rank % CudaDeviceCount()));
  own.device = gpu.device;
  TANDEM_RETURN_IF_ERROR(own.device->Enter());
  own.state = machine_->Allocate(rank, sizeof(Private));
  if (cudaStreamCreateWithFlags(&own.stream, cudaStreamNonBlocking) != cudaSuccess)
    return Internal("no stream");
  client::ClientLaunchMemory memory;
  memory.half_bytes = half_bytes_;
  memory.bulk_bytes = plan_.bulk_bytes;
  for (size_t peer = 0; peer < signals_.size(); ++peer) {
    memory.signals[peer] = reinterpret_cast<Word*>(signals_[peer].at[viewer]);
    memory.workspace[peer] = workspace_[peer].at[viewer];
    memory.bulk[peer] = bulk_[peer].at[viewer];
  }
  std::vector<SlotLimit> slots;
  for (size_t slot = 0; slot < request_.operands.size(); ++slot)
    slots.push_back({static_cast<uint64_t>(*BoundBytes(request_, static_cast<int>(slot))), false});
  TANDEM_ASSIGN_OR_RETURN(own.work, client::CudaClientWork::Make(plan_.programs[viewer], slots, memory));
  TANDEM_RETURN_IF_ERROR(
      own.work->Load([&]() -> Result<std::shared_ptr<cuda::LocalWork>> { return gpu.products->MakeWork(); },
                     [&] { return client::ClientFusedState::Make(gpu.device); }, client::Trials::kWhole));
  for (int set = 0; set < kSets; ++set) {
    own.operands.emplace_back();
    for (const SlotLimit& slot : slots) own.operands.back().push_back(machine_->Allocate(rank, slot.bytes));
  }
  FillInputs(rank);
  return Status::Ok();
}

size_t ClientProductRanks::IndexOf(size_t slot, int64_t row, int64_t column) const {
  const TensorSpec& spec = request_.operands[slot].spec;
  if (spec.shape.size() == 1) return static_cast<size_t>(column);
  if (!spec.strides.empty()) return static_cast<size_t>(row * spec.strides[0] + column * spec.strides[1]);
  return static_cast<size_t>(row * spec.shape[1] + column);
}

void ClientProductRanks::FillInputs(int rank) {
  Rank& own = ranks_[static_cast<size_t>(rank)];
  own.inputs.resize(kSets);
  own.right.resize(kSets);
  for (int set = 0; set < kSets; ++set) {
    std::mt19937 random(static_cast<uint32_t>(100 * rank + set + 1));
    for (size_t slot = 0; slot < request_.operands.size(); ++slot) {
      const TensorSpec& spec = request_.operands[slot].spec;
      std::vector<float>& values = own.inputs[static_cast<size_t>(set)].emplace_back();
      own.right[static_cast<size_t>(set)].emplace_back();
      const Role role = request_.operands[slot].role;
      if (IsOutput(role)) continue;
      if (role == Role::kBias) random.seed(static_cast<uint32_t>(set + 1));  // alike on all ranks
      const auto count = static_cast<size_t>(*ElementCount(spec.shape));
      std::vector<std::byte> bytes(count * DTypeBytes(spec.dtype));
      for (size_t i = 0; i < count; ++i) {
        values.push_back(static_cast<float>(random() % 3) - 1);
        StoreFromFloat(bytes.data(), spec.dtype, i, values.back());
      }
      machine_->Upload(own.operands[static_cast<size_t>(set)][slot], rank, bytes.data(), bytes.size());
    }
  }
}

void ClientProductRanks::Compute() {
  const ProductCase& t = test_;
  const bool gathers = t.op == Op::kAllGatherMatmul, scatters = t.op == Op::kMatmulReduceScatter;
  const int64_t world = t.world;
  for (size_t set = 0; set < kSets; ++set) {
    // The whole product that each rank has, or adds to the sum.
    std::vector<std::vector<float>> products;
    std::vector<float> gathered(static_cast<size_t>(t.m * t.k));
    for (int64_t i = 0; gathers && i < t.m; ++i) {
      for (int64_t l = 0; l < t.k; ++l) {
        const int64_t owner = t.dim == 0 ? i / (t.m / world) : l / (t.k / world);
        const int64_t row = t.dim == 0 ? i % (t.m / world) : i, column = t.dim == 0 ? l : l % (t.k / world);
        gathered[static_cast<size_t>(i * t.k + l)] =
            ranks_[static_cast<size_t>(owner)].inputs[set][0][IndexOf(0, row, column)];
      }
    }
    for (const Rank& rank : ranks_) {
      const auto n = static_cast<size_t>(t.n), k = static_cast<size_t>(t.k);
      std::vector<float>& product = products.emplace_back(static_cast<size_t>(t.m) * n);
      const std::vector<float>& a = gathers ? gathered : rank.inputs[set][0];
      std::vector<float> b;
      for (int64_t l = 0; l < t.k; ++l) {
        for (int64_t j = 0; j < t.n; ++j) b.push_back(rank.inputs[set][1][IndexOf(1, l, j)]);
      }
      for (size_t i = 0; i < static_cast<size_t>(t.m); ++i) {
        for (size_t l = 0; l < k; ++l) {
          const float value = a[i * k + l];
          if (value == 0) continue;
          for (size_t j = 0; j < n; ++j) product[i * n + j] += value * b[l * n + j];
        }
      }
    }
    for (size_t r = 0; r < ranks_.size(); ++r) {
      std::vector<std::vector<float>>& right = ranks_[r].right[set];
      const auto& shape = request_.operands[2].spec.shape;
      const int64_t first_row = scatters && t.dim == 0 ? static_cast<int64_t>(r) * shape[0] : 0;
      const int64_t first_column = scatters && t.dim == 1 ? static_cast<int64_t>(r) * shape[1] : 0;
      right[2].resize(static_cast<size_t>(shape[0] * shape[1]));
      for (int64_t i = 0; i < shape[0]; ++i) {
        for (int64_t j = 0; j < shape[1]; ++j) {
          const auto at = static_cast<size_t>((first_row + i) * t.n + first_column + j);
          float value = 0;
          for (size_t from = 0; from < products.size(); ++from) {
            if (!gathers || from == r) value += products[from][at];
          }
          if (t.bias) value += ranks_[r].inputs[set][3][static_cast<size_t>(first_column + j)];
          right[2][IndexOf(2, i, j)] = value;
        }
      }
      if (t.gathered_a) right.back() = gathered;
    }
  }
}

Status ClientProductRanks::Launch(int rank, int set, Part part) {
  Rank& own = ranks_[static_cast<size_t>(rank)];
  const auto viewer = static_cast<size_t>(rank);
  TANDEM_RETURN_IF_ERROR(own.device->Enter());
  std::vector<SlotAddress> slots(request_.operands.size());
  for (size_t slot = 0; slot < slots.size(); ++slot)
    slots[slot].own = own.operands[static_cast<size_t>(set)][slot].at[viewer];
  TANDEM_ASSIGN_OR_RETURN(const std::span<client::CudaClientStep> steps,
                          own.work->PreparedFor(slots, own.device->driver()));
  for (client::CudaClientStep& step : steps) {
    auto* const kernel = std::get_if<cuda::ClientKernelLaunch>(&step);
    auto* const fused = kernel != nullptr ? std::get_if<cuda::ClientFusedKernel>(kernel) : nullptr;
    // From value 0 on every launch is cancelled behind its handshake.
    if (fused != nullptr) fused->params.guard_value = part == Part::kMeeting ? 0 : 1;
  }
  auto* state = reinterpret_cast<Private*>(own.state.at[viewer]);
  cuda::GroupDeviceState group_state = {};
  group_state.counters = state->counters;
  group_state.failed = &state->failed;
  group_state.looked = &state->looked;
  group_state.pushed = state->pushed;
  group_state.report = &state->report;
  group_state.first_aborted_launch = reinterpret_cast<const uint64_t*>(first_aborted_launch_);
  group_state.own_words = reinterpret_cast<const uint64_t*>(signals_[viewer].at[viewer]);
  group_state.words_per_peer = plan::kSignalsPerWriter;
  group_state.timeout_ns = limit_ns_;
  group_state.tag = kTag;
  return own.work->Enqueue(steps, group_state, own.stream);
}

uint64_t ClientProductRanks::FusedWord(int rank, int writer, int index) {
  uint64_t word = 0;
  SharedMemory at = signals_[static_cast<size_t>(rank)];
  at.at[static_cast<size_t>(rank)] +=
      plan::kClientFusedWordsOffset +
      static_cast<size_t>(writer * plan::kSignalsPerWriter + index) * sizeof(word);
  machine_->Download(&word, at, rank, sizeof(word));
  return word;
}

bool ClientProductRanks::Finish(double seconds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    Enter(static_cast<int>(rank));
    while (true) {
      const cudaError_t state = cudaStreamQuery(ranks_[rank].stream);
      if (state == cudaSuccess) break;
      if (state != cudaErrorNotReady) {
        ADD_FAILURE() << cudaGetErrorString(state);
        return false;
      }
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::yield();
    }
  }
  return true;
}

void ClientProductRanks::SpoilOutputs() {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    for (auto& set : ranks_[rank].operands) {
      for (size_t slot = 0; slot < set.size(); ++slot) {
        if (!IsOutput(request_.operands[slot].role)) continue;
        const std::vector<std::byte> spoilt(
            static_cast<size_t>(*BoundBytes(request_, static_cast<int>(slot))), std::byte{0x7F});
        machine_->Upload(set[slot], static_cast<int>(rank), spoilt.data(), spoilt.size());
      }
    }
  }
}

std::string ClientProductRanks::Compare() {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const Rank& own = ranks_[rank];
    for (size_t set = 0; set < kSets; ++set) {
      for (size_t slot = 0; slot < request_.operands.size(); ++slot) {
        const std::vector<float>& right = own.right[set][slot];
        if (right.empty()) continue;
        const DType type = request_.operands[slot].spec.dtype;
        std::vector<std::byte> bytes(right.size() * DTypeBytes(type));
        machine_->Download(bytes.data(), own.operands[set][slot], static_cast<int>(rank), bytes.size());
        for (size_t i = 0; i < right.size(); ++i) {
          const float value = LoadAsFloat(bytes.data(), type, i);
          if (value == right[i]) continue;
          return "rank " + std::to_string(rank) + " set " + std::to_string(set) + " slot " +
                 std::to_string(slot) + " element " + std::to_string(i) + ": " + std::to_string(value) +
                 ", not " + std::to_string(right[i]);
        }
      }
    }
  }
  return {};
}

ClientProductRanks::Private ClientProductRanks::Read(int rank) {
  Private state;
  machine_->Download(&state, ranks_[static_cast<size_t>(rank)].state, rank, sizeof(state));
  return state;
}

int64_t ClientProductRanks::Count(int rank) {
  const Private state = Read(rank);
  for (const uint64_t counter : state.counters) {
    if (counter != state.counters[0]) return -1;
  }
  return static_cast<int64_t>(state.counters[0]);
}

cuda::LaunchReport ClientProductRanks::Report(int rank) { return Read(rank).report; }

}  // namespace tandem::runtime

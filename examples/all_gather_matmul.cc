// C = gather(A) · B: every rank has some rows of A and its own columns of B, as in a tensor-parallel layer.
// Run it once a rank, against a daemon of the host backend:
//   TANDEM_JOB_KEY=$(openssl rand -hex 16) all_gather_matmul RANK WORLD_SIZE
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tandem/client.h"
#include "tandem/host_stream.h"

namespace {

constexpr int64_t kRows = 64, kInner = 128, kColumns = 96;  // rows of a shard of A; K; columns of B a rank
constexpr auto kWaitBudget = std::chrono::seconds(60);

// Elements by the row's number in the whole A, so that every rank can check the product.
float ElementOfA(int64_t row, int64_t k) { return static_cast<float>((row + k) % 7 - 3); }
float ElementOfB(int64_t k, int64_t column) { return static_cast<float>((k * 3 + column) % 5 - 2); }

tandem::Status Run(const std::string& job_key, int rank, int world_size) {
  TANDEM_ASSIGN_OR_RETURN(auto client, tandem::Client::Connect());
  TANDEM_ASSIGN_OR_RETURN(
      auto group,
      client->JoinGroup({.job_key = job_key, .name = "layer", .world_size = world_size, .rank = rank}));
  const int64_t rows = kRows * world_size;
  const auto allocate = [&](int64_t count) {
    return client->AllocateRegistered(static_cast<size_t>(count) * sizeof(float), group->gpu_uuid());
  };
  TANDEM_ASSIGN_OR_RETURN(auto a, allocate(kRows * kInner));
  TANDEM_ASSIGN_OR_RETURN(auto b, allocate(kInner * kColumns));
  TANDEM_ASSIGN_OR_RETURN(auto c, allocate(rows * kColumns));
  auto* values_a = reinterpret_cast<float*>(a->data());
  auto* values_b = reinterpret_cast<float*>(b->data());
  for (int64_t i = 0; i < kRows * kInner; ++i) {
    values_a[i] = ElementOfA(rank * kRows + i / kInner, i % kInner);
  }
  for (int64_t i = 0; i < kInner * kColumns; ++i) {
    values_b[i] = ElementOfB(i / kColumns, rank * kColumns + i % kColumns);
  }

  tandem::OpRequest request;
  request.op = tandem::Op::kAllGatherMatmul;
  request.dim = 0;                                 // the dimension of A along which the shards are gathered
  request.on_unfused = tandem::OnUnfused::kError;  // refuse a plan that would not overlap, and say why
  request.operands = {{tandem::Role::kA, {tandem::DType::kF32, {kRows, kInner}, {}}},
                      {tandem::Role::kB, {tandem::DType::kF32, {kInner, kColumns}, {}}},
                      {tandem::Role::kC, {tandem::DType::kF32, {rows, kColumns}, {}}}};
  TANDEM_ASSIGN_OR_RETURN(auto plan, group->Prepare("layer0.up", request));
  std::printf("%s: %s\n", plan->info().summary.c_str(), plan->info().reason.c_str());

  TANDEM_ASSIGN_OR_RETURN(auto stream, tandem::HostStream::Create());
  const tandem::Binding bindings[] = {{.memory = a.get()}, {.memory = b.get()}, {.memory = c.get()}};
  TANDEM_RETURN_IF_ERROR(plan->Launch(stream.get(), bindings));
  TANDEM_RETURN_IF_ERROR(stream->Synchronize(kWaitBudget));
  TANDEM_RETURN_IF_ERROR(plan->Wait(kWaitBudget));

  const auto* product = reinterpret_cast<const float*>(c->data());
  for (int64_t i = 0; i < rows * kColumns; ++i) {
    float expected = 0;
    for (int64_t k = 0; k < kInner; ++k) {
      expected += ElementOfA(i / kColumns, k) * ElementOfB(k, rank * kColumns + i % kColumns);
    }
    if (std::fabs(product[i] - expected) > 1e-3F) return tandem::Internal("a wrong element");
  }
  std::printf("rank %d: every element is right\n", rank);
  TANDEM_RETURN_IF_ERROR(group->Leave());
  return client->Detach();
}

}  // namespace

int main(int argc, char** argv) {
  const char* job_key = std::getenv("TANDEM_JOB_KEY");
  if (argc != 3 || job_key == nullptr) return 2;
  const tandem::Status status = Run(job_key, std::atoi(argv[1]), std::atoi(argv[2]));
  if (!status.ok()) std::fprintf(stderr, "rank %s: %s\n", argv[1], status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

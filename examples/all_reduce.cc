// Sums a vector over all ranks, three times, on a stream. Run it once a rank, against a daemon of the host
// backend:
//   TANDEM_JOB_KEY=$(openssl rand -hex 16) all_reduce RANK WORLD_SIZE
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tandem/client.h"
#include "tandem/host_stream.h"

namespace {

constexpr int64_t kCount = 1 << 20;
constexpr auto kWaitBudget = std::chrono::seconds(60);

tandem::Status Run(const std::string& job_key, int rank, int world_size) {
  // The session. The daemon is found by $TANDEM_RUNTIME_DIR.
  TANDEM_ASSIGN_OR_RETURN(auto client, tandem::Client::Connect());
  // Returns once every rank has joined under this job key and name.
  TANDEM_ASSIGN_OR_RETURN(
      auto group,
      client->JoinGroup({.job_key = job_key, .name = "example", .world_size = world_size, .rank = rank}));

  // The input is this rank's own memory. The output is symmetric, so that peers may write it directly.
  TANDEM_ASSIGN_OR_RETURN(auto input, client->AllocateRegistered(kCount * sizeof(float), group->gpu_uuid()));
  TANDEM_ASSIGN_OR_RETURN(auto output, group->Allocate({kCount}, tandem::DType::kF32));

  // The request, prepared once. All ranks must ask for the same under this key; the daemon chooses how.
  const tandem::TensorSpec vector{tandem::DType::kF32, {kCount}, {}};
  tandem::OpRequest request;
  request.op = tandem::Op::kAllReduce;
  request.operands = {{tandem::Role::kInput, vector}, {tandem::Role::kOutput, vector, true}};
  TANDEM_ASSIGN_OR_RETURN(auto plan, group->Prepare("sum", request));
  std::printf("%s: %s\n", std::string(tandem::AlgorithmName(plan->info().algorithm)).c_str(),
              plan->info().reason.c_str());

  // Launches are stream-ordered: they run behind the fill, and the CPU does not wait.
  TANDEM_ASSIGN_OR_RETURN(auto stream, tandem::HostStream::Create());
  auto* values = reinterpret_cast<float*>(input->data());
  TANDEM_RETURN_IF_ERROR(stream->Enqueue([=] { std::fill_n(values, kCount, static_cast<float>(rank + 1)); }));
  const tandem::Binding bindings[] = {{.memory = input.get()}, {.memory = output.get()}};
  for (int launch = 0; launch < 3; ++launch) {
    TANDEM_RETURN_IF_ERROR(plan->Launch(stream.get(), bindings));
  }

  // The end of the stream says nothing about success: Wait returns the status of the launches.
  TANDEM_RETURN_IF_ERROR(stream->Synchronize(kWaitBudget));
  TANDEM_RETURN_IF_ERROR(plan->Wait(kWaitBudget));
  const auto* sums = reinterpret_cast<const float*>(output->data());
  const float expected = 0.5F * static_cast<float>(world_size * (world_size + 1));
  if (std::any_of(sums, sums + kCount, [=](float sum) { return sum != expected; })) {
    return tandem::Internal("wrong sum");
  }
  std::printf("rank %d: every sum is %.0f\n", rank, expected);
  TANDEM_RETURN_IF_ERROR(group->Leave());
  return client->Detach();
}

}  // namespace

int main(int argc, char** argv) {
  const char* job_key = std::getenv("TANDEM_JOB_KEY");
  if (argc != 3 || job_key == nullptr) {
    std::fprintf(stderr, "usage: TANDEM_JOB_KEY=… all_reduce RANK WORLD_SIZE\n");
    return 2;
  }
  const tandem::Status status = Run(job_key, std::atoi(argv[1]), std::atoi(argv[2]));
  if (!status.ok()) std::fprintf(stderr, "rank %s: %s\n", argv[1], status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

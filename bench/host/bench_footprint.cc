// Fills a daemon with 64 sessions, 10,000 tensors and 1,000 plans, says so on standard output, and holds them until its
// standard input ends: bench/run then reads the daemon's memory.
//   bench_footprint RUNTIME_DIR SESSIONS TENSORS PLANS

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tandem/client.h"

namespace {

using namespace tandem;

Status Fill(const std::string& runtime_dir, int sessions, int tensors, int plans,
            std::vector<std::shared_ptr<void>>* held) {
  for (int s = 0; s < sessions; ++s) {
    ConnectOptions connect;
    connect.runtime_dir = runtime_dir;
    TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Client> client, Client::Connect(connect));
    held->push_back(client);
    const GpuDescription& gpu = client->gpus()[static_cast<size_t>(s) % client->gpus().size()];
    JoinOptions join;
    join.job_key = "benchmark-job-key";
    join.name = "footprint" + std::to_string(s);
    join.gpu_uuid = gpu.uuid;
    TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Group> group, client->JoinGroup(join));
    held->push_back(group);
    for (int t = s; t < tensors; t += sessions) {
      TANDEM_RETURN_IF_ERROR(client->Empty({256}, DType::kF32, gpu.uuid).status());
    }
    for (int p = s; p < plans; p += sessions) {
      OpRequest request;
      request.op = Op::kAllReduce;
      request.operands = {{Role::kInput, {DType::kF32, {1024 + p}, {}}, false, -1},
                          {Role::kOutput, {DType::kF32, {1024 + p}, {}}, false, -1}};
      TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Plan> plan, group->Prepare("plan" + std::to_string(p), request));
      held->push_back(plan);
    }
  }
  return Status::Ok();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: bench_footprint RUNTIME_DIR SESSIONS TENSORS PLANS\n");
    return 2;
  }
  std::vector<std::shared_ptr<void>> held;
  Status status = Fill(argv[1], std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]), &held);
  if (!status.ok()) {
    std::fprintf(stderr, "bench_footprint: %s\n", status.ToString().c_str());
    return 1;
  }
  std::printf("full\n");
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
}

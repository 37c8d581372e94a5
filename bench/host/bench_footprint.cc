// Fills a daemon with sessions, tensors and plans, says so on standard output, and holds them until its
// standard input ends: bench/run then reads the daemon's memory and CPU time. Every session has launched, and
// has replayed a captured launch, so that its channel is open; KEEP_GRAPHS 1 keeps the graphs, which the
// engines then have to poll.
//   bench_footprint RUNTIME_DIR SESSIONS TENSORS PLANS KEEP_GRAPHS

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tandem/client.h"
#include "tandem/host_stream.h"

namespace {

using namespace tandem;

constexpr Milliseconds kDeadline{60000};

// Launches an empty plan on a separate stream, once directly and once from a graph.
Status Launch(const std::shared_ptr<Group>& group, bool keep_graph,
              std::vector<std::shared_ptr<void>>* held) {
  OpRequest request;
  request.op = Op::kEmpty;
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Plan> plan, group->Prepare("empty", request));
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<HostStream> stream, HostStream::Create());
  TANDEM_RETURN_IF_ERROR(plan->Launch(stream.get(), {}));
  TANDEM_RETURN_IF_ERROR(stream->BeginCapture());
  TANDEM_RETURN_IF_ERROR(plan->Launch(stream.get(), {}));
  TANDEM_ASSIGN_OR_RETURN(HostGraph graph, stream->EndCapture());
  TANDEM_ASSIGN_OR_RETURN(HostGraphExec replay, graph.Instantiate());
  TANDEM_RETURN_IF_ERROR(replay.Launch(*stream));
  TANDEM_RETURN_IF_ERROR(stream->Synchronize(kDeadline));
  held->push_back(plan);
  held->push_back(stream);
  if (keep_graph) held->push_back(std::make_shared<HostGraphExec>(std::move(replay)));
  return Status::Ok();
}

Status Fill(const std::string& runtime_dir, int sessions, int tensors, int plans, bool keep_graphs,
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
      TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Plan> plan,
                              group->Prepare("plan" + std::to_string(p), request));
      held->push_back(plan);
    }
    TANDEM_RETURN_IF_ERROR(Launch(group, keep_graphs, held));
  }
  return Status::Ok();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: bench_footprint RUNTIME_DIR SESSIONS TENSORS PLANS KEEP_GRAPHS\n");
    return 2;
  }
  std::vector<std::shared_ptr<void>> held;
  Status status = Fill(argv[1], std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]),
                       std::atoi(argv[5]) != 0, &held);
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

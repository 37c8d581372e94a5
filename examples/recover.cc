// Averages the ranks' states in place, step by step. Goes on after a killed or late rank, a killed engine, a
// restarted daemon and an eviction (docs/recovery.md). Run it once a rank; start a killed rank again:
//   TANDEM_JOB_KEY=… recover RANK WORLD_SIZE STEPS CHECKPOINT_DIRECTORY
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "tandem/client.h"
#include "tandem/host_stream.h"

using tandem::Code, tandem::Op, tandem::Role, tandem::Status, std::to_string;
constexpr int64_t kCount = 1 << 16, kBytes = kCount * 4;  // the state; element 0 is the last step's number
int main(int argc, char** argv) {
  const char* key = std::getenv("TANDEM_JOB_KEY");
  if (argc != 5 || key == nullptr) return 2;
  const int rank = std::atoi(argv[1]), world_size = std::atoi(argv[2]), last_step = std::atoi(argv[3]);
  const auto stream = std::move(tandem::HostStream::Create()).value();
  std::shared_ptr<tandem::Client> client;
  std::shared_ptr<tandem::Group> group;
  std::shared_ptr<tandem::Memory> memory;  // the state, and behind it the steps of all ranks
  std::shared_ptr<tandem::Plan> average, gather;
  const auto state = [&] { return reinterpret_cast<float*>(memory->data()); };
  // The states of two steps are kept, since ranks are at most one step apart.
  const auto file = [&](int step) { return argv[4] + ("/rank" + to_string(rank * 2 + step % 2)); };
  const auto load = [&](int step) {  // returns the loaded step; 0, and a state of zeros, without a file
    std::fill_n(state(), kCount, 0.0F);
    std::ifstream(file(step)).read(reinterpret_cast<char*>(state()), kBytes);
    return static_cast<int>(state()[0]);
  };
  const auto open = [&]() -> Status {  // connects if needed, joins and prepares
    TANDEM_ASSIGN_OR_RETURN(client, client ? tandem::Result(client) : tandem::Client::Connect());
    TANDEM_ASSIGN_OR_RETURN(group, client->JoinGroup({key, "recover", world_size, rank}));
    TANDEM_ASSIGN_OR_RETURN(memory, client->AllocateRegistered(kBytes + 64, group->gpu_uuid()));
    const auto f32 = [](int64_t count) { return tandem::TensorSpec{tandem::DType::kF32, {count}, {}}; };
    tandem::OpRequest request{Op::kAllGather, {{Role::kInput, f32(1)}, {Role::kOutput, f32(world_size)}}};
    TANDEM_ASSIGN_OR_RETURN(gather, group->Prepare("gather", request));
    request = {Op::kAllReduce, {{Role::kInput, f32(kCount)}, {Role::kOutput, f32(kCount), false, 0}}};
    request.reduce_op = tandem::ReduceOp::kAvg;
    TANDEM_ASSIGN_OR_RETURN(average, group->Prepare("average", request));
    return Status::Ok();
  };
  const auto launch = [&](tandem::Plan& plan, uint64_t output, int step) -> Status {
    const tandem::Binding bindings[] = {{memory.get()}, {memory.get(), output}};
    TANDEM_RETURN_IF_ERROR(plan.Launch(stream.get(), bindings, {.tag = to_string(step)}));
    TANDEM_RETURN_IF_ERROR(stream->Synchronize(std::chrono::seconds(60)));
    return plan.Wait(std::chrono::seconds(60));
  };
  const auto train = [&]() -> Status {  // until all ranks have completed the last step
    if (!average) TANDEM_RETURN_IF_ERROR(open());
    for (int step = 0;;) {
      load(std::max(load(0), load(1)));  // an aborted launch leaves the state in place undefined
      TANDEM_RETURN_IF_ERROR(launch(*gather, kBytes, -1));
      step = load(static_cast<int>(*std::min_element(state() + kCount, state() + kCount + world_size)));
      if (step == last_step) return Status::Ok();
      while (step < last_step) {
        state()[0] = static_cast<float>(++step);
        for (int64_t i = 1; i < kCount; ++i) state()[i] += static_cast<float>(rank + step % 8);
        TANDEM_RETURN_IF_ERROR(launch(*average, 0, step));
        std::ofstream(file(step) + ".new").write(reinterpret_cast<char*>(state()), kBytes);
        std::rename((file(step) + ".new").c_str(), file(step).c_str());  // leaves no half-written file
        std::fprintf(stderr, "step %d\n", step);
      }
    }
  };
  for (Status status; !(status = train()).ok();) {
    const auto is = [&](auto... reasons) { return (... || (status.detail().reason == reasons)); };
    std::fprintf(stderr, "%s, reason %s\n", status.ToString().c_str(), status.detail().reason.c_str());
    if (average && (is("ENGINE_RESTARTED") || (is("RANK_LATE", "RENEWING") && group->Renew().ok()))) continue;
    average = gather = nullptr, group = nullptr;  // the plans are no good any more: leave the group
    const Code code = status.code();
    const bool is_over = is("RANK_LOST", "RANK_LEFT", "GROUP_BROKEN");
    if (is_over || code == Code::kAborted || code == Code::kDeadlineExceeded) continue;  // join again
    if (is("GPU_CONTEXT_LOST") || (code != Code::kUnavailable && code != Code::kUnauthenticated)) return 1;
    client = nullptr, memory = nullptr;  // connect again
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  std::printf("state %.1f\n", state()[kCount - 1]);
}

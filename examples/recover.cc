// Averages the ranks' states in place, step by step. Goes on after a killed rank, a killed engine and a
// restarted daemon (docs/recovery.md). Run it once a rank; start a killed rank again in the same way:
//   TANDEM_JOB_KEY=… recover RANK WORLD_SIZE STEPS CHECKPOINT_DIRECTORY
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "tandem/client.h"
#include "tandem/host_stream.h"

using tandem::Op, tandem::Operand, tandem::OpRequest, tandem::Role, tandem::Status;
constexpr int64_t kCount = 1 << 16;  // elements of the state; element 0 is the number of the last step

int main(int argc, char** argv) {
  const char* key = std::getenv("TANDEM_JOB_KEY");
  if (argc != 5 || key == nullptr) return 2;
  const int rank = std::atoi(argv[1]), world_size = std::atoi(argv[2]), last_step = std::atoi(argv[3]);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const auto stream = std::move(tandem::HostStream::Create()).value();
  std::shared_ptr<tandem::Client> client;
  std::shared_ptr<tandem::Memory> memory, steps;
  std::shared_ptr<tandem::Plan> average, gather;  // they keep the group

  // The states of two steps are kept, since ranks are at most one step apart.
  const auto state = [&] { return reinterpret_cast<float*>(memory->data()); };
  const auto file = [&](int step) { return argv[4] + ("/rank" + std::to_string(rank * 2 + step % 2)); };
  const auto save = [&](int step) {
    std::ofstream(file(step) + ".new").write(reinterpret_cast<char*>(state()), kCount * sizeof(float));
    std::rename((file(step) + ".new").c_str(), file(step).c_str());  // leaves no half-written file
  };
  const auto load = [&](int step) {  // returns the loaded step; 0, and a state of zeros, without a file
    std::fill_n(state(), kCount, 0.0F);
    std::ifstream(file(step)).read(reinterpret_cast<char*>(state()), kCount * sizeof(float));
    return static_cast<int>(state()[0]);
  };
  const auto open = [&]() -> Status {  // connects, joins and prepares, as far as that is lost
    if (average) return Status::Ok();
    gather.reset();
    if (!client) {
      TANDEM_ASSIGN_OR_RETURN(client, tandem::Client::Connect());
    }
    TANDEM_ASSIGN_OR_RETURN(
        auto group,
        client->JoinGroup({.job_key = key, .name = "recover", .world_size = world_size, .rank = rank}));
    TANDEM_ASSIGN_OR_RETURN(memory, client->AllocateRegistered(kCount * sizeof(float), group->gpu_uuid()));
    TANDEM_ASSIGN_OR_RETURN(steps, client->AllocateRegistered(64, group->gpu_uuid()));
    const auto operand = [](Role role, int64_t count, int alias_of = -1) {
      return Operand{role, {tandem::DType::kF32, {count}, {}}, false, alias_of};
    };
    OpRequest request{.op = Op::kAllGather};
    request.operands = {operand(Role::kInput, 1), operand(Role::kOutput, world_size)};
    TANDEM_ASSIGN_OR_RETURN(gather, group->Prepare("gather", request));
    request = {.op = Op::kAllReduce, .reduce_op = tandem::ReduceOp::kAvg};
    request.operands = {operand(Role::kInput, kCount), operand(Role::kOutput, kCount, 0)};  // in place
    TANDEM_ASSIGN_OR_RETURN(average, group->Prepare("average", request));
    return Status::Ok();
  };
  const auto launch = [&](tandem::Plan& plan, const tandem::Memory& output, int step) -> Status {
    const tandem::Binding bindings[] = {{.memory = memory.get()}, {.memory = &output}};
    TANDEM_RETURN_IF_ERROR(plan.Launch(stream.get(), bindings, {.tag = std::to_string(step)}));
    TANDEM_RETURN_IF_ERROR(stream->Synchronize(std::chrono::seconds(60)));
    return plan.Wait(std::chrono::seconds(60));
  };
  const auto train = [&]() -> Status {  // until all ranks have completed the last step
    const auto* all_steps = reinterpret_cast<const float*>(steps->data());
    for (;;) {
      // An aborted launch leaves the state undefined, and a peer may be a step behind: back to the last
      // common step.
      load(std::max(load(0), load(1)));
      TANDEM_RETURN_IF_ERROR(launch(*gather, *steps, -1));
      int step = load(static_cast<int>(*std::min_element(all_steps, all_steps + world_size)));
      if (step == last_step) return Status::Ok();
      while (step < last_step) {
        state()[0] = static_cast<float>(++step);
        for (int64_t i = 1; i < kCount; ++i) state()[i] += static_cast<float>(rank + step % 8);
        TANDEM_RETURN_IF_ERROR(launch(*average, *memory, step));
        save(step);
        std::printf("step %d\n", step);
      }
    }
  };
  for (;;) {
    Status status = open();
    if (status.ok()) status = train();
    if (status.ok()) break;
    const std::string& reason = status.detail().reason;
    std::printf("failed: %s, reason %s\n", status.ToString().c_str(), reason.c_str());
    if (reason == "ENGINE_RESTARTED" || reason == "RANK_LATE") continue;  // plans are still good
    if (reason == "GPU_CONTEXT_LOST") return 1;  // this process has lost its GPU: only a new one can go on
    if (status.code() != tandem::Code::kUnavailable && reason != "SESSION_LOST" && reason != "LAUNCH_OVERDUE")
      return 1;
    average = gather = nullptr;  // the group is broken: join again
    if (reason == "RANK_LOST" || reason == "RANK_LEFT" || reason == "GROUP_BROKEN" ||
        reason == "LAUNCH_OVERDUE")
      continue;
    client = nullptr;  // no daemon, or another one: connect again
    memory = steps = nullptr;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  std::printf("state %.1f\n", state()[kCount - 1]);
  return 0;
}

// Averages the ranks' states in place, step by step. Goes on after a killed rank, a killed engine and a
// restarted daemon (docs/recovery.md). Run it once a rank, and start a rank that was killed again with the
// same arguments:
//   TANDEM_JOB_KEY=… recover RANK WORLD_SIZE STEPS CHECKPOINT_DIRECTORY
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tandem/client.h"
#include "tandem/host_stream.h"

namespace {

using tandem::DType, tandem::Op, tandem::Operand, tandem::OpRequest, tandem::Role, tandem::Status;
constexpr int64_t kCount = 1 << 16;  // elements of the state; element 0 is the number of the last step
constexpr std::chrono::milliseconds kPatience(60000);

struct Session {
  std::shared_ptr<tandem::Client> client = {};
  std::shared_ptr<tandem::Group> group = {};
  std::shared_ptr<tandem::Memory> state = {}, steps = {};
  std::shared_ptr<tandem::Plan> average = {}, gather = {};
};

struct Job {
  std::string key, directory;
  int rank, world_size, last_step;
  std::unique_ptr<tandem::HostStream> stream;
  Session session;

  float* state() const { return reinterpret_cast<float*>(session.state->data()); }
  // Ranks are at most one step apart, so the states of two steps suffice.
  std::string File(int step) const {
    return directory + "/rank" + std::to_string(rank) + "." + std::to_string(step % 2);
  }
  void Save(int step) const {  // a rename leaves no half-written file
    std::ofstream(File(step) + ".new").write(reinterpret_cast<char*>(state()), kCount * sizeof(float));
    std::filesystem::rename(File(step) + ".new", File(step));
  }
  int Load(int step) const {  // the step that was loaded; 0 and zeros without a file
    std::fill_n(state(), kCount, 0.0F);
    std::ifstream(File(step)).read(reinterpret_cast<char*>(state()), kCount * sizeof(float));
    return static_cast<int>(state()[0]);
  }
};

// Connects, joins and prepares: all of it, or what was dropped.
Status Open(Job& job) {
  Session& s = job.session;
  if (s.average) return Status::Ok();
  s = {.client = std::move(s.client)};
  if (!s.client) {
    TANDEM_ASSIGN_OR_RETURN(s.client, tandem::Client::Connect());
  }
  TANDEM_ASSIGN_OR_RETURN(
      s.group, s.client->JoinGroup(
                   {.job_key = job.key, .name = "recover", .world_size = job.world_size, .rank = job.rank}));
  TANDEM_ASSIGN_OR_RETURN(s.state, s.client->AllocateRegistered(kCount * sizeof(float), s.group->gpu_uuid()));
  TANDEM_ASSIGN_OR_RETURN(s.steps, s.client->AllocateRegistered(64, s.group->gpu_uuid()));
  const auto operand = [](Role role, int64_t count) { return Operand{role, {DType::kF32, {count}, {}}}; };
  OpRequest gather{.op = Op::kAllGather};
  gather.operands = {operand(Role::kInput, 1), operand(Role::kOutput, job.world_size)};
  TANDEM_ASSIGN_OR_RETURN(s.gather, s.group->Prepare("gather", gather, kPatience));
  OpRequest average{.op = Op::kAllReduce};
  average.reduce_op = tandem::ReduceOp::kAvg;
  average.operands = {operand(Role::kInput, kCount), operand(Role::kOutput, kCount)};
  average.operands[1].alias_of = 0;  // in place
  TANDEM_ASSIGN_OR_RETURN(s.average, s.group->Prepare("average", average, kPatience));
  return Status::Ok();
}

Status Launch(Job& job, tandem::Plan& plan, const tandem::Memory& output, int step) {
  const tandem::Binding bindings[] = {{.memory = job.session.state.get()}, {.memory = &output}};
  TANDEM_RETURN_IF_ERROR(plan.Launch(job.stream.get(), bindings, {.tag = std::to_string(step)}));
  TANDEM_RETURN_IF_ERROR(job.stream->Synchronize(kPatience));
  return plan.Wait(kPatience);
}

// Runs until all ranks have completed the last step.
Status Train(Job& job) {
  const auto* steps = reinterpret_cast<const float*>(job.session.steps->data());
  for (;;) {
    // An aborted launch leaves the state undefined, and a peer may be a step behind: restore the last common
    // step.
    const int newest = std::max(job.Load(0), job.Load(1));
    job.Load(newest);
    TANDEM_RETURN_IF_ERROR(Launch(job, *job.session.gather, *job.session.steps, -1));
    int step = static_cast<int>(*std::min_element(steps, steps + job.world_size));
    if (step == job.last_step) return Status::Ok();
    job.Load(step);
    while (step < job.last_step) {
      ++step;
      job.state()[0] = static_cast<float>(step);
      for (int64_t i = 1; i < kCount; ++i) job.state()[i] += static_cast<float>(job.rank + step % 8);
      TANDEM_RETURN_IF_ERROR(Launch(job, *job.session.average, *job.session.state, step));
      job.Save(step);
      std::printf("step %d\n", step);
    }
  }
}

// Drops what the failure has made useless; false if the job cannot go on.
bool Recover(Job& job, const Status& status) {
  const std::string& reason = status.detail().reason;
  if (reason == "ENGINE_RESTARTED" || reason == "RANK_LATE") return true;  // group and plans are still good
  if (reason == "SHARED_FATE") return false;  // this process has lost its GPU: only a new one can go on
  if (reason == "RANK_LOST" || reason == "RANK_LEFT" || reason == "GROUP_BROKEN" ||
      reason == "LAUNCH_OVERDUE") {
    job.session = {.client = std::move(job.session.client)};
    return true;
  }
  if (status.code() != tandem::Code::kUnavailable && reason != "SESSION_LOST") return false;
  job.session = {};  // no daemon, or another one
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const char* key = std::getenv("TANDEM_JOB_KEY");
  if (argc != 5 || key == nullptr) return 2;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  Job job{key, argv[4], std::atoi(argv[1]), std::atoi(argv[2]), std::atoi(argv[3]), {}, {}};
  job.stream = std::move(tandem::HostStream::Create()).value();
  for (;;) {
    Status status = Open(job);
    if (status.ok()) status = Train(job);
    if (status.ok()) break;
    std::printf("failed: %s, reason %s\n", status.ToString().c_str(), status.detail().reason.c_str());
    if (!Recover(job, status)) return 1;
  }
  std::printf("state %.1f\n", job.state()[kCount - 1]);
  return 0;
}

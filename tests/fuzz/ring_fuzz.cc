// Fuzzes what a client may do to its channel: entries of any bytes, any index in the ring's header, any value
// in any word. The engine's channel server and launch queue must stay within bounds, end what they have
// taken, and go on serving a bystander's channel.
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/channel_server.h"
#include "engine/launch/launch_queue.h"
#include "ipc/arrival_table.h"
#include "ipc/channel.h"
#include "kernels/host/host_backend.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using namespace tandem;
using namespace tandem::engine;

constexpr uint32_t kEntries = 8;
constexpr uint64_t kRogueSession = 7, kBystanderSession = 8;
constexpr uint64_t kMemoryBytes = 4096, kSpanBytes = 256;
constexpr uint64_t kWaitBudgetNs = 20'000'000'000;

class Listener final : public LaunchListener {
  void OnLaunchDone(uint64_t, const Status&) override {}
  void OnLaunchFailed(const InstalledPlan&, uint64_t, const Status&) override {}
  void OnGroupLost(const InstalledPlan&, uint64_t, const Status&) override {}
  void OnGroupStalled(const EngineGroup&, const Status&) override {}
  void OnLate(const InstalledPlan&, const Launch&, const std::vector<int>&, double) override {}
  void OnPeerSilent(const engine::EngineGroup&, int) override {}
};

// Slot 1 = slot 0.
plan::RankProgram CopyProgram() {
  plan::RankProgram program;
  plan::CopyStep copy;
  copy.src = {.ref = {.space = plan::Space::kOperand, .rank = 0, .slot = 0, .offset = 0},
              .dtype = DType::kU8,
              .extent = {static_cast<int64_t>(kSpanBytes)},
              .stride = {1}};
  copy.dst = copy.src;
  copy.dst.ref.slot = 1;
  plan::Step step;
  step.work = copy;
  program.steps.push_back(step);
  return program;
}

struct Memory {
  uint64_t registration = 0;
  UniqueFd fd;
  Mapping mapping;
};

// One engine's queue on an emulated GPU, kept over all inputs.
class Engine {
 public:
  Engine() {
    backend_ = std::move(*MakeHostBackend({.gpu = 0, .hardware_queues = 2, .memory_bytes = 1 << 20}));
    memory_ = std::make_unique<MemoryTable>(backend_.get(), dead_);
    std::vector<std::unique_ptr<Lane>> lanes;
    lanes.push_back(std::move(*backend_->MakeLane(0)));
    log_fd_ = std::move(*OrderLog::Create());
    stats_fd_ = std::move(*CreateStatsArea(64, 64));
    queue_ = std::make_unique<LaunchQueue>(
        LaunchQueueOptions{}, backend_.get(), memory_.get(), std::move(*OrderLog::Map(log_fd_.get())),
        std::move(*StatsArea::Map(stats_fd_.get())), std::move(*WordPage::Create(backend_.get())),
        std::move(lanes), &listener_);
  }

  LaunchQueue& queue() { return *queue_; }
  ChannelServer Server() { return ChannelServer(queue_.get(), backend_.get(), dead_, 1); }
  OrderLog Log() { return std::move(*OrderLog::Map(log_fd_.get())); }

  Memory Register(uint64_t id, uint64_t session) {
    Memory memory{
        .registration = id, .fd = std::move(*CreateSealedMemfd("fuzz", kMemoryBytes)), .mapping = {}};
    memory.mapping = std::move(*Mapping::Map(memory.fd.get(), 0, kMemoryBytes, true));
    std::vector<UniqueFd> fds;
    fds.emplace_back(::dup(memory.fd.get()));
    Status added = memory_->AddForeign(id, session, kMemoryBytes, std::move(fds), {kMemoryBytes}, 0);
    fuzz::Expect(added.ok(), added.ToString());
    return memory;
  }

  // A group of this GPU's rank 0 and, for `world_size` 2, of a peer that only the input knows.
  EngineGroup* AddGroup(uint64_t session, int world_size) {
    auto group = std::make_unique<EngineGroup>();
    group->id = ++last_id_;
    group->session_id = session;
    group->generation = 1;
    group->world_size = world_size;
    group->gpu_mask = 1;
    group->deadline_ns = 1'000'000'000;
    group->arrivals =
        std::move(*ArrivalTable::Map(std::move(*CreateArrivalTable(world_size, 4)).get(), world_size));
    EngineGroup* raw = group.get();
    Status added = queue_->AddGroup(std::move(group));
    fuzz::Expect(added.ok(), added.ToString());
    return raw;
  }

  uint64_t AddPlan(EngineGroup* group, uint32_t index, plan::RankProgram program, int slots) {
    auto plan = std::make_unique<InstalledPlan>();
    plan->id = ++last_id_;
    plan->group = group;
    plan->index = index;
    program.rank = group->rank;
    program.world_size = group->world_size;
    runtime::ProgramLimits limits;
    limits.world_size = group->world_size;
    for (int i = 0; i < slots; ++i) {
      limits.slots.push_back({.bytes = kSpanBytes, .symmetric = false});
      plan->slots.push_back({.span_bytes = kSpanBytes, .alignment = 16, .symmetric = false, .alias_of = -1});
    }
    plan->program = std::move(*runtime::CompiledProgram::Compile(program, limits));
    const uint64_t id = plan->id;
    Status added = queue_->AddPlan(std::move(plan));
    fuzz::Expect(added.ok(), added.ToString());
    return id;
  }

  void Step(ChannelServer& server) {
    queue_->Reap();
    server.Poll();
    queue_->Poll();
    // All at once: an input opens channels faster than a step for each.
    if (queue_->LanesIdle()) dead_->RunAll(backend_.get());
    fuzz::Expect(queue_->fatal().ok(), "the queue is lost: " + queue_->fatal().ToString());
  }

  template <typename Done>
  void StepUntil(ChannelServer& server, const char* what, Done done) {
    const uint64_t give_up = NowNs() + kWaitBudgetNs;
    while (!done()) {
      Step(server);
      std::this_thread::yield();  // lanes are threads
      if (NowNs() > give_up) fuzz::Finding(what);
    }
  }

 private:
  std::unique_ptr<Backend> backend_;
  std::shared_ptr<DeferredRelease> dead_ = std::make_shared<DeferredRelease>();
  std::unique_ptr<MemoryTable> memory_;
  UniqueFd log_fd_, stats_fd_;
  Listener listener_;
  std::unique_ptr<LaunchQueue> queue_;
  uint64_t last_id_ = 100;
};

// The rogue's actions, byte by byte of the input.
class Rogue {
 public:
  Rogue(Engine& engine, ChannelServer& server, EngineGroup* pair, std::vector<uint64_t> plans)
      : engine_(engine), server_(server), pair_(pair), plans_(std::move(plans)) {
    memory_ = std::move(*CreateChannelMemory(kEntries));
    ring_ = std::move(*Mapping::Map(memory_.ring.get(), 0, RingBytes(kEntries), true));
    words_ = std::move(*Mapping::Map(memory_.words.get(), 0, WordsBytes(kEntries), true));
    Status opened = server.Open(1, kRogueSession, kEntries, memory_.ring.get(), memory_.words.get());
    fuzz::Expect(opened.ok(), opened.ToString());
  }

  void Act(fuzz::FuzzInput& input) {
    switch (input.Byte() % 10) {
      case 0: PushRaw(input); break;
      case 1: Hostile(header()->producer, input.Take<uint64_t>()); break;
      case 2: Hostile(words()->request, input.Take<uint64_t>()); break;
      case 3: words()->captured[input.Byte() % kCapturedSlots].doorbell.store(input.Byte()); break;
      case 4: engine_.Step(server_); break;
      case 5: Launch(input); break;
      case 6: Scribble(ring_, input); break;
      case 7: Scribble(words_, input); break;
      case 8: pair_->arrivals.Arrive(0, 1, input.Take<uint64_t>(), input.Byte()); break;
      default: Capture(input);
    }
  }

  // Whether the client kept to the protocol so far. If so, how many launches must end.
  bool honest() const { return honest_; }
  uint64_t pushed() const { return pushed_; }
  uint64_t Done() const { return words_.As<ChannelWordsHeader>()->done.load(); }

 private:
  RingHeader* header() const { return ring_.As<RingHeader>(); }
  ChannelWordsHeader* words() const { return words_.As<ChannelWordsHeader>(); }

  void Hostile(std::atomic<uint64_t>& word, uint64_t value) {
    honest_ = false;
    word.store(value);
  }

  // Overwrites eight bytes anywhere.
  void Scribble(const Mapping& mapping, fuzz::FuzzInput& input) {
    const size_t at = input.Take<uint32_t>() % (mapping.size() / 8);
    Hostile(*mapping.As<std::atomic<uint64_t>>(at * 8), input.Take<uint64_t>());
  }

  void Push(const void* bytes, size_t size) {
    uint64_t copy[kEntryBytes / 8] = {};
    std::memcpy(copy, bytes, size);
    RingSlot& slot = ring_.As<RingSlot>(kRingSlotsOffset)[header()->producer.load() % kEntries];
    for (size_t i = 0; i < std::size(copy); ++i) slot.words[i].store(copy[i], std::memory_order_relaxed);
    header()->producer.fetch_add(1);
  }

  void PushRaw(fuzz::FuzzInput& input) {
    honest_ = false;
    std::string_view bytes = input.TakeBytes(kEntryBytes);
    Push(bytes.data(), bytes.size());
  }

  LaunchEntry Entry(fuzz::FuzzInput& input) {
    LaunchEntry entry;
    const uint8_t plan = input.Byte();
    entry.plan_id = plan < 0xf0 ? plans_[plan % plans_.size()] : input.Take<uint64_t>();
    entry.group_generation = input.Byte() < 0xf0 ? 1 : input.Take<uint64_t>();
    entry.deadline_ns = input.Take<uint16_t>();
    entry.tag_digest = input.Byte();
    entry.binding_count = input.Byte() % (kMaxBindings + 1);
    for (uint32_t i = 0; i < entry.binding_count && !input.Empty(); ++i) {
      entry.bindings[i] = {.registration_id = input.Byte() % 4u, .offset = 0};
      if (const uint8_t where = input.Byte(); where >= 0x80) {
        entry.bindings[i].offset = where < 0xf0 ? uint64_t{where} * 16 : input.Take<uint64_t>();
      }
    }
    return entry;
  }

  // A launch as the client library makes one, of anything.
  void Launch(fuzz::FuzzInput& input) {
    LaunchEntry entry = Entry(input);
    if (header()->producer.load() - header()->consumer.load() >= kEntries) return;
    entry.sequence = pushed_ + 1;
    Push(&entry, sizeof(entry));
    ++pushed_;
    if (honest_) words()->request.store(pushed_);
  }

  void Capture(fuzz::FuzzInput& input) {
    const uint8_t slot = input.Byte();
    LaunchEntry entry = Entry(input);
    if (header()->producer.load() - header()->consumer.load() >= kEntries) return;
    entry.kind = slot & 0x80 ? EntryKind::kDisarm : EntryKind::kArm;
    entry.captured_slot = slot & 0x3f;
    Push(&entry, sizeof(entry));
  }

  Engine& engine_;
  ChannelServer& server_;
  EngineGroup* pair_;
  std::vector<uint64_t> plans_;
  ChannelMemory memory_;
  Mapping ring_, words_;
  bool honest_ = true;
  uint64_t pushed_ = 0;
};

// A launch of somebody else: it must go well, and do what it says.
void CheckBystander(Engine& engine, ChannelServer& server, ChannelProducer& producer, uint64_t plan,
                    const Memory& memory) {
  static uint8_t stamp = 0;
  std::memset(memory.mapping.data(), ++stamp, kSpanBytes);
  LaunchEntry entry;
  entry.plan_id = plan;
  entry.group_generation = 1;
  entry.binding_count = 2;
  entry.bindings[0] = {.registration_id = memory.registration, .offset = 0};
  entry.bindings[1] = {.registration_id = memory.registration, .offset = kSpanBytes};
  Status pushed = producer.TryPush(&entry);
  fuzz::Expect(pushed.ok(), "the bystander cannot push: " + pushed.ToString());
  producer.request()->store(entry.sequence);
  engine.StepUntil(server, "the bystander's launch does not end",
                   [&] { return producer.Done() >= entry.sequence; });
  const LaunchOutcome outcome = producer.Outcome(entry.sequence);
  fuzz::Expect(outcome.status.ok(), "the bystander's launch failed: " + outcome.status.ToString());
  fuzz::Expect(std::memcmp(memory.mapping.data(), memory.mapping.data() + kSpanBytes, kSpanBytes) == 0,
               "the bystander's copy is wrong");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Engine& engine = *new Engine;
  // Only the engine uses it; kept in sight of the leak checker, which an optimised-away reference is not.
  [[gnu::used]] static Memory* const rogue_memory = new Memory(engine.Register(1, kRogueSession));
  static Memory& bystander_memory = *new Memory(engine.Register(2, kBystanderSession));
  static const uint64_t bystander_plan =
      engine.AddPlan(engine.AddGroup(kBystanderSession, 1), 0, CopyProgram(), 2);

  LaunchQueue& queue = engine.queue();
  EngineGroup* solo = engine.AddGroup(kRogueSession, 1);
  EngineGroup* pair = engine.AddGroup(kRogueSession, 2);
  const std::vector<uint64_t> plans = {engine.AddPlan(pair, 0, {}, 0),
                                       engine.AddPlan(solo, 0, CopyProgram(), 2),
                                       engine.AddPlan(solo, 1, {}, 0), bystander_plan};
  {
    ChannelServer server = engine.Server();
    ChannelMemory bystander_channel = std::move(*CreateChannelMemory(2));
    ChannelProducer bystander =
        std::move(*ChannelProducer::Map(bystander_channel.ring.get(), bystander_channel.words.get(), 2));
    Status opened =
        server.Open(2, kBystanderSession, 2, bystander_channel.ring.get(), bystander_channel.words.get());
    fuzz::Expect(opened.ok(), opened.ToString());
    Rogue rogue(engine, server, pair, plans);
    fuzz::FuzzInput input(data, size);
    for (int actions = 0; actions < 200 && !input.Empty(); ++actions) rogue.Act(input);
    CheckBystander(engine, server, bystander, bystander_plan, bystander_memory);
    // Without its plans, whatever waits must end: those in flight by the lanes, the others with a status.
    engine.StepUntil(server, "a plan of the rogue's cannot be removed", [&] {
      bool removed = true;
      for (size_t i = 0; i < 3; ++i) removed = queue.RemovePlan(plans[i]) && removed;
      return removed;
    });
    if (rogue.honest()) {
      engine.StepUntil(server, "a launch has not ended", [&] { return rogue.Done() == rogue.pushed(); });
    }
    CheckBystander(engine, server, bystander, bystander_plan, bystander_memory);
  }
  ChannelServer none = engine.Server();
  engine.StepUntil(none, "a group is not idle",
                   [&] { return queue.Idle(*solo) && queue.Idle(*pair) && !queue.Pending(); });
  queue.RemoveGroup(solo->id);
  queue.RemoveGroup(pair->id);
  return 0;
}

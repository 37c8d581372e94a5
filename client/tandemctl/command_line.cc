#include "client/tandemctl/command_line.h"

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "client/tandemctl/completion.h"
#include "client/tandemctl/names.h"
#include "client/tandemctl/tune.h"
#include "common/build/build_version.h"
#include "common/toml/toml_text.h"

namespace tandem::ctl {
namespace {

// The commands that ask the daemon print JSON by this flag. The program itself has it too, so that it may
// stand before the command.
void AddJson(CLI::App& app, CommandLine& line) {
  app.add_flag("--json", line.options.json, "Print JSON (docs/tandemctl.md)");
}

// An id has no default.
template <typename Id>
CLI::Option* AddId(CLI::App& app, const char* name, Id& id, const char* about) {
  return app.add_option(name, id, about)->default_str("");
}

// CLI11 takes an empty value for the number 0.
void RefuseEmptyNumbers(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (!type.starts_with("INT") && !type.starts_with("UINT") && !type.starts_with("FLOAT")) continue;
    option->transform(CLI::Validator(
        [](std::string& value) { return value.empty() ? std::string("a number is missing") : ""; }, ""));
  }
  for (CLI::App* below : app.get_subcommands(nullptr)) RefuseEmptyNumbers(*below);
}

void AddDaemonCommands(CLI::App& app, CommandLine& line) {
  using Command = Status (*)(const Connection&, const CommandOptions&);
  auto add = [&](const char* name, const char* about, Command command) {
    CLI::App* sub = app.add_subcommand(name, about);
    AddJson(*sub, line);
    sub->callback(
        [&line, command] { line.run = [&line, command] { return command(line.Connect(), line.options); }; });
    return sub;
  };
  add("health", "Whether the node works; status 1 if tandemd makes no progress", ShowHealth)
      ->add_flag("--ready", line.options.ready,
                 "Status 1 also if new jobs cannot run on every GPU: draining, an engine down");
  add("topo", "The GPUs, their links and their class", ShowTopology);
  add("doctor", "Faults of this node, each with advice; status 1 if something has failed", ShowDoctor);
  add("sessions", "The attached processes", ShowSessions);
  add("groups", "The groups, their ranks and their memory", ShowGroups);
  add("pools", "Each GPU's pool of symmetric memory", ShowPools)
      ->add_flag("--segments", line.options.segments, "List every segment");
  CLI::App* plans =
      add("plans", "The prepared plans with their statistics; with an id its whole explanation", ShowPlans);
  AddId(*plans, "id", line.options.id, "One plan");
  AddId(*plans, "--group", line.options.group_id, "Only the plans of the group with this id");
  plans->add_flag("--programs", line.options.programs, "Print each rank's program");
  plans->add_option("--page", line.options.page,
                    "Continue a listing that was cut: the page token at its end");
  add("queue", "The launches in flight on each GPU, with their start, their group and the late ranks",
      ShowQueue);
  add("stats", "The daemon's and the engines' counters", ShowStats);
  CLI::App* top = add("top", "Rates of engines and plans over an interval", ShowTop);
  top->add_flag("--once", line.options.once, "Print one interval's rates and end, as on a pipe");
  top->add_option("--interval", line.options.interval_seconds, "Seconds that rates are taken over")
      ->check(CLI::Range(0.1, 3600.0));
  CLI::App* trace = add("trace", "The latest launches of all GPUs as Chrome trace JSON", WriteTrace);
  trace->add_option("-o,--output", line.options.output, "File to write; default is standard output");
  trace->add_option("--last", line.options.last, "Launches of each GPU, the latest ones; 0: all");
  CLI::App* support =
      add("support", "One archive for a report: doctor, counters, listings, trace, configuration, journal",
          Support);
  support->add_option("-o,--output", line.options.output,
                      "The archive; default is tandem-support-TIME.tar.gz in this directory");
  support->add_flag("--redact", line.options.redact,
                    "Replace names of sessions, groups, commands, cgroups and the host; no journal");
  CLI::App* cordon = add("cordon", "Accept no new sessions and groups; jobs that run go on", Cordon);
  cordon->add_flag("--undo", line.options.undo, "Accept again; ends a drain too");
  cordon->add_option("--gpu", line.options.gpu,
                     "Only new groups on this GPU; --undo also forgets its XIDs. Index or UUID");
  CLI::App* drain = add("drain", "Cordon the node, notify its jobs, and wait for the groups to end", Drain);
  drain->add_option("--wait", line.options.drain_seconds, "Seconds to wait")->check(CLI::Range(0.0, 86400.0));
  drain->add_flag("--undo", line.options.undo, "Accept again");
  CLI::App* evict =
      add("evict", "End a session (its process lives on), or the processes that block a GPU's engine", Evict);
  CLI::Option_group* whom = evict->add_option_group("whom");
  AddId(*whom, "id", line.options.id, "The session");
  whom->add_option("--gpu", line.options.gpu,
                   "End the processes that keep the engine of this GPU from starting. Index or UUID");
  whom->require_option(1);
  evict->add_flag("--force", line.options.force, "With --gpu: also while the engine waits for no process");
  const auto add_job = [&](const char* name, const char* about, Command command) {
    CLI::App* job = add(name, about, command);
    AddId(*job, "id", line.options.id, "A session of the job (tandemctl sessions)")->required();
    job->add_option("--wait", line.options.job_seconds, "Seconds to wait for the job")
        ->check(CLI::Range(0.001, 1800.0));
  };
  add_job("suspend", "Ask a job to give up its GPU memory, and wait until it has", Suspend);
  add_job("resume", "Let a job go on that sleeps by `tandemctl suspend`", Resume);
  for (const char* name : {"reset", "unfuse"}) {
    CLI::App* reset = add(name, "Start an engine again that is held down after a crash loop", Reset);
    reset->add_option("gpu", line.options.gpu, "The engine's GPU: index or UUID")->required();
    if (std::string_view(name) == "unfuse") reset->group("");  // the name of version 0.1; not shown
  }
}

void AddExplain(CLI::App& app, CommandLine& line) {
  CLI::App* sub =
      app.add_subcommand("explain", "Plan and prove an operation without a daemon, and print the reasons");
  ExplainOptions& explain = line.explain;
  AddId(*sub, "op", explain.op, ("The operation: " + Listed(OpNames())).c_str())->required();
  sub->add_option("--shape", explain.shape,
                  "One rank's input, or A: 4096x8192. All operations but barrier and empty need it");
  sub->add_option("--b", explain.b_shape, "B: 8192x3584. Operations with a matmul need it");
  sub->add_option("--dtype", explain.dtype, Listed(DTypeNames()));
  sub->add_option("--scales", explain.scales, "fp8: " + Listed(ScaleNames()) + "; empty: tensor_wise");
  sub->add_option("--world", explain.world, "Ranks, 1 to 8");
  sub->add_option("--topology", explain.topology_file, "Topology file (TOML); its first GPUs are the ranks");
  sub->add_option("--algorithm", explain.algorithm, Listed(AlgorithmNames()));
  sub->add_option("--placement", explain.placement,
                  Listed(PlacementNames()) + "; client: one kernel on the ranks' own streams");
  sub->add_option("--determinism", explain.determinism,
                  Listed(DeterminismNames()) + "; what cannot keep it is refused");
  sub->add_option("--rounding", explain.rounding,
                  Listed(RoundingNames()) + "; with a residual and an RMSNorm behind the sum");
  sub->add_option("--dim", explain.dim, "Gather, scatter or all-to-all dimension");
  sub->add_option("--root", explain.root, "Root of broadcast and reduce");
  sub->add_option("--steps", explain.steps,
                  "Steps of the ring, a multiple of the world size; 0: the planner's choice");
  sub->add_option("--lanes", explain.lanes, "Lanes of ring and pipeline; 0: the planner's choice");
  sub->add_option("--max-rows", explain.max_rows,
                  "A family: one plan for 0 to this many rows, the first extent of the input or of A");
  sub->add_flag("--b-rows", explain.b_rows,
                "B's rows are contiguous; else its columns, as of a linear layer's weights");
  sub->add_flag("--symmetric", explain.symmetric, "The operands are symmetric tensors");
  sub->add_flag("--exact", explain.exact, "Partial sums travel as fp32");
  sub->add_flag("--slow-accumulation", explain.slow_accumulation,
                "fp8 products are summed in fp32 throughout");
  sub->add_option("--program", explain.program, "List the program of this rank; -1: none, -2: all");
  AddJson(*sub, line);
  sub->callback([&line] {
    line.run = [&line] {
      auto explanation = Explain(line.explain);
      if (!explanation.ok()) return explanation.status();
      std::string text = line.options.json ? ExplanationJson(*explanation, line.explain)
                                           : ExplanationText(*explanation, line.explain);
      std::fwrite(text.data(), 1, text.size(), stdout);
      return Status::Ok();
    };
  });
}

void AddTune(CLI::App& app, CommandLine& line) {
  const auto connect = [&line] { return line.Connect(); };
  TuneOptions& tune = line.tune;
  CLI::App* sub = app.add_subcommand(
      "tune", "Measure operations' algorithms at given shapes; plans then choose by the times");
  AddTuneLine(sub, &line.tune_line);
  sub->add_option("--from", line.tune_file,
                  "File of cases, each line with the options above; - is standard input")
      ->excludes(sub->get_option("--op"))
      ->excludes(sub->get_option("--shape"));
  sub->add_flag(
         "--wanted", tune.wanted,
         "Measure the requests whose plans had no measured time, on their GPUs (tandemctl tuning wanted)")
      ->excludes(sub->get_option("--op"))
      ->excludes(sub->get_option("--shape"))
      ->excludes(sub->get_option("--from"));
  sub->add_option("--world", tune.world, "Ranks, 2 to 8");
  sub->add_option("--gpus", tune.gpus, "Indexes or UUIDs in rank order; default: the first ones")
      ->delimiter(',')
      ->default_str("");
  sub->add_option("--placement", tune.placement,
                  "Where the launches run, engine or client; plans of each have times of their own")
      ->check(CLI::IsMember({"engine", "client"}));
  sub->add_option("--rounds", tune.rounds, "Rounds in which the candidates take turns")
      ->check(CLI::Range(1, 1000));
  sub->add_option("--launches", tune.launches, "Launches of a round; default: as many as take 20 ms")
      ->check(CLI::Range(1, 10000));
  sub->add_option("--deadline", tune.deadline_seconds, "Seconds for each step of the ranks")
      ->check(CLI::Range(1.0, 3600.0));
  sub->add_option("--time-limit", tune.time_limit_seconds, "Seconds after which no further case begins")
      ->check(CLI::PositiveNumber);
  sub->add_flag("--force", tune.force, "Also beside other groups on these GPUs");
  sub->add_flag("--dry-run", tune.dry_run, "Measure and print; the table stays as it is");
  AddJson(*sub, line);
  sub->callback([&line, connect, sub] {
    line.run = [&line, connect, sub]() -> Status {
      std::vector<TuneCase> cases = line.tune_line.Cases();
      if (!line.tune_file.empty()) {
        const std::string file = line.tune_file == "-" ? "/dev/stdin" : line.tune_file;
        TANDEM_ASSIGN_OR_RETURN(const std::string text, tandem::ReadTextFile(file));
        TANDEM_ASSIGN_OR_RETURN(cases, ParseTuneCases(text, line.tune_file));
      } else if (!line.tune.wanted && (cases.empty() || sub->count("--op") == 0)) {
        return tandem::InvalidArgument("give --op and --shape, or --from FILE, or --wanted");
      }
      return Tune(connect(), line.runtime_dir, cases, line.tune, line.options.json);
    };
  });

  CLI::App* tuning = app.add_subcommand("tuning", "The measured times");
  tuning->require_subcommand(1);
  const auto add = [&](const char* name, const char* about,
                       std::function<Status(const Connection&)> command) {
    CLI::App* made = tuning->add_subcommand(name, about);
    AddJson(*made, line);
    made->callback([&line, connect, command = std::move(command)] {
      line.run = [connect, command] { return command(connect()); };
    });
    return made;
  };
  add("list", "The entries, one a line",
      [&line](const Connection& c) { return ListTuning(c, line.options.json); });
  add("wanted", "The requests whose plans had no measured time, since tandemd started",
      [&line](const Connection& c) { return ListWantedTuning(c, line.options.json); });
  add("show", "One entry with every candidate",
      [&line](const Connection& c) { return ShowTuning(c, line.tuning_id, line.options.json); })
      ->add_option("id", line.tuning_id, "The entry")
      ->required();
  CLI::App* forget = add(
      "forget", "Drop an entry that was measured on this node, or all of them",
      [&line](const Connection& c) { return ForgetTuning(c, line.tuning_id, line.all, line.options.json); });
  CLI::Option_group* which = forget->add_option_group("which");
  which->add_option("id", line.tuning_id, "The entry");
  which->add_flag("--all", line.all, "All entries that were measured on this node");
  which->require_option(1);
}

}  // namespace

Connection CommandLine::Connect() const {
  return Connection(runtime_dir, admin_dir,
                    std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1000)));
}

void AddCommands(CLI::App& app, CommandLine& line) {
  app.option_defaults()->always_capture_default();
  app.set_version_flag("--version", std::string("tandemctl ") + BuildVersion());
  app.add_option("--runtime-dir", line.runtime_dir,
                 "Directory of the daemon's client.sock (or TANDEM_RUNTIME_DIR)");
  app.add_option("--admin-dir", line.admin_dir,
                 "Directory of the daemon's admin.sock (or TANDEM_ADMIN_DIR); empty: the runtime directory "
                 "with -admin appended");
  app.add_option("--timeout", line.timeout_seconds, "Seconds to wait for an answer")
      ->check(CLI::Range(0.001, 86400.0));
  app.add_flag("--json", line.options.json, "Print JSON; may stand after the command too");
  app.require_subcommand(1);
  app.fallthrough();
  AddDaemonCommands(app, line);
  AddExplain(app, line);
  AddTune(app, line);
  CLI::App* completion = app.add_subcommand("completion", "Print a shell's completion script");
  completion->add_option("shell", line.shell, Listed(ShellNames()))->required();
  completion->callback([&app, &line] {
    line.run = [&app, &line]() -> Status {
      TANDEM_ASSIGN_OR_RETURN(const std::string script, CompletionScript(app, line.shell));
      std::fputs(script.c_str(), stdout);
      return Status::Ok();
    };
  });
  RefuseEmptyNumbers(app);
}

}  // namespace tandem::ctl

// tandemctl: the operators' and the curious' view of tandemd.
//
// Exit status: 0 done, 1 failure, 2 usage, 3 the daemon is not reachable, 4 not found, 5 not permitted, 6
// timed out.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "client/tandemctl/commands.h"
#include "client/tandemctl/completion.h"
#include "client/tandemctl/explain.h"
#include "client/tandemctl/tune.h"
#include "client/tandemctl/tune_options.h"
#include "common/toml/toml_text.h"

namespace {

using namespace tandem::ctl;  // NOLINT: this file is nothing but their assembly
using tandem::Status;

struct CommandLine {
  std::string runtime_dir = "/run/tandem";
  double timeout_seconds = 5;
  CommandOptions options;
  ExplainOptions explain;
  TuneLine tune_line;
  std::string tune_file;
  TuneOptions tune;
  std::string tuning_id;
  bool all = false;
  std::string shell;
  std::function<Status()> run;
};

void AddDaemonCommands(CLI::App& app, CommandLine& line) {
  using Command = Status (*)(const Connection&, const CommandOptions&);
  auto add = [&](const char* name, const char* about, Command command) {
    CLI::App* sub = app.add_subcommand(name, about);
    sub->add_flag("--json", line.options.json, "Print JSON: the fields of admin.proto");
    sub->callback([&line, command] {
      line.run = [&line, command] {
        auto timeout = std::chrono::milliseconds(static_cast<int64_t>(line.timeout_seconds * 1000));
        return command(Connection(line.runtime_dir, timeout), line.options);
      };
    });
    return sub;
  };
  add("topo", "The GPUs, their links and their class", ShowTopology);
  add("doctor", "What is wrong with this node, and what to do; status 1 if something has failed", ShowDoctor);
  add("sessions", "The attached processes", ShowSessions);
  add("groups", "The groups, their ranks and their memory", ShowGroups);
  add("pools", "Each GPU's pool of symmetric memory", ShowPools)
      ->add_flag("--segments", line.options.segments, "List every segment");
  CLI::App* plans =
      add("plans", "The prepared plans with their statistics; with an id its whole explanation", ShowPlans);
  plans->add_option("id", line.options.id, "One plan");
  plans->add_option("--group", line.options.group_id, "Those of one group (its id)");
  plans->add_flag("--programs", line.options.programs, "Print each rank's program");
  plans->add_option("--page", line.options.page, "Go on where a listing was cut: what it said");
  add("queue", "What is in flight on each GPU, since when, for whom, and who is late", ShowQueue);
  add("stats", "The daemon's and the engines' counters", ShowStats);
  CLI::App* top = add("top", "Live rates of engines and plans", ShowTop);
  top->add_flag("--once", line.options.once, "Print one screen and end");
  top->add_option("--interval", line.options.interval_seconds, "Seconds between two screens")
      ->check(CLI::Range(0.1, 3600.0));
  CLI::App* trace = add("trace", "The latest launches of all GPUs as Chrome trace JSON", WriteTrace);
  trace->add_option("-o,--output", line.options.output, "File to write; default is standard output");
  trace->add_option("--last", line.options.last, "Only the last so many launches of each GPU");
  CLI::App* drain = add("drain", "Accept nothing new and wait for the groups to end", Drain);
  drain->add_option("--wait", line.options.drain_seconds, "Seconds to wait")->check(CLI::Range(0.0, 86400.0));
  drain->add_flag("--undo", line.options.undo, "Accept again");
  CLI::App* evict =
      add("evict", "End a session (its process is not killed), or the processes that hold a GPU up", Evict);
  CLI::Option_group* whom = evict->add_option_group("whom");
  whom->add_option("id", line.options.id, "The session");
  whom->add_option("--gpu", line.options.gpu,
                   "End the processes that keep this GPU's engine from starting: index or UUID");
  whom->require_option(1);
  evict->add_flag("--force", line.options.force, "With --gpu: also while the engine waits for nobody");
  add("unfuse", "Start an engine again that is held down after a crash loop", Unfuse)
      ->add_option("gpu", line.options.gpu, "Its GPU: index or UUID")
      ->required();
}

void AddExplain(CLI::App& app, CommandLine& line) {
  CLI::App* sub = app.add_subcommand("explain", "Plan and prove an operation without a daemon, and say why");
  ExplainOptions& explain = line.explain;
  sub->add_option("op", explain.op,
                  "The operation: all_reduce, all_gather_matmul, matmul_reduce_scatter, ...")
      ->required();
  sub->add_option("--shape", explain.shape, "One rank's input, or A: 4096x8192");
  sub->add_option("--b", explain.b_shape, "B: 8192x3584");
  sub->add_option("--dtype", explain.dtype, "f32, f16, bf16, f8e4m3, f8e5m2");
  sub->add_option("--scales", explain.scales, "fp8: tensor_wise (default), row_wise or block_wise");
  sub->add_option("--world", explain.world, "Ranks, 1 to 8");
  sub->add_option("--topology", explain.topology_file, "Topology file (TOML); its first GPUs are the ranks");
  sub->add_option("--algorithm", explain.algorithm, "Ask for this algorithm");
  sub->add_option("--dim", explain.dim, "Gather, scatter or all-to-all dimension");
  sub->add_option("--root", explain.root, "Root of broadcast and reduce");
  sub->add_option("--steps", explain.steps, "Steps of the ring, a multiple of the world size");
  sub->add_option("--lanes", explain.lanes, "Lanes of ring and pipeline");
  sub->add_flag("--b-rows", explain.b_rows,
                "B's rows are contiguous; else its columns, as of a linear layer's weights");
  sub->add_flag("--symmetric", explain.symmetric, "The operands are symmetric tensors");
  sub->add_flag("--exact", explain.exact, "Partial sums travel as fp32");
  sub->add_flag("--slow-accumulation", explain.slow_accumulation,
                "fp8 products are summed in fp32 throughout");
  sub->add_option("--program", explain.program, "List the program of this rank; -2 lists all");
  sub->add_flag("--json", line.options.json, "Print JSON");
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
  const auto connect = [&line] {
    return Connection(line.runtime_dir,
                      std::chrono::milliseconds(static_cast<int64_t>(line.timeout_seconds * 1000)));
  };
  TuneOptions& tune = line.tune;
  CLI::App* sub = app.add_subcommand(
      "tune", "Measure operations' algorithms at given shapes, and let plans choose by it");
  AddTuneLine(sub, &line.tune_line);
  sub->add_option("--from", line.tune_file,
                  "File of cases, each line with the options above; - is standard input")
      ->excludes(sub->get_option("--op"))
      ->excludes(sub->get_option("--shape"));
  sub->add_flag("--wanted", tune.wanted,
                "What plans were made for without a time, on their GPUs (tandemctl tuning wanted)")
      ->excludes(sub->get_option("--op"))
      ->excludes(sub->get_option("--shape"))
      ->excludes(sub->get_option("--from"));
  sub->add_option("--world", tune.world, "Ranks, 2 to 8");
  sub->add_option("--gpus", tune.gpus, "Indexes or UUIDs in rank order; default: the first ones")
      ->delimiter(',');
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
  sub->add_flag("--json", line.options.json, "Print JSON: the fields of admin.proto");
  sub->callback([&line, connect, sub] {
    line.run = [&line, connect, sub]() -> Status {
      std::vector<TuneCase> cases = line.tune_line.Cases();
      if (!line.tune_file.empty()) {
        const std::string file = line.tune_file == "-" ? "/dev/stdin" : line.tune_file;
        TANDEM_ASSIGN_OR_RETURN(const std::string text, tandem::ReadTextFile(file));
        TANDEM_ASSIGN_OR_RETURN(cases, ParseTuneCases(text, line.tune_file));
      } else if (!line.tune.wanted && (cases.empty() || sub->count("--op") == 0)) {
        return tandem::InvalidArgument("--op and --shape say what to measure, or --from FILE, or --wanted");
      }
      return Tune(connect(), line.runtime_dir, cases, line.tune, line.options.json);
    };
  });

  CLI::App* tuning = app.add_subcommand("tuning", "What has been measured");
  tuning->require_subcommand(1);
  const auto add = [&](const char* name, const char* about,
                       std::function<Status(const Connection&)> command) {
    CLI::App* made = tuning->add_subcommand(name, about);
    made->add_flag("--json", line.options.json, "Print JSON: the fields of admin.proto");
    made->callback(
        [&line, connect, command] { line.run = [connect, command] { return command(connect()); }; });
    return made;
  };
  add("list", "The entries, one a line",
      [&line](const Connection& c) { return ListTuning(c, line.options.json); });
  add("wanted", "What plans were made for without a time since tandemd started",
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
  which->add_flag("--all", line.all, "All that was measured on this node");
  which->require_option(1);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("tandemctl: shows and steers Tandem's daemon on this node.", "tandemctl");
  CommandLine line;
  if (const char* directory = std::getenv("TANDEM_RUNTIME_DIR")) line.runtime_dir = directory;
  app.set_version_flag("--version", "tandemctl " TANDEM_VERSION);
  app.add_option("--runtime-dir", line.runtime_dir, "Where the daemon's sockets are (or TANDEM_RUNTIME_DIR)");
  app.add_option("--timeout", line.timeout_seconds, "Seconds to wait for an answer")
      ->check(CLI::Range(0.001, 86400.0));
  app.require_subcommand(1);
  app.fallthrough();
  AddDaemonCommands(app, line);
  AddExplain(app, line);
  AddTune(app, line);
  CLI::App* completion = app.add_subcommand("completion", "Print a shell's completion script");
  completion->add_option("shell", line.shell, "bash, zsh or fish")->required();
  completion->callback([&] {
    line.run = [&]() -> Status {
      auto script = CompletionScript(app, line.shell);
      if (!script.ok()) return script.status();
      std::fputs(script->c_str(), stdout);
      return Status::Ok();
    };
  });
  try {  // CLI11 reports by exceptions
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "tandemctl: %s (tandemctl --help)\n", error.what());
    return kUsage;
  }
  Status status = line.run();
  std::fflush(stdout);
  if (!status.ok()) std::fprintf(stderr, "tandemctl: %s\n", status.message().c_str());
  return ExitCodeOf(status);
}

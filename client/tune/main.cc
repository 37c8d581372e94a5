// tandem-tune-rank: one rank of `tandemctl tune`, which starts it and speaks to it in lines of JSON.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/ranks/json_lines.h"
#include "client/ranks/request_json.h"
#include "client/ranks/worker_process.h"
#include "client/tune/tune_rank.h"
#include "common/cli/arguments.h"

namespace {

using nlohmann::json;
using tandem::Status;

Status Execute(tandem::tune::TuneRank& rank, const json& line, json* reply) {
  const std::string what = line.value("do", "");
  if (what == "start") {
    TANDEM_ASSIGN_OR_RETURN(const tandem::OpRequest request,
                            tandem::RequestFromJson(line.value("request", json::object())));
    return rank.Start(request, line.value("job_key", ""));
  }
  const std::string key = line.value("key", "");
  if (what == "prepare") {
    TANDEM_ASSIGN_OR_RETURN(const tandem::Algorithm algorithm,
                            tandem::ParseAlgorithm(line.value("algorithm", "")));
    return rank.Prepare(key, algorithm, line.value("steps", 0), line.value("lanes", 0), reply);
  }
  if (what == "run") {
    TANDEM_ASSIGN_OR_RETURN((*reply)["us"], rank.Run(key, line.value("launches", 1)));
    return Status::Ok();
  }
  if (what == "release") return rank.Release(key);
  if (what == "end") return rank.End();
  return tandem::InvalidArgument("unknown line " + line.dump());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("One rank of `tandemctl tune`, which starts it.", "tandem-tune-rank");
  tandem::tune::RankOptions options;
  int deadline_ms = 30000;
  app.add_option("--runtime-dir", options.runtime_dir)->required();
  app.add_option("--gpu", options.gpu_uuid)->required();
  app.add_option("--world", options.world)->required();
  app.add_option("--rank", options.rank)->required();
  app.add_option("--deadline-ms", deadline_ms);
  std::vector<std::string> arguments = tandem::cli::Arguments(argc, argv);
  try {  // CLI11 reports by exceptions
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  options.deadline = tandem::Milliseconds(deadline_ms);
  const tandem::UniqueFd out(tandem::kWorkerOut);
  tandem::LineReader in{tandem::UniqueFd(tandem::kWorkerIn)};
  tandem::tune::TuneRank rank(options);
  for (;;) {
    const auto line = in.Next();
    if (!line) {
      if (!in.Fill()) return 1;  // tandemctl has gone
      continue;
    }
    if (line->contains("quit")) return 0;  // whatever state the group is in
    json reply = json::object();
    const Status status = Execute(rank, *line, &reply);
    reply["ok"] = status.ok();
    reply["code"] = static_cast<int>(status.code());
    reply["message"] = status.message();
    reply["reason"] = status.detail().reason;
    if (!tandem::WriteLine(out.get(), reply)) return 1;
  }
}

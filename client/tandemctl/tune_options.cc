#include "client/tandemctl/tune_options.h"

#include <CLI/CLI.hpp>
#include <sstream>

#include "client/tandemctl/names.h"

namespace tandem::ctl {

std::vector<TuneCase> TuneLine::Cases() const {
  std::vector<TuneCase> cases;
  for (const std::string& shape : shapes) {
    cases.push_back(what);
    cases.back().shape = shape;
  }
  return cases;
}

void AddTuneLine(CLI::App* app, TuneLine* line) {
  TuneCase& one = line->what;
  app->add_option("--op", one.what.op, Listed(OpNames()));
  app->add_option("--shape", line->shapes,
                  "MxNxK of the whole product; of a collective one rank's input; one or several")
      ->default_str("");
  app->add_option("--dtype", one.what.dtype, Listed(DTypeNames()));
  app->add_option("--scales", one.scales, "fp8: " + Listed(ScaleNames()) + "; empty: tensor_wise");
  app->add_option("--dim", one.what.dim, "Gather, scatter or all-to-all dimension");
  app->add_flag("--b-rows", one.what.b_rows,
                "B's rows are contiguous; else its columns, as of a linear layer's weights");
  app->add_flag("--symmetric", one.what.symmetric, "The operands are symmetric tensors");
  app->add_flag("--exact", one.what.exact, "Partial sums travel as fp32");
  app->add_flag("--slow-accumulation", one.what.slow_accumulation,
                "fp8 products are summed in fp32 throughout");
  app->add_option("--candidates", one.candidates,
                  "Algorithms, as in ring:8x2,pipeline:x3,unfused (steps x lanes). Empty: all");
}

Result<std::vector<TuneCase>> ParseTuneCases(const std::string& text, const std::string& file) {
  std::vector<TuneCase> cases;
  std::istringstream lines(text);
  std::string words;
  for (int number = 1; std::getline(lines, words); ++number) {
    words.erase(std::min(words.find('#'), words.size()));
    if (words.find_first_not_of(" \t\r") == std::string::npos) continue;
    TuneLine line;
    CLI::App app;
    app.set_help_flag();
    AddTuneLine(&app, &line);
    app.get_option("--op")->required();
    app.get_option("--shape")->required();
    try {
      app.parse(words);
    } catch (const CLI::ParseError& error) {
      return InvalidArgument(file + ":" + std::to_string(number) + ": " + error.what());
    }
    for (TuneCase& one : line.Cases()) cases.push_back(std::move(one));
  }
  if (cases.empty()) return InvalidArgument(file + " has no case to measure");
  return cases;
}

}  // namespace tandem::ctl

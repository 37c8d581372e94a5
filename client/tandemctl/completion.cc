#include "client/tandemctl/completion.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "client/tandemctl/names.h"

namespace tandem::ctl {
namespace {

// The values that a flag or an argument takes.
struct Values {
  enum class Kind { kNone, kWords, kFiles, kDirectories };  // kNone: anything else, a number say
  Kind kind = Kind::kNone;
  std::vector<std::string> words;
};

Values ValuesOf(const std::string& name) {
  if (name == "op") return {Values::Kind::kWords, OpNames()};
  if (name == "algorithm" || name == "candidates") return {Values::Kind::kWords, AlgorithmNames()};
  if (name == "dtype") return {Values::Kind::kWords, DTypeNames()};
  if (name == "determinism") return {Values::Kind::kWords, DeterminismNames()};
  if (name == "rounding") return {Values::Kind::kWords, RoundingNames()};
  if (name == "placement") return {Values::Kind::kWords, PlacementNames()};
  if (name == "scales") return {Values::Kind::kWords, ScaleNames()};
  if (name == "shell") return {Values::Kind::kWords, ShellNames()};
  if (name == "topology" || name == "from" || name == "output") return {Values::Kind::kFiles, {}};
  if (name == "runtime-dir" || name == "admin-dir") return {Values::Kind::kDirectories, {}};
  return {};
}

std::string Joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// "'" within single quotes.
std::string Quoted(const std::string& text) {
  std::string out = "'";
  for (char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

bool TakesValue(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

// A command of the program, or of a command ("tuning list").
struct Command {
  std::string path;  // "tuning list"; "" for the program itself
  const CLI::App* app = nullptr;
  std::vector<std::string> commands;                 // below it
  std::vector<const CLI::Option*> flags, arguments;  // those of the option groups too
};

void AddOptions(const CLI::App& app, Command& command) {
  for (const CLI::Option* option : app.get_options()) {
    (option->get_lnames().empty() && option->get_snames().empty() ? command.arguments : command.flags)
        .push_back(option);
  }
  for (const CLI::App* group : app.get_subcommands(nullptr)) {
    if (group->get_name().empty()) AddOptions(*group, command);
  }
}

void AddCommands(const CLI::App& app, const std::string& path, std::vector<Command>& all) {
  Command command{path, &app, {}, {}, {}};
  AddOptions(app, command);
  std::vector<const CLI::App*> below;
  for (const CLI::App* one : app.get_subcommands(nullptr)) {
    if (one->get_name().empty() || one->get_group().empty()) continue;
    command.commands.push_back(one->get_name());
    below.push_back(one);
  }
  all.push_back(std::move(command));
  for (const CLI::App* one : below)
    AddCommands(*one, path.empty() ? one->get_name() : path + " " + one->get_name(), all);
}

std::vector<Command> CommandsOf(const CLI::App& app) {
  std::vector<Command> all;
  AddCommands(app, "", all);
  return all;
}

std::vector<std::string> FlagWords(const std::vector<const CLI::Option*>& flags) {
  std::vector<std::string> words;
  for (const CLI::Option* option : flags) {
    for (const std::string& name : option->get_lnames()) words.push_back("--" + name);
  }
  return words;
}

// The words that may stand where a command's argument may: commands below it, or its arguments' values.
std::vector<std::string> ArgumentWords(const Command& command) {
  std::vector<std::string> words = command.commands;
  for (const CLI::Option* argument : command.arguments) {
    for (const std::string& word : ValuesOf(argument->get_name()).words) words.push_back(word);
  }
  return words;
}

// Shell code that completes a value of `values`; `words`, `files` and `directories` are code with %s for the
// words.
std::string ValueCode(const Values& values, const std::function<std::string(const std::string&)>& words,
                      const std::string& files, const std::string& directories) {
  switch (values.kind) {
    case Values::Kind::kWords: return words(Joined(values.words));
    case Values::Kind::kFiles: return files;
    case Values::Kind::kDirectories: return directories;
    case Values::Kind::kNone: break;
  }
  return "";
}

std::string Bash(const CLI::App& app) {
  const std::vector<Command> commands = CommandsOf(app);
  std::string steps, words, values;
  std::vector<std::string> valued;  // flags that take a value, each once
  for (const Command& command : commands) {
    for (const std::string& name : command.commands) {
      const std::string path = command.path.empty() ? name : command.path + " " + name;
      steps += "      " + Quoted(command.path + "/" + name) + ") command=" + Quoted(path) + " ;;\n";
    }
    words += "    " + Quoted(command.path) +
             ") words=" + Quoted(Joined(ArgumentWords(command)) + " " + Joined(FlagWords(command.flags))) +
             " ;;\n";
    for (const CLI::Option* option : command.flags) {
      if (!TakesValue(*option)) continue;
      for (const std::string& name : option->get_lnames()) {
        if (std::find(valued.begin(), valued.end(), name) != valued.end()) continue;
        valued.push_back(name);
        const std::string code = ValueCode(
            ValuesOf(name),
            [](const std::string& list) {
              return "COMPREPLY=($(compgen -W " + Quoted(list) + " -- \"$current\"))";
            },
            "COMPREPLY=($(compgen -f -- \"$current\"))", "COMPREPLY=($(compgen -d -- \"$current\"))");
        values += "    --" + name + ") " + (code.empty() ? "COMPREPLY=()" : code) + "; return ;;\n";
      }
    }
  }
  std::string own = Joined(FlagWords(commands.front().flags));
  return "_tandemctl() {\n"
         "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command= word "
         "words\n"
         "  # bash splits --flag=value at the sign.\n"
         "  if [ \"$current\" = = ]; then current=; fi\n"
         "  if [ \"$previous\" = = ]; then previous=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
         "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
         "    case \"$command/$word\" in\n" +
         steps +
         "    esac\n"
         "  done\n"
         "  case $previous in\n" +
         values +
         "  esac\n"
         "  case $command in\n" +
         words +
         "  esac\n"
         "  if [ -n \"$command\" ]; then words=\"$words " +
         own +
         "\"; fi\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
         "}\n"
         "complete -F _tandemctl tandemctl\n";
}

// A condition of fish: the command line has the words of `path` so far.
std::string FishCondition(const Command& command) {
  if (command.path.empty()) return "__fish_use_subcommand";
  std::string condition;
  std::string path = command.path + " ";
  for (size_t space; (space = path.find(' ')) != std::string::npos; path = path.substr(space + 1)) {
    condition += (condition.empty() ? "" : "; and ") + std::string("__fish_seen_subcommand_from ") +
                 path.substr(0, space);
  }
  if (!command.commands.empty())
    condition += "; and not __fish_seen_subcommand_from " + Joined(command.commands);
  return condition;
}

std::string Fish(const CLI::App& app) {
  std::string text = "complete -c tandemctl -f\n";
  const auto value_code = [](const std::string& name) {
    const std::string code = ValueCode(
        ValuesOf(name), [](const std::string& list) { return " -x -a " + Quoted(list); }, " -r -F",
        " -x -a '(__fish_complete_directories)'");
    return code.empty() ? std::string(" -x") : code;
  };
  for (const Command& command : CommandsOf(app)) {
    const std::string line = "complete -c tandemctl -n " + Quoted(FishCondition(command));
    for (const CLI::App* below : command.app->get_subcommands(nullptr)) {
      if (below->get_name().empty() || below->get_group().empty()) continue;
      text += line + " -a " + below->get_name() + " -d " + Quoted(below->get_description()) + "\n";
    }
    for (const CLI::Option* argument : command.arguments) {
      const Values values = ValuesOf(argument->get_name());
      if (values.kind == Values::Kind::kWords) text += line + " -a " + Quoted(Joined(values.words)) + "\n";
    }
    // The program's own flags may stand anywhere.
    const std::string flag_line = command.path.empty() ? std::string("complete -c tandemctl") : line;
    for (const CLI::Option* option : command.flags) {
      for (const std::string& name : option->get_lnames()) {
        text += flag_line + " -l " + name + (TakesValue(*option) ? value_code(name) : "") + " -d " +
                Quoted(option->get_description()) + "\n";
      }
    }
  }
  return text;
}

}  // namespace

Result<std::string> CompletionScript(const CLI::App& app, const std::string& shell) {
  if (shell == "bash") return Bash(app);
  // zsh runs bash's completions after bashcompinit.
  if (shell == "zsh") return "autoload -U +X bashcompinit && bashcompinit\n" + Bash(app);
  if (shell == "fish") return Fish(app);
  return InvalidArgument("no completion for '" + shell + "'; the shells are " + Listed(ShellNames()));
}

}  // namespace tandem::ctl

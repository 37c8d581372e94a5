#include "client/tandemctl/completion.h"

#include <CLI/CLI.hpp>

namespace tandem::ctl {
namespace {

std::string LongFlags(const CLI::App& app) {
  std::string flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) flags += (flags.empty() ? "--" : " --") + name;
  }
  return flags;
}

// "'" within single quotes.
std::string Quoted(const std::string& text) {
  std::string out = "'";
  for (char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string Bash(const CLI::App& app) {
  std::string names, cases;
  for (const CLI::App* command : app.get_subcommands({})) {
    names += (names.empty() ? "" : " ") + command->get_name();
    cases += "    " + command->get_name() + ") words=" + Quoted(LongFlags(*command) + " " + LongFlags(app)) +
             " ;;\n";
  }
  return "_tandemctl() {\n"
         "  local current=${COMP_WORDS[COMP_CWORD]} command= word words\n"
         "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
         "    case \" " +
         names +
         " \" in *\" $word \"*) command=$word; break ;; esac\n"
         "  done\n"
         "  case $command in\n" +
         cases + "    *) words=" + Quoted(names + " " + LongFlags(app)) +
         " ;;\n"
         "  esac\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
         "  [ ${#COMPREPLY[@]} -gt 0 ] || COMPREPLY=($(compgen -f -- \"$current\"))\n"
         "}\n"
         "complete -F _tandemctl tandemctl\n";
}

std::string Fish(const CLI::App& app) {
  std::string text = "complete -c tandemctl -f\n";
  for (const CLI::App* command : app.get_subcommands({})) {
    text += "complete -c tandemctl -n __fish_use_subcommand -a " + command->get_name() + " -d " +
            Quoted(command->get_description()) + "\n";
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames()) {
        text += "complete -c tandemctl -n '__fish_seen_subcommand_from " + command->get_name() + "' -l " +
                name + (option->get_items_expected_max() > 0 ? " -r -F" : "") + " -d " +
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
  return InvalidArgument("no completion for '" + shell + "': bash, zsh or fish");
}

}  // namespace tandem::ctl

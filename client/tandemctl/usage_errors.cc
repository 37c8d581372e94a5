#include "client/tandemctl/usage_errors.h"

#include <CLI/CLI.hpp>
#include <regex>

#include "client/tandemctl/names.h"
#include "common/cli/nearest_name.h"

namespace tandem::ctl {
namespace {

std::vector<const CLI::App*> Commands(const CLI::App& app) {
  std::vector<const CLI::App*> commands;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    // Option groups have no name; old names of commands have no group.
    if (!command->get_name().empty() && !command->get_group().empty()) commands.push_back(command);
  }
  return commands;
}

// The option that `word` ("--timeout", "-o", "--timeout=3") names in `app` or above it; null if none does.
const CLI::Option* FindOption(const CLI::App* app, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  for (; app != nullptr; app = app->get_parent()) {
    if (const CLI::Option* option = app->get_option_no_throw(name)) return option;
  }
  return nullptr;
}

// Flags of a command, of the option groups in it, and of what is above it.
std::vector<std::string> Flags(const CLI::App* app) {
  std::vector<std::string> flags;
  for (; app != nullptr; app = app->get_parent()) {
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
    }
    for (const CLI::App* group : app->get_subcommands(nullptr)) {
      if (!group->get_name().empty()) continue;
      for (const CLI::Option* option : group->get_options()) {
        for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
      }
    }
  }
  return flags;
}

// The command that was parsed: the innermost one.
const CLI::App* Parsed(const CLI::App& app) {
  const CLI::App* innermost = &app;
  for (bool deeper = true; deeper;) {
    deeper = false;
    for (const CLI::App* command : innermost->get_subcommands()) {
      if (command->get_name().empty()) continue;
      innermost = command;
      deeper = true;
      break;
    }
  }
  return innermost;
}

// " tuning forget" of the command `forget` in `tuning`; "" of the program.
std::string PathOf(const CLI::App& command, const CLI::App& app) {
  if (&command == &app) return "";
  return PathOf(*command.get_parent(), app) + " " + command.get_name();
}

}  // namespace

std::string UnknownCommand(const CLI::App& app, const std::vector<std::string>& arguments) {
  const CLI::App* current = &app;
  for (size_t i = arguments.size(); i-- > 0;) {
    const std::string& word = arguments[i];
    if (word == "--") return "";
    if (word.empty()) continue;  // the value of an unknown flag
    if (word.size() > 1 && word.front() == '-') {
      const CLI::Option* option = FindOption(current, word);
      // The next word is this option's value.
      if (option != nullptr && option->get_items_expected_max() > 0 && word.find('=') == std::string::npos &&
          i > 0)
        --i;
      continue;
    }
    const std::vector<const CLI::App*> commands = Commands(*current);
    if (commands.empty()) return "";
    std::vector<std::string> names;
    names.reserve(commands.size());
    const CLI::App* found = nullptr;
    for (const CLI::App* command : commands) names.push_back(command->get_name());
    for (const CLI::App* command : current->get_subcommands(nullptr)) {
      if (command->get_name() == word) found = command;
    }
    if (found == nullptr) {
      const std::string near = cli::DidYouMean(word, names);
      return "unknown command '" + word + "'" + (current == &app ? "" : " of " + current->get_name()) +
             (near.empty() ? "; the commands are " + Listed(names) : near);
    }
    current = found;
  }
  return "";
}

std::string UsageError(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* command = Parsed(app);
  const std::string help = " (tandemctl" + PathOf(*command, app) + " --help)";
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    for (const std::string& word : app.remaining(true)) {
      if (!word.starts_with("-")) return "'" + word + "' was not expected" + help;
      const std::string flag = word.substr(0, word.find('='));
      return "unknown flag '" + flag + "'" + (command == &app ? "" : " of " + command->get_name()) +
             cli::DidYouMean(flag, Flags(command)) + help;
    }
  }
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && !Commands(*command).empty()) {
    std::vector<std::string> names;
    for (const CLI::App* one : Commands(*command)) names.push_back(one->get_name());
    return "a command is missing: " + Listed(names) + help;
  }
  // CLI11's own texts: "Could not convert: id = abc", "Exactly 1 option from [id,--gpu] is required".
  const std::string text = error.what();
  std::smatch parts;
  if (std::regex_match(text, parts, std::regex("Could not convert: (.*) = (.*)"))) {
    return parts[1].str() + ": '" + parts[2].str() + "' is not a valid value" + help;
  }
  if (std::regex_match(text, parts, std::regex(R"(Exactly 1 option from \[(.*),(.*)\] is required)"))) {
    return "give either " + parts[1].str() + " or " + parts[2].str() + help;
  }
  return text + help;
}

}  // namespace tandem::ctl

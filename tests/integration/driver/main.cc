// tandem-test-client: a client process that obeys a test's script. It reads one JSON line a command on
// standard input and writes one a reply on standard output: {"id":N,"ok":true,…} or
// {"id":N,"ok":false,"code":…,"message":…}.

#include <signal.h>

#include <chrono>
#include <iostream>
#include <string>

#include "tests/integration/driver/commands.h"

int main() {
  using tandem::driver::json;
  ::signal(SIGPIPE, SIG_IGN);
  tandem::driver::Session session;
  for (std::string line; std::getline(std::cin, line);) {
    json command = json::parse(line, nullptr, false);
    if (command.is_discarded()) return 2;
    json reply = {{"id", command.value("id", 0)}};
    auto start = std::chrono::steady_clock::now();
    tandem::Status status = session.Execute(command, &reply);
    reply["ms"] = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    reply["ok"] = status.ok();
    if (!status.ok()) {
      reply["code"] = tandem::CodeName(status.code());
      reply["message"] = status.message();
      reply["detail"] = {{"reason", status.detail().reason}, {"who", status.detail().who},
                         {"field", status.detail().field},   {"limit", status.detail().limit},
                         {"usage", status.detail().usage},   {"ranks", status.detail().ranks},
                         {"pid", status.detail().pid},       {"gpu", status.detail().gpu}};
      // null: not known
      const std::optional<bool> started = status.detail().started;
      reply["detail"]["started"] = started.has_value() ? json(*started) : json(nullptr);
    }
    std::cout << reply.dump() << std::endl;
    if (command.value("cmd", "") == "exit") return 0;
  }
  return 0;
}

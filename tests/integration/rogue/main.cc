// tandem-test-rogue: like tandem-test-client, one JSON line a command and one a reply; but it speaks the
// protocol itself, to be able to break it.

#include <signal.h>

#include <iostream>
#include <string>

#include "tests/integration/rogue/rogue.h"

int main() {
  using tandem::rogue::json;
  ::signal(SIGPIPE, SIG_IGN);
  tandem::rogue::Rogue rogue;
  for (std::string line; std::getline(std::cin, line);) {
    json command = json::parse(line, nullptr, false);
    if (command.is_discarded()) return 2;
    json reply = {{"id", command.value("id", 0)}};
    tandem::Status status = rogue.Execute(command, &reply);
    reply["ok"] = status.ok();
    if (!status.ok()) {
      reply["code"] = tandem::CodeName(status.code());
      reply["message"] = status.message();
      reply["detail"] = {{"reason", status.detail().reason},
                         {"who", status.detail().who},
                         {"field", status.detail().field},
                         {"limit", status.detail().limit},
                         {"usage", status.detail().usage}};
    }
    std::cout << reply.dump(-1, ' ', false, json::error_handler_t::replace) << std::endl;
  }
  return 0;
}

// File: page_server.h
//
// The node's page: GET / is the page itself, GET /state.json what it shows (page_state.h). Both only read.
// They show all users' sessions to whoever reaches the address (docs/security.md).
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "daemon/admin/admin_service.h"
#include "daemon/observe/http_server.h"
#include "tandem/status.h"

namespace tandem::daemon {

// `listen` and `security` as for HttpServer. `sources` outlives the server.
Result<std::unique_ptr<HttpServer>> ServePage(const std::string& listen, const AdminSources& sources,
                                              std::shared_ptr<const HttpSecurity> security);

// Whether a request with this Host ("name:port") means this server: an address, localhost, or the host of
// `listen`. A browser on the node that was led here by a stranger's name sends that name: its page must not
// read what a user of the node may read.
bool IsOwnHost(std::string_view host, std::string_view listen);

}  // namespace tandem::daemon

// File: page.h
//
// The text of page.html, which the build embeds (cmake/EmbedFile.cmake).
#pragma once

#include <string_view>

namespace tandem::daemon {

extern const std::string_view kPage;

}  // namespace tandem::daemon

/* File: version.h
 *
 * The version of these headers, and in C++ the versions of the loaded library. In C they are tandem_version()
 * and its neighbours of tandem/c_types.h.
 */
#ifndef TANDEM_VERSION_H_
#define TANDEM_VERSION_H_

/* Of these headers. tandem_version() begins with that of the loaded library, which may be newer. */
#define TANDEM_VERSION_MAJOR 0
#define TANDEM_VERSION_MINOR 1
#define TANDEM_VERSION_PATCH 0

#ifdef __cplusplus

namespace tandem {

// The loaded library's version, with its commit: "0.1.0+0123456789ab". Static text.
__attribute__((visibility("default"))) const char* LibraryVersion() noexcept;
// The version of the protocol that the library speaks with tandemd, which speaks the one before, too.
__attribute__((visibility("default"))) int LibraryProtocolVersion() noexcept;

}  // namespace tandem

#endif

#endif /* TANDEM_VERSION_H_ */

#include "daemon/observe/http_security.h"

#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>
#include <utility>

#include "common/unique_fd.h"
#include "daemon/observe/http_head.h"

namespace tandem::daemon {
namespace {

constexpr size_t kMaxFile = 1 << 20, kMaxPassword = 1024;

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

// OpenSSL's newest cause. Empties its list.
std::string TlsCause() {
  std::array<char, 256> text{};
  const unsigned long code = ERR_peek_last_error();
  if (code != 0) ERR_error_string_n(code, text.data(), text.size());
  ERR_clear_error();
  return code == 0 ? "no cause is known" : text.data();
}

Result<std::string> ReadFile(const std::string& path, bool secret) {
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return SystemError("open " + path, errno);
  struct stat found {};
  if (::fstat(file.get(), &found) != 0) return SystemError("stat " + path, errno);
  if (!S_ISREG(found.st_mode)) return InvalidArgument(path + " is no regular file");
  if (secret &&
      ((found.st_mode & (S_IRWXG | S_IRWXO)) != 0 || (found.st_uid != 0 && found.st_uid != ::geteuid()))) {
    return PermissionDenied(path +
                            " may be read or written by others: chown it to root or tandemd's user, "
                            "and chmod it to 0600");
  }
  std::string text;
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t count = ::read(file.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return SystemError("read " + path, errno);
    if (count == 0) return text;
    text.append(buffer.data(), static_cast<size_t>(count));
    if (text.size() > kMaxFile) return InvalidArgument(path + " is too long");
  }
}

Bio TextBio(const std::string& text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &BIO_free};
}

Status UseCertificates(const std::string& path, const std::string& text, SSL_CTX* context) {
  const Bio bio = TextBio(text);
  const Certificate own(PEM_read_bio_X509_AUX(bio.get(), nullptr, nullptr, nullptr), &X509_free);
  if (own == nullptr || SSL_CTX_use_certificate(context, own.get()) != 1)
    return InvalidArgument(path + " has no certificate that can be used: " + TlsCause());
  for (;;) {
    Certificate next(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr), &X509_free);
    if (next == nullptr) break;
    if (SSL_CTX_add0_chain_cert(context, next.get()) != 1)
      return InvalidArgument(path + " has a certificate that cannot be used: " + TlsCause());
    (void)next.release();  // the context's
  }
  // The end of the list is an error as well.
  if (ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE)
    return InvalidArgument(path + " has a certificate that cannot be read: " + TlsCause());
  ERR_clear_error();
  return Status::Ok();
}

Result<std::shared_ptr<ssl_ctx_st>> LoadTls(const HttpSecurityFiles& files) {
  TANDEM_ASSIGN_OR_RETURN(const std::string certificate, ReadFile(files.certificate, false));
  TANDEM_ASSIGN_OR_RETURN(std::string key_text, ReadFile(files.key, true));
  ERR_clear_error();
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), &SSL_CTX_free);
  if (context == nullptr) return ResourceExhausted("TLS cannot be set up: " + TlsCause());
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                      SSL_MODE_RELEASE_BUFFERS);
  // Nobody is asked for a passphrase: a daemon has no terminal.
  pem_password_cb* const no_passphrase = [](char*, int, int, void*) { return -1; };
  TANDEM_RETURN_IF_ERROR(UseCertificates(files.certificate, certificate, context.get()));
  const Key key(PEM_read_bio_PrivateKey(TextBio(key_text).get(), nullptr, no_passphrase, nullptr),
                &EVP_PKEY_free);
  OPENSSL_cleanse(key_text.data(), key_text.size());
  if (key == nullptr) return InvalidArgument(files.key + " has no key that can be used: " + TlsCause());
  if (SSL_CTX_use_PrivateKey(context.get(), key.get()) != 1 || SSL_CTX_check_private_key(context.get()) != 1)
    return InvalidArgument(files.key + " is not the key of " + files.certificate + ": " + TlsCause());
  return std::shared_ptr<ssl_ctx_st>(context);
}

// All digests have one length. "": none can be made.
std::string Digest(const std::string& text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int length = 0;
  if (EVP_Digest(text.data(), text.size(), digest.data(), &length, EVP_sha256(), nullptr) != 1) return "";
  return {reinterpret_cast<const char*>(digest.data()), length};
}

Result<std::string> LoadPassword(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(std::string password, ReadFile(path, true));
  if (password.ends_with('\n')) password.pop_back();
  if (password.ends_with('\r')) password.pop_back();
  if (password.empty() || password.size() > kMaxPassword || password.find('\n') != std::string::npos)
    return InvalidArgument(path + " must have a password of one line, 1 to " + std::to_string(kMaxPassword) +
                           " bytes");
  return password;
}

}  // namespace

Result<std::shared_ptr<const HttpSecurity>> HttpSecurity::Load(const HttpSecurityFiles& files) {
  auto security = std::make_shared<HttpSecurity>();
  if (!files.certificate.empty()) {
    TANDEM_ASSIGN_OR_RETURN(security->tls_, LoadTls(files));
  }
  if (!files.user.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const std::string password, LoadPassword(files.password));
    security->credentials_ = Digest(files.user + ":" + password);
    if (security->credentials_.empty()) return ResourceExhausted("no digest of the password: " + TlsCause());
  }
  return std::shared_ptr<const HttpSecurity>(std::move(security));
}

bool HttpSecurity::Allows(const std::string& authorization) const {
  if (!has_password()) return true;
  // Digests have one length: how much of a guess is right shows in no time.
  const std::string given = Digest(BasicCredentials(authorization));
  return given.size() == credentials_.size() &&
         CRYPTO_memcmp(given.data(), credentials_.data(), given.size()) == 0;
}

}  // namespace tandem::daemon

// Fuzzes a client's packets on the lease socket: as they are or with a good header, with up to 70
// descriptors. The receiver answers each with a status, and every descriptor is closed at the end.
#include <fcntl.h>
#include <google/protobuf/stubs/logging.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "common/fd_socket.h"
#include "daemon/control/base/transfer_table.h"
#include "daemon/control/base/validate.h"
#include "tandem/v1/tandem.pb.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using namespace tandem;

constexpr size_t kMaxBody = 64 * 1024;
constexpr int kMaxPackets = 16;

// How many descriptors this process has open.
ptrdiff_t OpenDescriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator());
}

// Whether as many are open as `before`, now or soon: a sanitizer's checks in a thread that has just started
// hold a pipe for a moment. For the same reason `before` is counted once, when there are no threads yet.
bool ComesBackTo(ptrdiff_t before) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (OpenDescriptors() != before) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

// Sends `bytes` as one packet, without the framing that SendMessage adds.
void SendRaw(int socket, std::string_view bytes, int fds) {
  std::string body(bytes);
  iovec part{body.data(), body.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  std::vector<char> control(CMSG_SPACE(static_cast<size_t>(fds) * sizeof(int)));
  if (fds > 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(static_cast<size_t>(fds) * sizeof(int));
    const std::vector<int> copies(static_cast<size_t>(fds), socket);
    std::memcpy(CMSG_DATA(c), copies.data(), copies.size() * sizeof(int));
  }
  ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Handle(FdMessage received, daemon::TransferTable& transfers) {
  v1::LeaseMessage message;
  if (!message.ParseFromString(received.body)) return;
  if (message.has_attach()) {
    const v1::AttachRequest& attach = message.attach();
    if (daemon::ValidateAttach(attach).ok()) {
      fuzz::Expect(attach.name().size() <= 128 && attach.protocol_min() <= attach.protocol_max(),
                   "a bad attach passed");
    }
  }
  if (message.has_transfer()) {
    const v1::FdTransfer& part = message.transfer();
    transfers.Add(part.transfer_id(), part.index(), part.total(), std::move(received.fds)).ok();
    const daemon::Waiter now = daemon::Waiter::For(std::chrono::milliseconds(0));
    Result<daemon::ForeignFds> claimed = transfers.Claim(part.transfer_id(), now);
    if (!claimed.ok()) return;
    fuzz::Expect(!claimed->empty() && claimed->size() <= daemon::kMaxTransferFds, "a claim of an odd size");
    for (size_t i = 0; i < claimed->size(); ++i) fuzz::Expect((*claimed)[i].valid(), "a claim with a hole");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  google::protobuf::SetLogHandler(nullptr);
  fuzz::FuzzInput input(data, size);
  static const ptrdiff_t before = OpenDescriptors();
  {
    auto sockets = SeqpacketPair();
    const int sender = sockets->first.get(), receiver = sockets->second.get();
    ::fcntl(receiver, F_SETFL, O_NONBLOCK);
    daemon::TransferTable transfers(4);
    for (int i = 0; i < kMaxPackets && !input.Empty(); ++i) {
      const uint8_t how = input.Byte();
      const int fds = input.Byte() % 71;
      std::string body(input.TakeBlock());
      // One in four grows past what fits in a packet: it travels in a memfd.
      if ((how & 6) == 6) body.resize(kInlineBytes + body.size() % kInlineBytes, 'x');
      if (how & 1) {
        SendMessage(sender, body, std::vector<int>(static_cast<size_t>(fds), sender), false).ok();
      } else {
        SendRaw(sender, body, fds);
      }
      for (;;) {
        Result<FdMessage> received = ReceiveMessage(receiver, kMaxBody);
        if (!received.ok()) {
          if (received.status().detail().reason == "WOULD_BLOCK") break;
          continue;  // a server drops the client here; the fuzzer goes on
        }
        Handle(std::move(*received), transfers);
      }
    }
  }
  while (daemon::ClosesUnderWay() > 0) std::this_thread::yield();
  fuzz::Expect(ComesBackTo(before), "descriptors leaked");
  return 0;
}

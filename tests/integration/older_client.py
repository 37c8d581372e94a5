"""A client of protocol 1, by its protocol alone: messages by tests/fixtures/protocol-1 (encoded and decoded by protoc), the lease
socket and the channel's bytes as they were then. Nothing here follows the tree: what changes there must not be needed here.

Only gRPC itself is another's: tandem-test-rogue passes bytes on.
"""

import ctypes
import fcntl
import mmap
import os
import platform
import re
import socket
import struct
import subprocess
import time

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
FIXTURE = os.path.join(ROOT, "tests/fixtures/protocol-1")
MAGIC = b"MDNT"
# A channel's memory, version 5.
VERSION = 5
PRODUCER, CONSUMER, SLEEPING, SLOTS, ENTRY_BYTES = 64, 128, 192, 4096, 512
REQUEST, DONE, FAILURES, RELEASED, RECORDS, RECORD_BYTES = 64, 128, 192, 256, 49152, 256
FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine())


def protoc(action, message, data):
    done = subprocess.run(
        ["protoc", f"-I{FIXTURE}", f"--{action}=tandem.v1.{message}", "tandem/v1/tandem.proto"],
        input=data,
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        raise AssertionError(f"{message}: {done.stderr.decode()}")
    return done.stdout


def encode(message, text):
    return protoc("encode", message, text.encode())


def decode(message, data):
    """In protobuf's text format. Fields that protocol 1 does not have are numbers there."""
    return protoc("decode", message, data).decode()


def field(text, name):
    """A number, or a string, of a decoded message."""
    found = re.search(rf'\b{name}: (?:"((?:[^"\\]|\\.)*)"|(-?\d+))', text)
    if found is None:
        return 0
    return int(found.group(2)) if found.group(1) is None else found.group(1)


def octal(text):
    """The bytes of a string in text format."""
    return text.encode("latin1").decode("unicode_escape").encode("latin1")


def sealed_memory(size):
    fd = os.memfd_create("older-client", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd


class OlderClient:
    """One session. `rogue` is a separate running tandem-test-rogue, for gRPC."""

    def __init__(self, runtime_dir, rogue, name="older"):
        self.rogue = rogue
        rogue.call("connect", runtime_dir=runtime_dir)
        self.lease = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.lease.settimeout(20)
        self.lease.connect(os.path.join(runtime_dir, "lease.sock"))
        self.transfers = {}
        self.next_transfer = 1
        self.say(f'attach {{ protocol_min: 1 protocol_max: 1 client_version: "0.1.0" name: "{name}" }}')
        self.attached, fds = self.hear()
        assert not fds
        self.token = octal(field(self.attached, "token")).hex()
        self.gpus = re.findall(r'uuid: "([^"]+)"', self.attached)

    def close(self):
        self.lease.close()

    def say(self, text, fds=()):
        body = encode("LeaseMessage", text)
        socket.send_fds(self.lease, [MAGIC + bytes(4) + struct.pack("<Q", len(body)) + body], list(fds))

    def hear(self):
        data, fds, _, _ = socket.recv_fds(self.lease, 1 << 16, 64)
        assert data[:4] == MAGIC and data[4:8] == bytes(4), data[:16]
        return decode("LeaseMessage", data[16 : 16 + struct.unpack_from("<Q", data, 8)[0]]), fds

    def send_memory(self, fd):
        transfer = self.next_transfer
        self.next_transfer += 1
        self.say(f"transfer {{ transfer_id: {transfer} index: 0 total: 1 }}", [fd])
        return transfer

    def take(self, transfer):
        while transfer not in self.transfers:
            text, fds = self.hear()
            self.transfers.setdefault(field(text, "transfer_id"), []).extend(fds)
        return self.transfers.pop(transfer)

    def send(self, method, text=""):
        """Begins a call; `reply` waits for its end."""
        body = encode(f"{method}Request", text)
        call = self.rogue.send("call", method=f"/tandem.v1.Tandem/{method}", hex=body.hex(), token=self.token)
        return method, call

    def reply(self, begun):
        method, call = begun
        return decode(f"{method}Reply", bytes.fromhex(self.rogue.reply(call).get("hex", "")))

    def call(self, method, text=""):
        return self.reply(self.send(method, text))


class OlderChannel:
    """A ring and its words, written as protocol 1 has them."""

    def __init__(self, client, gpu, entries=16):
        reply = client.call("OpenChannel", f'gpu_uuid: "{gpu}" entries: {entries}')
        ring, words = client.take(field(reply, "transfer_id"))
        self.entries = entries
        self.ring = mmap.mmap(ring, SLOTS + entries * ENTRY_BYTES)
        self.words = mmap.mmap(words, RECORDS + entries * RECORD_BYTES)
        os.close(ring)
        os.close(words)
        assert struct.unpack_from("<II", self.ring, 4) == (VERSION, entries)
        assert struct.unpack_from("<II", self.words, 4) == (VERSION, entries)
        self.sequence = 0

    def launch(self, plan, bindings, generation):
        """Pushes a launch, and reaches it as a stream does."""
        self.sequence += 1
        producer = struct.unpack_from("<Q", self.ring, PRODUCER)[0]
        entry = struct.pack("<QQQQQIiII", plan, self.sequence, generation, 0, 0, 0, -1, len(bindings), 0)
        entry += b"".join(struct.pack("<QQ", registration, 0) for registration in bindings)
        at = SLOTS + producer % self.entries * ENTRY_BYTES
        self.ring[at : at + len(entry)] = entry
        struct.pack_into("<Q", self.ring, PRODUCER, producer + 1)
        struct.pack_into("<I", self.ring, SLEEPING, 0)
        sleeping = ctypes.c_uint32.from_buffer(self.ring, SLEEPING)
        ctypes.CDLL(None).syscall(FUTEX, ctypes.byref(sleeping), 1, 2**31 - 1, None, None, 0)
        struct.pack_into("<Q", self.words, REQUEST, self.sequence)

    def wait(self, patience=30):
        """The canonical code of the last launch, and its reason."""
        deadline = time.monotonic() + patience
        while struct.unpack_from("<Q", self.words, DONE)[0] < self.sequence:
            assert time.monotonic() < deadline, "the launch does not end"
            time.sleep(0.001)
        at = RECORDS + self.sequence % self.entries * RECORD_BYTES
        _, sequence, cause, _ = struct.unpack_from("<QQQQ", self.words, at)
        assert sequence == self.sequence, (sequence, self.sequence)
        reason = bytes(self.words[at + 32 : at + 56]).split(b"\0")[0].decode()
        return cause & 0xFF, reason

"""Protocol N-1: a client of the version before is served by today's tandemd, over the lease socket, by gRPC and by a channel; and
nothing of its messages, methods and numbers has changed."""

import json
import mmap
import os
import re
import shutil
import struct
import subprocess
import tempfile
import unittest

from harness import TandemTest, host_only
from older_client import FIXTURE, FUTEX, ROOT, OlderChannel, OlderClient, encode, field, sealed_memory
from test_rogue import Rogue

NUMBERS = os.path.join(FIXTURE, "numbers.json")
HEADERS = ("element_type.h", "op_request.h", "status.h")
COUNT = 1024
OK, ABORTED, UNAVAILABLE = 0, 10, 14


def descriptors(folder, *files):
    """protoc's reading of the files: {"message/field" or "service/method": its number, type and label}."""
    with tempfile.NamedTemporaryFile(suffix=".pb") as file:
        subprocess.run(["protoc", f"-I{folder}", f"--descriptor_set_out={file.name}", *files], check=True)
        text = subprocess.run(
            ["protoc", "--decode=google.protobuf.FileDescriptorSet", "google/protobuf/descriptor.proto"],
            stdin=file,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    found, path = {}, []
    # Blocks are closed in the order of their ends: the name of a block is its first `name:`.
    for line in text.splitlines():
        line = line.strip()
        if line.endswith("{"):
            path.append({"kind": line[:-1].strip(), "name": None, "facts": {}})
        elif line == "}":
            block = path.pop()
            if block["kind"] in ("field", "value", "method"):
                owners = "/".join(outer["name"] for outer in path if outer["name"])
                found[f"{owners}/{block['name']}"] = block["facts"]
        else:
            key, value = line.split(": ", 1)
            value = value.strip('"')
            if key == "name":
                path[-1]["name"] = path[-1]["name"] or value.rsplit("/", 1)[-1]
            elif key in ("number", "label", "type", "type_name", "input_type", "output_type", "server_streaming"):
                path[-1]["facts"][key] = value
    return found


def numbers(folder):
    """The enumerations of public headers, which messages carry as numbers."""
    found = {}
    for header in HEADERS:
        with open(os.path.join(folder, header)) as file:
            text = re.sub(r"//.*", "", file.read())
        for name, body in re.findall(r"enum class (\w+)[^{;]*\{([^}]*)\}", text):
            found[name] = {key: int(value) for key, value in re.findall(r"(k\w+) = (\d+)", body)}
    return found


def broken(old, new):
    """Entries that `new` has otherwise than `old`, or not at all."""
    return {key: (facts, new.get(key)) for key, facts in old.items() if new.get(key) != facts}


FILES = ("tandem/v1/types.proto", "tandem/v1/tandem.proto")


@unittest.skipUnless(shutil.which("protoc"), "needs protoc")
class Messages(unittest.TestCase):
    maxDiff = None

    def test_no_field_method_or_value_has_changed(self):
        old = descriptors(FIXTURE, *FILES)
        self.assertGreater(len(old), 150)
        self.assertEqual(old["tandem.proto/LeaseMessage/attach"]["number"], "1")
        self.assertIn("tandem.proto/Tandem/Prepare", old)
        self.assertEqual(broken(old, descriptors(os.path.join(ROOT, "proto"), *FILES)), {})

    def test_changes_are_found(self):
        old = descriptors(FIXTURE, *FILES)
        for before, after, key in (
            ("uint64 session_id = 2;", "uint64 session_id = 12;", "AttachReply/session_id"),
            ("uint32 hardware_queues = 9;", "uint64 hardware_queues = 9;", "AttachReply/hardware_queues"),
            ("repeated Offer offers = 6;", "Offer offers = 6;", "JoinGroupReply/offers"),
            ("rpc Detach(DetachRequest)", "rpc Leave(DetachRequest)", "Tandem/Detach"),
            ("RANK_LOST = 1;", "RANK_LOST = 8;", "Event/Kind/RANK_LOST"),
        ):
            with self.subTest(change=after), tempfile.TemporaryDirectory() as folder:
                shutil.copytree(FIXTURE, folder, dirs_exist_ok=True)
                path = os.path.join(folder, FILES[1])
                with open(path) as file:
                    text = file.read()
                self.assertIn(before, text)
                with open(path, "w") as file:
                    file.write(text.replace(before, after, 1))
                self.assertIn(f"tandem.proto/{key}", broken(old, descriptors(folder, *FILES)))

    def test_no_number_of_a_public_enumeration_has_changed(self):
        with open(NUMBERS) as file:
            old = json.load(file)
        new = numbers(os.path.join(ROOT, "common/include/tandem"))
        self.assertEqual(
            {name: broken(values, new.get(name, {})) for name, values in old.items()}, dict.fromkeys(old, {})
        )


@unittest.skipUnless(shutil.which("protoc") and FUTEX, "needs protoc, on x86-64 or arm64")
@host_only("the older client has no GPU's memory")
class OlderClients(TandemTest):
    gpus = 2
    # The node asks for plans in clients: an older client must not get one.
    extra = ("--placement", "client", "--restart-grace-ms", "20000")

    def older(self, name="older"):
        client = OlderClient(self.daemon.runtime_dir, Rogue(self.daemon), name)
        self.addCleanup(client.close)
        return client

    def memory(self, client, gpu):
        """Registered memory of COUNT floats: the registration's id and the mapping."""
        fd = sealed_memory(COUNT * 4)
        transfer = client.send_memory(fd)
        reply = client.call(
            "RegisterTensor",
            f'gpu_uuid: "{client.gpus[gpu]}" bytes: {COUNT * 4} transfer_id: {transfer} chunk_bytes: {COUNT * 4}',
        )
        mapping = mmap.mmap(fd, COUNT * 4)
        os.close(fd)
        return field(reply, "registration_id"), mapping

    def join(self, clients, name="tp", **_):
        calls = [
            client.send(
                "JoinGroup",
                f'job_key: "0123456789abcdef" name: "{name}" world_size: {len(clients)} rank: {rank} '
                f'gpu_uuid: "{client.gpus[rank]}" deadline_ms: 20000',
            )
            for rank, client in enumerate(clients)
        ]
        return [client.reply(call) for client, call in zip(clients, calls)]

    def prepare(self, clients, group):
        operand = f"spec {{ dtype: 0 shape: {COUNT} }} alias_of: -1"
        text = (
            f'group_id: {group} key: "ar" deadline_ms: 20000 request {{ op: 1 fast_accumulation: true on_unfused: 1 operands {{ role: 1 {operand} }} '
            f"operands {{ role: 2 {operand} }} }}"
        )
        calls = [client.send("Prepare", text) for client in clients]
        return [client.reply(call) for client, call in zip(clients, calls)]

    def fill(self, mapping, rank):
        mapping[:] = struct.pack(f"<{COUNT}f", *((rank + 1.0) * (i % 64) for i in range(COUNT)))

    def sums(self, mapping, world):
        return struct.unpack(f"<{COUNT}f", mapping[:]) == tuple(
            world * (world + 1) / 2 * (i % 64) for i in range(COUNT)
        )

    def test_a_whole_job(self):
        clients = [self.older() for _ in range(2)]
        for client in clients:
            self.assertEqual((field(client.attached, "protocol"), field(client.attached, "backend")), (1, "host"))
        joined = self.join(clients)
        (group,) = {field(reply, "group_id") for reply in joined}
        generation = field(joined[0], "generation")
        inputs = [self.memory(client, rank) for rank, client in enumerate(clients)]
        outputs = [self.memory(client, rank) for rank, client in enumerate(clients)]
        prepared = self.prepare(clients, group)
        for reply in prepared:
            # Unknown fields are shown by their numbers: 2 would be a plan for the client to launch.
            self.assertNotRegex(reply, r"^2 \{")
            self.assertRegex(reply, r'placement: "engine: the client of rank 0 speaks protocol 1')
        plan = field(prepared[0], "plan_id")
        channels = [OlderChannel(client, client.gpus[rank]) for rank, client in enumerate(clients)]
        for _ in range(20):
            for rank, channel in enumerate(channels):
                self.fill(inputs[rank][1], rank)
                outputs[rank][1][:] = bytes(COUNT * 4)
                channel.launch(plan, [inputs[rank][0], outputs[rank][0]], generation)
            for rank, channel in enumerate(channels):
                self.assertEqual(channel.wait(), (OK, ""))
                self.assertTrue(self.sums(outputs[rank][1], 2))
        # The same without a stream.
        launches = []
        for rank, client in enumerate(clients):
            outputs[rank][1][:] = bytes(COUNT * 4)
            bindings = " ".join(
                f"bindings {{ registration_id: {slot} }}" for slot in (inputs[rank][0], outputs[rank][0])
            )
            reply = client.call("Launch", f"plan_id: {plan} {bindings} generation: {generation}")
            launches.append(field(reply, "launch_id"))
        for client, launch in zip(clients, launches):
            client.call("WaitLaunch", f"launch_id: {launch} deadline_ms: 20000")
        for _, mapping in outputs:
            self.assertTrue(self.sums(mapping, 2))
        for rank, client in enumerate(clients):
            client.call("Deregister", f"registration_id: {inputs[rank][0]}")
            client.call("ReleasePlan", f"plan_id: {plan}")
        calls = [client.send("LeaveGroup", f"group_id: {group} deadline_ms: 20000") for client in clients]
        for client, call in zip(clients, calls):
            client.reply(call)
            client.call("Detach")
        self.assertEqual(self.daemon.ctl_json("stats")["sessions"], 0)

    def test_beside_a_client_of_today(self):
        older = self.older()
        today = self.daemon.client("today")
        today.connect()
        joining = today.send("join", name="tp", job_key=self.job_key, world=2, rank=1, group="tp")
        begun = older.send(
            "JoinGroup",
            f'job_key: "{self.job_key}" name: "tp" world_size: 2 rank: 0 gpu_uuid: "{older.gpus[0]}" deadline_ms: 20000',
        )
        joined = older.reply(begun)
        today.reply(joining)
        for name in ("ar.in", "ar.out"):
            today.call("register", group="tp", memory=name, bytes=COUNT * 4)
        source, target = self.memory(older, 0), self.memory(older, 0)
        operand = {"dtype": "f32", "shape": [COUNT]}
        preparing = today.send(
            "prepare",
            group="tp",
            key="ar",
            plan="ar",
            request={"op": "all_reduce", "operands": [{"role": "input", **operand}, {"role": "output", **operand}]},
        )
        (prepared,) = self.prepare([older], field(joined, "group_id"))
        self.assertIn("speaks protocol 1", today.reply(preparing)["plan"]["placement"])
        channel = OlderChannel(older, older.gpus[0])
        self.fill(source[1], 0)
        today.call("fill", memory="ar.in", base=0, step=2)
        today.call("launch", plan="ar", bindings=[["ar.in", 0], ["ar.out", 0]])
        channel.launch(field(prepared, "plan_id"), [source[0], target[0]], field(joined, "generation"))
        self.assertEqual(channel.wait(), (OK, ""))
        today.call("sync")
        today.call("wait", plan="ar")
        self.assertTrue(self.sums(target[1], 2))
        # It ends, and today's client hears which rank that was.
        older.close()
        reply = today.call("launch", plan="ar", bindings=[["ar.in", 0], ["ar.out", 0]], check=False)
        if reply["ok"]:
            today.call("sync", check=False)
            reply = today.call("wait", plan="ar", check=False)
        self.assertIn(reply["detail"]["reason"], ("RANK_LOST", "RANK_LEFT"), reply)

    def test_an_engine_that_ends_is_told_on_the_channel(self):
        clients = [self.older() for _ in range(2)]
        joined = self.join(clients)
        memory = [[self.memory(client, rank) for _ in range(2)] for rank, client in enumerate(clients)]
        prepared = self.prepare(clients, field(joined[0], "group_id"))
        channels = [OlderChannel(client, client.gpus[rank]) for rank, client in enumerate(clients)]
        channels[1].launch(
            field(prepared[0], "plan_id"), [each[0] for each in memory[1]], field(joined[0], "generation")
        )
        self.daemon.kill_engine(0)
        self.assertEqual(channels[1].wait(), (ABORTED, "ENGINE_RESTARTED"))

    def test_other_versions_are_refused_with_both_ranges(self):
        for low, high, advice in ((3, 9, "upgrade the daemon"), (0, 0, "the client is too old")):
            rogue = Rogue(self.daemon)
            failure = self.assertFails("FAILED_PRECONDITION", rogue.attach, min=low, max=high)
            self.assertEqual(failure.detail["reason"], "PROTOCOL")
            self.assertIn(f"protocols {low} to {high}, this daemon speaks 1 to 2", failure.message)
            self.assertIn(advice, failure.message)

    def test_a_field_of_a_newer_version_is_passed_over(self):
        """Requests may have fields that this tandemd does not know."""
        client = self.older()
        unknown = bytes.fromhex("fa0f03") + b"new"  # field 255
        empty = encode("EmptyRequest", f'spec {{ dtype: 0 shape: 16 }} gpu_uuid: "{client.gpus[0]}"') + unknown
        client.rogue.call("call", method="/tandem.v1.Tandem/Empty", hex=empty.hex(), token=client.token)


if __name__ == "__main__":
    unittest.main()

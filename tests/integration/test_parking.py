"""Parked launches with real processes: on the engines' lanes before the ranks' streams have reached them. Results are right at any
pace, and whatever is late, leaves or dies ends them as it ends others."""

import os
import signal
import threading
import time
import unittest

from harness import CUDA, TandemTest, everybody, host_only, wait_until

MOST_RANKS = 4
BINDINGS = [["ar.in", 0], ["ar.out", 0]]
PARKED = {"parking": "auto"}
OPS = (("all_reduce", {}), ("all_gather", {}), ("reduce_scatter", {}), ("broadcast", {"root": 1}), ("reduce", {"root": 1}),
       ("all_to_all", {}))


def rows_of(op, role, world, rows=8):
    """How many rows the operand of a collective has, if a rank's input has `rows`."""
    if role == "output" and op == "all_gather":
        return rows * world
    if role == "output" and op == "reduce_scatter":
        return rows // world
    return rows


class Parking(TandemTest):
    extra = ("--supervisor-crash-loop-count", "100", "--supervisor-backoff-max-ms", "100")

    def parked_group(self, world=2, options=None, **arguments):
        return self.group(world, options=PARKED if options is None else options, **arguments)

    def parked_all_reduce(self, world=2, name="tp", **arguments):
        """A group whose all-reduce waits on the lanes of all ranks."""
        clients = self.parked_group(world, name=name, **arguments)
        self.all_reduce_plan(clients, group=name)
        self.park(clients)
        return clients

    def queue(self):
        return self.daemon.ctl_json("queue")["entries"]

    def await_parked(self, launches):
        wait_until(lambda: [e["state"] for e in self.queue()] == ["parked"] * launches, 60,
                   f"never {launches} launches parked")

    def park(self, clients, key="ar", **arguments):
        """A launch of all ranks that is parked on all GPUs; their streams stand still before it."""
        everybody(clients, "pause")
        everybody(clients, "launch", plan=key, bindings=[[f"{key}.in", 0], [f"{key}.out", 0]], **arguments)
        self.await_parked(len(clients))

    def outcome(self, client, key="ar"):
        client.call("sync", deadline_ms=60000)
        return client.call("wait", plan=key, check=False)

    def test_a_plan_says_whether_its_launches_are_parked(self):
        clients = self.parked_group()
        self.assertEqual(self.all_reduce_plan(clients)[0]["plan"]["parking"], "where it is allowed")
        reply = self.prepare_all_reduce(clients, key="nccl", algorithm="nccl")[0]["plan"]
        self.assertEqual(reply["parking"], "never: NCCL cannot be called off")
        text = self.daemon.ctl("plans", str(reply["plan_id"])).stdout
        self.assertIn("NCCL cannot be called off", text)
        unparked = self.group(2, name="off", job_key="another-job-key-1")
        self.assertEqual(self.all_reduce_plan(unparked, group="off")[0]["plan"]["parking"], "off")

    def test_the_option_is_checked(self):
        client = self.daemon.client()
        client.connect()
        failure = self.assertFails("INVALID_ARGUMENT", client.call, "join", world=1, rank=0, options={"parking": "on"})
        self.assertIn("auto, off", failure.message)

    def test_all_operations_of_two_ranks(self):
        self.check_all_operations(2)

    def test_all_operations_of_four_ranks(self):
        self.check_all_operations(4)

    def check_all_operations(self, world):
        clients = self.parked_group(world)
        for op, extra in OPS:
            with self.subTest(op=op):
                self.check_parked(clients, op, extra, "tp")

    def check_parked(self, clients, op, extra, group):
        """Three launches of `op`: parked, with inputs that are written while it is; as a launch that is not parked has them."""
        world, columns = len(clients), 16
        key = op
        operands = [{"role": role, "dtype": "f32", "shape": [rows_of(op, role, world), columns]} for role in ("input", "output")]
        for operand in operands:
            everybody(clients, "register", group=group, memory=f"{key}.{operand['role']}",
                      bytes=operand["shape"][0] * columns * 4)
        plan = everybody(clients, "prepare", group=group, key=key, plan=key,
                         request={"op": op, "operands": operands, **extra})[0]["plan"]
        may_park = plan["parking"] == "where it is allowed"
        self.assertTrue(may_park or CUDA, plan["parking"])
        bindings = [[f"{key}.input", 0], [f"{key}.output", 0]]
        count = operands[1]["shape"][0] * columns

        def results(base, park):
            everybody(clients, "fill", memory=f"{key}.output", base=-1)
            everybody(clients, "fill", memory=f"{key}.input", base=-7)
            if park:
                everybody(clients, "pause")
                everybody(clients, "launch", plan=key, bindings=bindings)
                if may_park:
                    self.await_parked(world)
            for rank, client in enumerate(clients):
                client.call("fill", memory=f"{key}.input", base=base + rank, step=1)
            if park:
                everybody(clients, "resume")
            else:
                everybody(clients, "launch", plan=key, bindings=bindings)
            everybody(clients, "sync")
            everybody(clients, "wait", plan=key)
            return [client.call("read", memory=f"{key}.output", count=count)["values"] for client in clients]

        for base in (1, 5):
            self.assertEqual(results(base, True), results(base, False))

    def test_a_late_rank_is_named_and_ends_by_the_deadline(self):
        clients = self.parked_group(launch_deadline_ms=5000)
        self.all_reduce_plan(clients)
        everybody(clients, "fill", memory="ar.out", base=-3)
        self.park(clients)
        clients[0].call("resume")
        wait_until(lambda: any(e["kind"] == "late" for e in clients[0].call("events")["events"]), 20)
        self.assertEqual([e["late_ranks"] for e in self.queue() if e["late_ranks"]][:1], [[1]])
        reply = self.outcome(clients[0])
        self.assertEqual(reply["code"], "DEADLINE_EXCEEDED", reply)
        self.assertIn("rank 1 had not arrived", reply["message"])
        for client in clients:
            self.assertEqual(client.call("read", memory="ar.out", count=256)["values"], [-3.0] * 256)
        clients[1].call("resume")
        self.assertEqual(self.outcome(clients[1])["code"], "DEADLINE_EXCEEDED")
        for _ in range(3):
            self.check_all_reduce(clients)

    def test_a_client_is_killed(self):
        for arrived in (0, 1):
            with self.subTest(arrived=arrived):
                clients = self.parked_all_reduce(name=f"killed{arrived}")
                if arrived:
                    clients[0].call("resume")
                clients[1].kill()
                clients[0].call("resume")
                reply = self.outcome(clients[0])
                self.assertEqual(reply["code"], "UNAVAILABLE", reply)
                self.assertIn("rank 1", reply["message"])
                wait_until(lambda: self.queue() == [])
                clients[0].close()
                wait_until(lambda: self.daemon.ctl_json("stats")["groups"] == 0)

    def test_an_engine_is_killed_and_the_group_goes_on(self):
        for gpu in (0, 1):
            with self.subTest(gpu=gpu):
                clients = self.parked_all_reduce(name=f"engine{gpu}")
                clients[0].call("resume")
                self.daemon.kill_engine(gpu)
                everybody(clients, "resume")
                for client in clients:
                    self.assertEqual(self.outcome(client)["code"], "ABORTED")
                self.daemon.wait_engines()
                self.park(clients)
                everybody(clients, "resume")
                for client in clients:
                    self.assertTrue(self.outcome(client)["ok"])
                self.check_all_reduce(clients)
                everybody(clients, "detach")
                wait_until(lambda: self.daemon.ctl_json("stats")["groups"] == 0)

    def test_tandemd_is_killed(self):
        clients = self.parked_all_reduce()
        clients[0].call("resume")
        engines = self.daemon.engine_pids()
        self.daemon.process.kill()
        self.daemon.process.wait()
        for client in clients:
            client.call("resume")
            self.assertFalse(self.outcome(client)["ok"])
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in engines), 30, "engines stay")

    def test_a_stopped_engine_ends_the_launch_by_its_deadline(self):
        clients = self.parked_all_reduce(launch_deadline_ms=1000)
        stopped = self.daemon.engine_pids()[1]
        os.kill(stopped, signal.SIGSTOP)
        try:
            clients[0].call("resume")
            reply = self.outcome(clients[0])
            self.assertEqual(reply["code"], "DEADLINE_EXCEEDED", reply)
        finally:
            wait_until(lambda: stopped not in self.daemon.engine_pids(), 30, "the stopped engine stays")
        self.daemon.wait_engines()

    def test_a_rank_does_not_leave_before_its_launches_have_ended(self):
        clients = self.parked_all_reduce()
        self.assertFails("DEADLINE_EXCEEDED", clients[1].call, "leave", deadline_ms=300)
        everybody(clients, "resume")
        for client in clients:
            self.assertTrue(self.outcome(client)["ok"])
        clients[1].call("leave")
        clients[0].call("launch", plan="ar", bindings=BINDINGS)
        reply = self.outcome(clients[0])
        self.assertEqual(reply["code"], "UNAVAILABLE", reply)
        self.assertIn("rank 1 has left", reply["message"])

    def test_a_second_group_waits_for_the_parked_launch_and_ends_parking(self):
        clients = self.parked_all_reduce(4)
        others = [self.daemon.client(f"other{rank}") for rank in range(2)]
        for other in others:
            other.connect()
        self.join(others, name="others", job_key="another-job-key-1")
        everybody(others, "register", group="others", memory="ar.in", bytes=1024)
        everybody(others, "register", group="others", memory="ar.out", bytes=1024)
        # Kernels are loaded for a plan only when no lane waits for ranks.
        operand = {"dtype": "f32", "shape": [256]}
        prepares = [other.send("prepare", group="others", key="ar", plan="ar", request={
            "op": "all_reduce", "operands": [{"role": "input", **operand}, {"role": "output", **operand}]}) for other in others]
        time.sleep(0.3)
        everybody(clients, "resume")
        for other, prepare in zip(others, prepares):
            other.reply(prepare)
        for client in clients:
            self.assertTrue(self.outcome(client)["ok"])
        # From now on nothing is parked, and neither waits for the other.
        everybody(clients, "pause")
        everybody(clients, "launch", plan="ar", bindings=BINDINGS)
        self.check_all_reduce(others)
        clients[0].call("resume")
        wait_until(lambda: [e["parking"] for e in self.queue()] == ["there are 2 groups on this GPU"], 20)
        everybody(clients, "resume")
        for client in clients:
            self.assertTrue(self.outcome(client)["ok"])
        everybody(others, "detach")
        wait_until(lambda: self.daemon.ctl_json("stats")["groups"] == 1)
        self.park(clients)
        everybody(clients, "resume")
        for client in clients:
            self.assertTrue(self.outcome(client)["ok"])

    def test_a_rank_dies_while_a_plan_waits_for_the_parked_launch(self):
        # The engine answers commands one after another: the break must not wait behind the plan.
        clients = self.parked_all_reduce()
        others = [self.daemon.client(f"other{rank}") for rank in range(2)]
        for other in others:
            other.connect()
        self.join(others, name="others", job_key="another-job-key-1")
        calls = [other.send("prepare", group="others", key="ar", plan="ar", request={
            "op": "all_reduce", "operands": [{"role": role, "dtype": "f32", "shape": [256]} for role in ("input", "output")]})
            for other in others]
        time.sleep(0.3)
        begin = time.monotonic()
        clients[1].kill()
        clients[0].call("resume")
        reply = self.outcome(clients[0])
        self.assertEqual(reply["code"], "UNAVAILABLE", reply)
        for other, call in zip(others, calls):
            other.reply(call)
        self.assertLess(time.monotonic() - begin, 20)

    def test_captured_launches_are_never_parked_nor_any_beside_them(self):
        clients = self.parked_group()
        for key in ("ar", "graph"):
            self.all_reduce_plan(clients, key=key)
        self.park(clients)
        # The capture appears while a launch is parked; its replay comes behind it on the stream.
        everybody(clients, "capture", graph="g", stream="other",
                  launches=[{"plan": "graph", "bindings": [["graph.in", 0], ["graph.out", 0]]}])
        everybody(clients, "fill", memory="graph.in", base=2)
        everybody(clients, "replay", graph="g", stream="other")
        time.sleep(0.2)
        everybody(clients, "resume")
        for client in clients:
            self.assertTrue(self.outcome(client)["ok"])
        everybody(clients, "sync", stream="other")
        for client in clients:
            self.assertEqual(client.call("read", memory="graph.out", count=1)["values"], [4.0])
        everybody(clients, "pause")
        everybody(clients, "launch", plan="ar", bindings=BINDINGS)
        clients[0].call("resume")
        wait_until(lambda: any("captured" in e["parking"] or "channels" in e["parking"] for e in self.queue()), 20)
        everybody(clients, "resume")
        for client in clients:
            self.assertTrue(self.outcome(client)["ok"])

    def launch_checked(self, clients, plans, times, **arguments):
        """Launches at random paces; all sums must be right, and some launch must have been parked meanwhile. A fast machine may
        end a round between two looks at the queue: then there is another."""
        for _ in range(10):
            ended, seen = threading.Event(), []

            def look():
                while not ended.is_set() and not seen:
                    seen.extend(entry for entry in self.queue() if entry["parking"] == "parked")

            watcher = threading.Thread(target=look)
            watcher.start()
            try:
                replies = everybody(clients, "launch_checked", timeout=600, plans=plans, times=times,
                                    each=lambda rank: {"rank": rank, "world": len(clients)}, **arguments)
            finally:
                ended.set()
                watcher.join()
            self.assertEqual([reply["wrong"] for reply in replies], [0] * len(clients))
            if seen:
                return
        self.fail("nothing is ever parked")

    def test_twenty_thousand_launches_at_random_paces(self):
        clients = self.parked_group()
        for key in ("a", "b", "c"):
            self.all_reduce_plan(clients, count=64, key=key)
        self.launch_checked(clients, ["a", "b", "c"], 20000, pause_us=300)
        self.assertEqual(self.queue(), [])

    def test_four_ranks_one_plan(self):
        clients = self.parked_group(4)
        self.all_reduce_plan(clients, count=64, key="a")
        self.launch_checked(clients, ["a"], 1000, pause_us=1000, ahead=4)


@host_only("the host backend's own queues")
class OneHardwareQueue(Parking):
    """The same with one hardware queue: lanes and streams stand in one line."""

    extra = (*Parking.extra, "--hardware-queues", "1")

    def test_twenty_thousand_launches_at_random_paces(self):
        clients = self.parked_group()
        for key in ("a", "b"):
            self.all_reduce_plan(clients, count=64, key=key)
        self.launch_checked(clients, ["a", "b"], 2000, pause_us=300)


class ByConfiguration(Parking):
    """`parking = "auto"` for all groups that do not say."""

    extra = (*Parking.extra, "--parking", "auto")

    def parked_group(self, world=2, options=None, **arguments):
        return self.group(world, **arguments)

    def test_a_plan_says_whether_its_launches_are_parked(self):
        self.assertEqual(self.all_reduce_plan(self.parked_group())[0]["plan"]["parking"], "where it is allowed")
        off = self.group(2, name="off", job_key="another-job-key-1", options={"parking": "off"})
        self.assertEqual(self.all_reduce_plan(off, group="off")[0]["plan"]["parking"], "off")

    test_all_operations_of_two_ranks = test_all_operations_of_four_ranks = test_twenty_thousand_launches_at_random_paces = None
    test_a_second_group_waits_for_the_parked_launch_and_ends_parking = test_the_option_is_checked = None


if __name__ == "__main__":
    unittest.main()

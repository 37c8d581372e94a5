"""No wait crosses jobs: while one job's launch waits for chunks of its input, for a stopped rank, or its ranks for a prepare, another
job on the same GPUs has the latency that it has alone."""

import signal
import statistics
import time
import unittest

from harness import TandemTest, everybody, host_only, wait_until

AR = [["ar.in", 0], ["ar.out", 0]]
WORLD = 2
LAUNCHES = 60
TRIES = 8  # a wait for the other job fails all of them; noise does not
# Seconds that a busy machine's scheduling may take. A wait for the other job would last until that is let go on.
SCHEDULING = 0.01
MATRIX = 8 * 8 * 4
WORDS = 3 * MATRIX


class Independence(TandemTest):
    gpus = WORLD
    shares = True

    def job(self, name, **arguments):
        clients = self.group(WORLD, name=name, group="tp", job_key=f"0123456789-{name}", **arguments)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        return clients

    def latency(self, clients):
        """The median time of a launch of all ranks, with its end."""
        times = []
        for _ in range(LAUNCHES):
            begin = time.monotonic()
            everybody(clients, "launch", plan="ar", bindings=AR)
            everybody(clients, "sync", deadline_ms=50000)
            times.append(time.monotonic() - begin)
        everybody(clients, "wait", plan="ar")
        return statistics.median(times)

    def check_undisturbed(self, clients, disturb, end):
        ratios = []
        for _ in range(TRIES):
            alone = self.latency(clients)
            state = disturb()
            try:
                beside = self.latency(clients)
            finally:
                end(state)
            ratios.append(beside / alone)
            if ratios[-1] <= 2 or beside <= SCHEDULING:
                return
        self.fail(f"a launch takes {min(ratios):.1f} times as long beside the other job")

    def check_bystanders(self, name, disturb, end):
        """Bystanders whose plans run on engines, and those whose plans run in the clients."""
        for placement in ("engine", "client"):
            with self.subTest(bystanders=placement):
                bystanders = self.job(f"{name}-{placement}", options={"order": "same", "placement": placement})
                self.check_undisturbed(bystanders, disturb, end)
                everybody(bystanders, "detach")

    @host_only("the chunks' words are written by the CPU")
    def test_late_chunks(self):
        clients = self.job("late-chunks")
        matrix = {"dtype": "f32", "shape": [8, 8]}
        roles = [{"role": role, **matrix} for role in ("a", "b", "c")]
        words = {"role": "chunk_signals", "dtype": "i32", "shape": [1]}
        everybody(
            clients,
            "prepare",
            group="tp",
            key="chunks",
            plan="chunks",
            request={"op": "async_input_matmul", "operands": [*roles, words]},
        )
        everybody(clients, "register", group="tp", memory="m", bytes=2 * WORDS)
        bindings = [["m", 0], ["m", MATRIX], ["m", 2 * MATRIX], ["m", WORDS]]

        def disturb():
            everybody(clients, "fill", memory="m", base=0, step=0)
            everybody(clients, "launch", plan="chunks", bindings=bindings)
            wait_until(lambda: self.awaited().count("chunk 0 of 1 of its input") == WORLD, 60, "no launch is held")

        def end(_):
            everybody(clients, "fill", memory="m", base=1, step=0)
            everybody(clients, "sync", deadline_ms=50000)
            everybody(clients, "wait", plan="chunks")

        self.check_bystanders("bystanders", disturb, end)

    def awaited(self):
        return [entry.get("awaits", "") for entry in self.daemon.ctl_json("queue")["entries"]]

    def test_a_stopped_rank(self):
        clients = self.job("stopped")

        def disturb():
            clients[1].process.send_signal(signal.SIGSTOP)
            clients[0].call("launch", plan="ar", bindings=AR)
            wait_until(lambda: self.daemon.ctl_json("queue")["entries"], 60, "no launch waits")

        def end(_):
            clients[1].process.send_signal(signal.SIGCONT)
            clients[1].call("launch", plan="ar", bindings=AR)
            everybody(clients, "sync", deadline_ms=50000)
            everybody(clients, "wait", plan="ar")

        self.check_bystanders("bystanders-2", disturb, end)

    def test_a_slow_prepare(self):
        clients = self.job("slow-prepare")
        keys = iter(f"slow {i}" for i in range(2 * TRIES))

        def request(key):
            operand = {"dtype": "f32", "shape": [64]}
            operands = [{"role": "input", **operand}, {"role": "output", **operand}]
            return {"group": "tp", "key": key, "plan": key, "request": {"op": "all_reduce", "operands": operands}}

        def disturb():
            key = next(keys)
            return key, clients[0].send("prepare", deadline_ms=60000, **request(key))

        def end(state):
            key, call = state
            clients[1].call("prepare", **request(key))
            clients[0].reply(call)

        self.check_bystanders("bystanders-3", disturb, end)


if __name__ == "__main__":
    unittest.main()

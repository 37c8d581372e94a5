"""Tandem's part of the comparison: one client and group a rank, plans as arms."""

import json
import os
import subprocess

import node
import tandem_c
import torch
from measure import Arm


class TandemSide:
    def __init__(self, runtime_dir, rank, world, uuid, job_key):
        self.client = tandem_c.Client(runtime_dir, f"bench{rank}")
        self.group, self.in_client = (
            tandem_c.Group(self.client, f"bench{world}-{where}", rank, world, uuid, job_key, [("placement", where)])
            for where in ("engine", "client")
        )
        self.runtime_dir, self.memories = runtime_dir, {}

    def trace(self, last):
        """Events of the daemon's trace: of the latest `last` launches of each GPU."""
        done = subprocess.run(
            [
                os.path.join(node.BIN, "tandemctl"),
                "--runtime-dir",
                self.runtime_dir,
                "--timeout",
                "20",
                "trace",
                "--last",
                str(last),
            ],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        return json.loads(done.stdout)["traceEvents"]

    @staticmethod
    def key(tensor):
        return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype

    def memory(self, tensor):
        key = self.key(tensor)
        if key not in self.memories:
            self.memories[key] = tandem_c.Memory(self.client, tensor)
        return self.memories[key]

    def client_memory(self, tensor):
        """Client-placed launches take addresses of any memory, and symmetric tensors of their own group."""
        known = self.memories.get(self.key(tensor))
        return known if known is not None and known.symmetric else tandem_c.PlainMemory(tensor)

    def symmetric(self, count, shape, dtype, in_client=False):
        """`count` tensors in symmetric memory, made by all ranks together, until the case ends. `in_client`: for plans that are
        launched on the caller's stream, which belong to another group."""
        group = self.in_client if in_client else self.group
        made = [tandem_c.SymmetricTensor(group, shape, dtype) for _ in range(count)]
        self.memories.update((self.key(memory.tensor), memory) for memory in made)
        return [memory.tensor for memory in made]

    def arm(self, name, key, op, operands, outputs, algorithm, graph, attributes, in_client=False):
        """A plan for `operands` (role -> tensors by set) as an arm; raises what Prepare refuses. `in_client`: the plan is
        launched on the caller's stream."""
        group, memory = (self.in_client, self.client_memory) if in_client else (self.group, self.memory)
        plan = tandem_c.Plan(
            group,
            key,
            op,
            [(role, memory(tensors[0])) for role, tensors in operands.items()],
            algorithm,
            **attributes,
        )
        sets = len(next(iter(operands.values()))) if operands else 1
        bindings = [plan.bind([memory(tensors[i]) for tensors in operands.values()]) for i in range(sets)]
        count = len(operands)

        def run(i):
            plan.launch(bindings[i % sets], count)
            return outputs[i % sets] if outputs else None

        if outputs:
            run.spoil = lambda: outputs[0].fill_(float("nan"))
        info = plan.info()
        note = {
            field: info[field]
            for field in (
                "algorithm",
                "summary",
                "placement",
                "workspace_bytes",
                "bytes_moved",
                "predicted_us",
                "steps",
                "lanes",
            )
            if field in info
        }
        # The daemon times launches of engines only.
        launches = None if in_client else info.get("plan_id")
        return Arm(name, run, graph=graph, check=plan.wait, close=plan.close, note=note, plan=launches)

    def end_case(self):
        """Forgets the case's memory."""
        torch.cuda.synchronize()
        for memory in self.memories.values():
            memory.close()
        self.memories.clear()

    def close(self):
        self.end_case()
        self.in_client.leave()
        self.group.leave()
        self.client.close()

"""A rank that trains eight layers under the compile pass, and prints what memory their collectives used in each step.

Run with the kernels in Python, which see every call."""

import json
import os
import subprocess

import tandem.torch
import torch
import torch.distributed as dist
from checks import CUDA, DEVICE, start, stop
from reference_ops import near
from tandem.torch._plans import PlanCache
from torch._inductor.utils import run_and_get_code
from torch.distributed import _functional_collectives as funcol

LAYERS, STEPS = 8, 4
ROWS, WIDTH, INNER = 128, 512, 768  # a rank's rows; all ranks' columns between the products


class Layer(torch.nn.Module):
    """Half of a Llama's: rows are gathered for a product, and the product that follows is scattered."""

    def __init__(self, world):
        super().__init__()
        self.up = torch.nn.Parameter(torch.randn(WIDTH, INNER // world) / WIDTH**0.5)
        self.down = torch.nn.Parameter(torch.randn(INNER // world, WIDTH) / INNER**0.5)

    def forward(self, x):
        inner = torch.relu(funcol.all_gather_tensor_autograd(x, 0, dist.group.WORLD) @ self.up)
        return x + funcol.reduce_scatter_tensor_autograd(inner @ self.down, "sum", 0, dist.group.WORLD)


def segments():
    """The segments of symmetric memory on each GPU of the node, as the daemon sees them."""
    told = subprocess.run(
        [
            os.path.join(os.environ["TANDEM_BIN_DIR"], "tandemctl"),
            *("--runtime-dir", os.environ["TANDEM_RUNTIME_DIR"], "pools", "--segments", "--json"),
        ],
        capture_output=True,
        check=True,
        text=True,
    )
    pools = json.loads(told.stdout)["pools"]
    return [[(one["id"], one["bytes"], one["purpose"]) for one in pool["segments"]] for pool in pools]


def main():
    name = start()
    world = dist.get_world_size()
    calls = []
    run = PlanCache.run

    def spied(self, key, make):
        call = run(self, key, make)
        prepared = self.prepared()[-1]
        place = None if CUDA else (prepared._staged.registration_id, prepared.offsets)
        calls.append((call.op, prepared.plan.id, prepared.plan.info["workspace_bytes"], place))
        return call

    PlanCache.run = spied
    model = torch.nn.Sequential(*[Layer(world) for _ in range(LAYERS)]).to(DEVICE)
    x = torch.randn(ROWS, WIDTH, device=DEVICE)

    def step(run, x):
        model.zero_grad()
        run(x).square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    eager = step(model.cpu(), x.cpu())  # eager mode's own collectives run on the CPU, by gloo
    model.to(DEVICE)
    steps, held, codes = [], [], []
    with tandem.torch.compile_config():
        compiled = torch.compile(model, fullgraph=True)
        for i in range(STEPS):
            calls.clear()
            got, code = run_and_get_code(step, compiled, x)
            codes += code if i == 0 else []
            for want, have in zip(eager, got, strict=True):
                near(have, want)
            steps.append(list(calls))
            held.append(segments())
    infos = tandem.torch.attach(name).plans.infos()
    told = {
        "steps": steps,
        "segments": held,
        "fused": [record.fused_into for record in tandem.torch.explain_graph()],
        "filled": sum(code.count(".noted_out") for code in codes),
        "allocates": sum(code.count("torch.ops.tandem") - code.count(".noted_out") for code in codes),
        "reused": sum(code.count("# reuse") for code in codes),
        "workspace": max(info["group_workspace_bytes"] for info in infos),
    }
    print(json.dumps(told), flush=True)
    stop()


if __name__ == "__main__":
    main()

"""The common parts of the arms: operands of a case, arms of Tandem, and arms that run beside copies."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from measure import Arm

SETS = 4  # operand sets in turn, so that no weight stays in the L2 cache
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
BESIDE = "gemm beside copies"
TOLERANCE = 2e-2  # of results rounded to bf16 in different orders


class Context:
    """What builders need: the ranks, NCCL's windows of each of its libraries that is there, and what may be
    None: Tandem's group, FlashInfer, and vLLM's part of it."""

    def __init__(self, bench, windows, tandem, flashinfer=None, vllm=None):
        self.bench, self.rank, self.world, self.windows, self.tandem = bench, bench.rank, bench.world, windows, tandem
        self.flashinfer, self.vllm = flashinfer, vllm
        self.group = dist.group.WORLD.group_name
        self.exact = None  # some rows of the result of operand set 0 in float64: (rows, values)
        for each in windows:
            each.reset()

    def random(self, *shape, dtype=BF16):
        return [torch.randn(*shape, device=self.bench.device).to(dtype) for _ in range(SETS)]

    def empty(self, *shape, dtype=BF16):
        return [torch.empty(*shape, device=self.bench.device, dtype=dtype) for _ in range(SETS)]

    def symmetric(self, *shape, dtype=BF16, in_client=False):
        """Outputs for Tandem's arms where rivals have theirs in symmetric memory too; None without Tandem."""
        return self.tandem.symmetric(SETS, shape, dtype, in_client) if self.tandem else None

    @staticmethod
    def window_copies(windows, tensors):
        copies = []
        for tensor in tensors:
            copy = windows.empty(*tensor.shape, dtype=tensor.dtype)
            copy.copy_(tensor)
            copies.append(copy)
        return copies

    @staticmethod
    def window_empty(windows, *shape, dtype=BF16):
        return [windows.empty(*shape, dtype=dtype) for _ in range(SETS)]

    def each_nccl(self, name, make):
        """Arms of each of NCCL's libraries: make(name, windows) makes one."""
        return [
            (f"{name}{windows.suffix}", lambda windows=windows: make(f"{name}{windows.suffix}", windows))
            for windows in self.windows
        ]


def writing(outputs, function):
    """An arm's run that fills outputs[i]: `function(i)` does it; the output is spoilt before a check."""

    def run(i):
        function(i % SETS)
        return outputs[i % SETS]

    run.spoil = lambda: outputs[0].fill_(float("nan"))
    return run


def tandem_arms(context, key, op, operands, outputs, algorithms, stream=True, **attributes):
    """Tandem's arms: each algorithm in a graph, and the daemon's own choice in a graph and on a stream. `operands`: role -> tensors
    by set. `algorithms`: (label, algorithm, more attributes)."""

    def factory(label, algorithm, graph, more):
        return tandem_factory(
            context, key, label, op, lambda: (operands, outputs), algorithm, graph, {**attributes, **more}
        )

    if context.tandem is None:
        return []
    made = [factory(label, algorithm, True, more) for label, algorithm, more in algorithms]
    return made + ([factory("auto", "auto", True, {}), factory("stream", "auto", False, {})] if stream else [])


def ordinary_arm(context, key, op, operands, role, shape):
    """The daemon's own choice in a graph, with an output in the client's ordinary memory where the other arms' is symmetric."""

    def tensors():
        out = context.empty(*shape)
        return {**operands, role: out}, out

    return [tandem_factory(context, key, "auto, ordinary", op, tensors, "auto", True, {})] if context.tandem else []


def client_arms(context, key, op, operands, outputs, algorithms, stream=True, **attributes):
    """Arms of client-placed plans in graphs, and the planner's choice on a stream. `algorithms`: (label, algorithm)."""
    if context.tandem is None:
        return []

    def factory(label, algorithm, graph):
        return tandem_factory(
            context,
            key,
            f"client {label}",
            op,
            lambda: (operands, outputs),
            algorithm,
            graph,
            attributes,
            in_client=True,
        )

    made = [factory(label, algorithm, True) for label, algorithm in algorithms]
    return made + ([factory("stream", "auto", False)] if stream else [])


def tandem_factory(context, key, label, op, tensors, algorithm, graph, attributes, in_client=False):
    """One arm of Tandem's by name and how to make it. `tensors`: gives operands by role and the outputs once the arm is made, so
    that what belongs to it alone is allocated no sooner."""

    def make():
        operands, outputs = tensors()
        return context.tandem.arm(
            f"tandem {label}", f"{key}/{label}", op, operands, outputs, algorithm, graph, attributes, in_client
        )

    return f"tandem {label}", make


def pushes(context, count):
    """A function that pushes `count` elements to every peer by plain copies, without any signal."""
    room = symm_mem.empty(context.world * count, device=context.bench.device, dtype=BF16)
    handle = symm_mem.rendezvous(room, context.group)
    source = torch.randn(count, device=context.bench.device).to(BF16)
    sinks = [
        handle.get_buffer(peer, (context.world, count), BF16)[context.rank]
        for peer in ((context.rank + step) % context.world for step in range(1, context.world))
    ]

    def push():
        for sink in sinks:
            sink.copy_(source)

    push.keeps = room, handle  # the sinks do not own their memory
    return push


def beside_copies(context, gemm, count):
    """The product and the copies that it could hide, side by side with no dependency: the practical speed of light."""

    def make():
        push, side = pushes(context, count), torch.cuda.Stream(priority=-1)

        def run(i):
            stream = torch.cuda.current_stream()
            side.wait_stream(stream)
            with torch.cuda.stream(side):
                push()
            gemm(i % SETS)
            stream.wait_stream(side)

        return Arm(BESIDE, run, checked=False)

    return BESIDE, make


def plain(*names):
    return [(name, name, {}) for name in names]

"""A rank that captures torch.ops.tandem in CUDA graphs and compares replays with eager mode."""

import tandem.torch
import torch
import torch.distributed as dist
from checks import DEVICE, check, main
from reference_ops import OPS, near, rand, world


def captured(function, *inputs):
    """The function's outputs of a capture, and the graph; its plans are there after the warm-up."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            function(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = function(*inputs)
    return graph, outputs


def replays(function, *inputs, count=5):
    """Replays with new inputs give what eager mode gives for these."""
    graph, outputs = captured(function, *inputs)
    for step in range(count):
        for i, one in enumerate(inputs):
            one.copy_(rand(*one.shape, dtype=one.dtype, seed=100 * step + i + 1))
        graph.replay()
        tandem.torch.synchronize()
        torch.cuda.synchronize()
        got = [one.clone() for one in outputs]
        for one, want in zip(got, function(*inputs), strict=True):
            near(one, want)
    del graph
    torch.cuda.synchronize()


@check
def test_every_op(name):
    rows = 2 * world()
    for dtype in (torch.float32, torch.bfloat16):
        a, b, c = rand(rows, 16, dtype=dtype), rand(16, 32, dtype=dtype, seed=1), rand(32, 16, dtype=dtype, seed=2)
        replays(lambda x: [OPS.all_reduce(x, "sum", name)], a)
        replays(lambda x: [OPS.all_gather(x, 0, name)], a)
        replays(lambda x: [OPS.reduce_scatter(x, "avg", 0, name)], a)
        replays(lambda a, b: OPS.all_gather_matmul(a, [b], 0, name)[1], a, b)
        replays(lambda h, c: [OPS.matmul_reduce_scatter(h, c, "sum", 0, name)], rand(rows, 32, dtype=dtype), c)
        replays(lambda h, c: [OPS.matmul_all_reduce(h, c, "sum", name)], rand(rows, 32, dtype=dtype), c)


@check
def test_a_step_with_gradients(name):
    x = rand(2 * world(), 16).requires_grad_()
    up, down = rand(16, 32, seed=1).requires_grad_(), rand(32, 16, seed=2).requires_grad_()

    def step(x, up, down):
        _, (hidden,) = OPS.all_gather_matmul(x, [up], 0, name, return_A=False)
        out = OPS.matmul_reduce_scatter(torch.nn.functional.silu(hidden), down, "sum", 0, name)
        return [out, *torch.autograd.grad(out.square().sum(), (x, up, down))]

    graph, outputs = captured(step, x, up, down)
    for seed in (5, 6, 7):
        with torch.no_grad():
            x.copy_(rand(*x.shape, seed=seed))
        graph.replay()
        torch.cuda.synchronize()
        got = [one.detach().clone() for one in outputs]
        for one, want in zip(got, step(x, up, down), strict=True):
            near(one, want.detach())


@check
def test_a_capture_without_a_plan_says_how_to_warm_up(name):
    x = rand(3, 5)
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            OPS.all_reduce(x, "sum", name)
        raise AssertionError("a capture has prepared a plan")
    except RuntimeError as error:
        assert "once before the capture" in str(error), error
    torch.cuda.synchronize()
    near(OPS.all_reduce(x, "sum", name), OPS.all_reduce(x.clone(), "sum", name))


@check
def test_reduce_overhead(name):
    up, down = rand(16, 32, seed=1), rand(32, 16, seed=2)

    def block(x):
        _, (hidden,) = OPS.all_gather_matmul(x, [up], 0, name, return_A=False)
        return OPS.matmul_reduce_scatter(torch.relu(hidden), down, "sum", 0, name)

    compiled = torch.compile(block, mode="reduce-overhead", fullgraph=True)
    with torch.no_grad():
        for step in range(6):
            x = rand(2 * world(), 16, seed=step)
            torch.compiler.cudagraph_mark_step_begin()
            near(compiled(x).clone(), block(x))
    assert dist.get_world_size() == world() and x.device.type == DEVICE


if __name__ == "__main__":
    main()

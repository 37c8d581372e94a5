"""A rank that captures torch.ops.tandem in CUDA graphs and compares replays with eager mode."""

import tandem.torch
import torch
import torch.distributed as dist
from checks import DEVICE, check, main
from reference_ops import OPS, near, rand, rank, reference, world


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
        residual, weight = rand(rows, 16, dtype=dtype, seed=3), rand(16, dtype=dtype, seed=4)

        def normed(op, *first):
            own = residual.clone()  # each replay begins with the same
            return [getattr(OPS, op)(*first, own, weight, 1e-5, name), own]

        replays(lambda x: normed("all_reduce_rms_norm", x), a)
        replays(lambda h, c: normed("matmul_all_reduce_rms_norm", h, c), rand(rows, 32, dtype=dtype), c)


@check
def test_low_contention(name):
    x = rand(2 * world(), 16)
    replays(lambda x: [OPS.low_contention_all_gather(x, name)], x)
    replays(lambda x: [OPS.low_contention_reduce_scatter(x, "sum", name)], x)


@check
def test_streams_that_part_in_a_capture(name):
    """Two streams of one graph have a plan each, and one behind both takes their results."""
    a, b = rand(64), rand(96, seed=1)
    main, side = torch.cuda.Stream(), torch.cuda.Stream()

    def sums():
        side.wait_stream(main)
        if rank() == 0:
            torch.cuda._sleep(20_000_000)
        first = OPS.all_reduce(a, "sum", name)
        with torch.cuda.stream(side):
            second = OPS.all_reduce(b, "sum", name)
        main.wait_stream(side)
        return first, second, OPS.all_reduce(torch.cat((first, second)), "sum", name)

    main.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(main):
        sums()
    torch.cuda.current_stream().wait_stream(main)
    tandem.torch.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=main):
        outputs = sums()
    for step in range(4):
        a.copy_(rand(64, seed=2 * step + 2)), b.copy_(rand(96, seed=2 * step + 3))
        graph.replay()
        torch.cuda.synchronize()
        tandem.torch.synchronize()
        wanted = [reference.all_reduce(one, "sum", name) for one in (a, b)]
        for got, want in zip(outputs, (*wanted, world() * torch.cat(wanted)), strict=True):
            near(got, want)


@check
def test_a_capture_that_is_not_replayed(name):
    """It changes nothing for calls in eager mode."""
    x = rand(64)
    graph, _ = captured(lambda x: [OPS.all_reduce(x, "sum", name)], x)
    for step in range(3):
        x.copy_(rand(64, seed=step + 1))
        near(OPS.all_reduce(x, "sum", name), reference.all_reduce(x, "sum", name))
    tandem.torch.synchronize()
    del graph


@check
def test_launches_run_ahead_of_the_peers(name):
    """One rank enqueues all its replays and eager calls before another rank begins."""
    x = rand(64)
    graph, (output,) = captured(lambda x: [OPS.all_reduce(x, "sum", name)], x)
    store = dist.distributed_c10d._get_default_store()
    for enqueue in (graph.replay, lambda: OPS.all_reduce(x, "sum", name)):
        torch.cuda.synchronize()
        round = store.add(f"rounds of {rank()}", 1)
        if rank() > 0:
            store.wait([f"round {round} is enqueued"])
        for _ in range(100):
            enqueue()
        if rank() == 0:
            store.set(f"round {round} is enqueued", "")
        tandem.torch.synchronize()
        torch.cuda.synchronize()
    near(output, reference.all_reduce(x, "sum", name))


@check
def test_a_graph_that_is_reset_while_it_runs(name):
    """Its launches end well, and so does a graph that is captured and dropped many times."""
    x = rand(64)
    want = reference.all_reduce(x, "sum", name)
    for _ in range(10):
        graph, (output,) = captured(lambda x: [OPS.all_reduce(x, "sum", name)], x)
        for _ in range(20):
            graph.replay()
        graph.reset()
        near(OPS.all_reduce(x, "sum", name), want)
        del graph
    tandem.torch.synchronize()


@check
def test_graph_trees_with_the_pass(name):
    """dist's own all-reduce in a compiled function, of several sizes."""

    def function(x):
        y = x * x
        dist.all_reduce(y)
        return torch.nn.functional.silu(x) * y

    options = {"triton.cudagraphs": True, "triton.cudagraph_trees": True}
    with tandem.torch.compile_config(), torch.no_grad():
        compiled = torch.compile(function, fullgraph=True, options=options)
        for count in (1024, 2048, 4096):
            x = rand(count)
            want = torch.nn.functional.silu(x) * reference.all_reduce(x * x, "sum", name)
            for _ in range(3):
                torch.compiler.cudagraph_mark_step_begin()
                near(compiled(x).clone(), want)
    assert {record.fused_into for record in tandem.torch.explain_graph()} == {"all_reduce"}


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
def test_products_of_rows_that_no_call_had(name):
    """Their family serves them in a capture without a warm-up, eager calls of other rows being its own."""
    up, down = rand(64, 32, dtype=torch.bfloat16, seed=1), rand(64, 32, dtype=torch.bfloat16, seed=2)

    def step(x, wide):
        product = OPS.all_gather_matmul(x, [up], 0, name, return_A=False)[1][0]
        return (
            product,
            OPS.matmul_reduce_scatter(wide, down, "sum", 0, name),
            OPS.matmul_all_reduce(wide, down, "sum", name),
        )

    def given(rows, seed):
        return [rand(count, 64, dtype=torch.bfloat16, seed=seed) for count in (rows, rows * world())]

    step(*given(7, 3))
    torch.cuda.synchronize()
    made = tandem.torch.attach(name).plans._made
    for rows in (5, 11, 2):
        inputs, graph = given(rows, 4), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = step(*inputs)
        for seed in (5, 6):
            for one, fresh in zip(inputs, given(rows, seed), strict=True):
                one.copy_(fresh)
            graph.replay()
            tandem.torch.synchronize()
            torch.cuda.synchronize()
            for got, want in zip([one.clone() for one in outputs], step(*inputs), strict=True):
                near(got, want)
    assert tandem.torch.attach(name).plans._made == made


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

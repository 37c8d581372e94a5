"""A rank whose graph of the same collectives may be another than its peers': a bias on one rank alone, a compilation that only one
rank makes, a rank that compiles nothing."""

import time

import tandem
import tandem.torch
import torch
import torch.distributed as dist
from checks import PATIENCE, SHARED_GPUS, check, configured, main
from reference_ops import OPS, near, rand, rank
from tandem.torch import _outlines
from torch.distributed import _functional_collectives as funcol

LARGE = 256  # a sum of so many rows and columns is fused for its product alone
SOON = PATIENCE / 2  # seconds, with a compilation on a busy machine; launches have twice as many


def plain(x, w, b):
    return funcol.all_reduce(x @ w, "sum", dist.group.WORLD)


def biased(x, w, b):
    return funcol.all_reduce(x @ w + b, "sum", dist.group.WORLD)


def operands(rows=LARGE):
    return rand(rows, 8), rand(8, LARGE, seed=1), rand(LARGE, seed=2)


def compiled(function):
    """The function under the pass; every call compiles it anew."""
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True)


def failure(function, *given):
    """What the compiled function raises, and after how many seconds; None: nothing."""
    begun = time.monotonic()
    try:
        with tandem.torch.compile_config(), torch.no_grad():
            compiled(function)(*given)
        return None, 0.0
    except Exception as error:
        return error, time.monotonic() - begun


def agrees(function, *given):
    with tandem.torch.compile_config(), torch.no_grad():
        near(compiled(function)(*given), function(*given))


@check
def test_a_bias_on_one_rank_alone(name):
    """torch's program is right, and so are the graphs, but one rank's sum is fused and the other's is torch's own. All ranks learn it
    at once, and the next program is right."""
    if SHARED_GPUS:
        return
    for attached in (False, True):  # a group that no op has used yet, and one with a plan of that product
        given = operands(LARGE + attached)
        if attached:
            near(OPS.matmul_all_reduce(given[0], given[1], "sum", name), plain(*given))
        for _ in range(2):  # the second time from Inductor's cache
            error, seconds = failure(plain if rank() == 0 else biased, *given)
            assert isinstance(error, tandem.FieldMismatch) and error.field == "graph", error
            assert error.ranks == (1 - rank(),) and seconds < SOON, (error.ranks, seconds)
            text = str(error)
            assert f"all_reduce of float32 {(LARGE + attached) * LARGE}" in text, text
            assert "tandem::matmul_all_reduce" in text and "a bias of its own" in text, text
            assert f"on rank {rank()}" in text and f"on rank {1 - rank()}" in text, text
        agrees(plain, *given)
        tandem.torch.synchronize()
    tandem.torch.detach()


@check
def test_the_collective_that_differs_is_named(name):
    """The second one of a graph, in a group of its own; collectives of the other group are alike."""
    if SHARED_GPUS:
        return
    other = dist.new_group([0, 1])
    x, w, b = operands()

    def two(x, w, b):
        first = funcol.all_reduce(x @ w, "sum", dist.group.WORLD)
        second = funcol.all_gather_tensor(x, 0, other) @ w
        third = funcol.all_reduce((2 * x) @ w, "sum", other)
        return first, second, third

    def two_biased(x, w, b):
        first = funcol.all_reduce(x @ w, "sum", dist.group.WORLD)
        second = funcol.all_gather_tensor(x, 0, other) @ w
        third = funcol.all_reduce((2 * x) @ w + b, "sum", other)
        return first, second, third

    error, _ = failure(two if rank() == 0 else two_biased, x, w, b)
    assert isinstance(error, tandem.FieldMismatch), error
    assert f"group {other.group_name!r}" in str(error) and "collective 1 of a graph, all_reduce" in str(error), error
    tandem.torch.detach()


@check
def test_one_rank_compiles_again(name):
    """No rank waits for another: the graph is known."""
    given = operands()
    agrees(plain, *given)
    begun = time.monotonic()
    if rank() == 1:
        with tandem.torch.compile_config(), torch.no_grad():
            torch._dynamo.reset()
            again = torch.compile(plain, fullgraph=True, dynamic=True)
            first = again(*given)
    else:
        with torch.no_grad():
            first = OPS.matmul_all_reduce(given[0], given[1], "sum", name)
    near(first, plain(*given))
    assert time.monotonic() - begun < SOON
    tandem.torch.detach()


@check
def test_a_rank_that_compiles_nothing(name):
    """It calls the op itself. The other waits a while for its graph, once, and their launches meet all the same."""
    before, _outlines.PATIENCE = _outlines.PATIENCE, 0.5
    try:
        a, b = rand(64, 8), rand(8, 96, seed=1)

        def own(a, b):
            return funcol.all_reduce(a @ b, "sum", dist.group.WORLD)

        for _ in range(2):
            if rank() == 1:
                got = OPS.matmul_all_reduce(a, b, "sum", name)
            else:
                with tandem.torch.compile_config(), torch.no_grad():
                    got = compiled(own)(a, b)
            near(got, own(a, b))
    finally:
        _outlines.PATIENCE = before
    tandem.torch.detach()


@check
def test_a_late_rank_without_such_a_graph(name):
    """It is named at the launch's deadline, with what is known of its graphs."""
    before, _outlines.PATIENCE = _outlines.PATIENCE, 0.1
    a, b = rand(48, 8), rand(8, 80, seed=1)

    def lone(a, b):  # two, as no other graph of these checks has
        first = funcol.all_reduce(a @ b, "sum", dist.group.WORLD)
        return first, funcol.all_reduce((2 * a) @ b, "sum", dist.group.WORLD)

    try:
        with configured(name, rendezvous_timeout=3.0):
            near(OPS.all_reduce(a, "sum", name), funcol.all_reduce(a, "sum", dist.group.WORLD))  # attached
            if rank() == 0:
                error, _ = failure(lone, a, b)
                assert isinstance(error, tandem.RankLate) and error.ranks == (1,), error
                assert "rank 1 has no compiled graph like one of rank 0: all_reduce of float32 3840" in str(error), (
                    error
                )
            dist.barrier()
    finally:
        _outlines.PATIENCE = before


if __name__ == "__main__":
    _outlines.PATIENCE = PATIENCE  # compilations of a busy machine are far apart
    main()

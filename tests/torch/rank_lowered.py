"""A rank that compiles by Inductor under the pass, and checks where collectives read and write: nothing that is used again is
overwritten, outputs are planned, and collectives that stay are Inductor's to bucket."""

import re

import tandem.torch
import torch
import torch.distributed as dist
from checks import SHARED_GPUS, check, main
from reference_ops import near, rand, reference, world
from torch._inductor.utils import run_and_get_code
from torch.distributed import _functional_collectives as funcol


def lowered(function, *tensors):
    """The function compiled, its results, its code without comments, and the ops that its collectives became."""
    known = len(tandem.torch.explain_graph())
    compiled = torch.compile(function, fullgraph=True)
    with torch.no_grad():
        results, codes = run_and_get_code(compiled, *tensors)
    lines = [line for line in "\n".join(codes).splitlines() if not line.lstrip().startswith("#")]
    records = tandem.torch.explain_graph()[known:]
    return compiled, results, "\n".join(lines), sorted(record.fused_into for record in records)


def filled(code):
    """Calls in the code that write a planned buffer, and those that allocate their results."""
    calls, planned = code.count("torch.ops.tandem"), code.count(".noted_out")
    return planned, calls - planned


@check
def test_nothing_is_overwritten_that_is_used_again(name):
    ops = torch.ops.symm_mem

    def reduced(x):
        return funcol.all_reduce(x, "sum", dist.group.WORLD)

    def function(a, w):
        total, hidden = reduced(a), torch.relu(a)  # a graph's input is read where it lies
        product = a @ w
        doubled = reduced(product * 2)  # not in the product's buffer
        shifted = a + 1
        shared, later = reduced(shifted), shifted + 2
        alone, other = reduced(a - 1), torch.ones_like(a) + 22  # no other result lies in its place
        written = a @ w.t()
        dist.all_reduce(written)
        theirs = ops.one_shot_all_reduce(a, "sum", name)
        copied = ops.one_shot_all_reduce_copy(a + 9, a * 3, "sum", name)
        return total, hidden @ hidden + total, product, doubled, shared, later, alone, other, written, theirs, copied

    def wanted(a, w):
        sums = [reference.all_reduce(x, "sum", name) for x in (a, a @ w * 2, a + 1, a - 1, a @ w.t(), a * 3)]
        total, doubled, shared, alone, written, copied = sums
        hidden, other = torch.relu(a), torch.full_like(a, 23.0)
        return total, hidden @ hidden + total, a @ w, doubled, shared, a + 3, alone, other, written, total, copied

    rounds = []
    with tandem.torch.compile_config():
        compiled = None
        for seed in (1, 2):
            a, w = rand(8, 8, seed=seed), rand(8, 8, seed=seed + 10, same=True)
            if compiled is None:
                compiled, results, code, fused = lowered(function, a, w)
            else:
                with torch.no_grad():
                    results = compiled(a, w)
            rounds.append((seed, a, w, results))
    assert fused == 6 * ["all_reduce"] + ["matmul_all_reduce"], fused
    assert filled(code) == (7, 0) and "empty_strided_p2p(" not in code, code
    for seed, a, w, results in rounds:  # the first results, too, after the second call
        assert torch.equal(a, rand(8, 8, seed=seed)), "an input was overwritten"
        for got, want in zip(results, wanted(a, w), strict=True):
            near(got, want)


@check
def test_layers_share_buffers(name):
    """Products and all-reduces of symm_mem one behind another: results take each other's buffers, unless both live."""
    all_reduce = torch.ops.symm_mem.one_shot_all_reduce

    def layers(x, *weights):
        out = x
        for w in weights:
            out = torch.relu(all_reduce(out @ w, "sum", name))
        first = x @ weights[0]
        second = first @ weights[1]
        return out, all_reduce(first, "sum", name) + all_reduce(second, "sum", name)

    x, weights = rand(8, 8), [rand(8, 8, seed=seed, same=True) / 8 for seed in (1, 2, 3)]
    with tandem.torch.compile_config():
        _, (out, both), code, fused = lowered(layers, x, *weights)
    want = x
    for w in weights:
        want = torch.relu(reference.all_reduce(want @ w, "sum", name))
    near(out, want)
    near(both, reference.all_reduce(x @ weights[0] + x @ weights[0] @ weights[1], "sum", name))
    assert fused == ["all_reduce", *(4 * ["matmul_all_reduce"])] and filled(code) == (5, 0), (fused, code)
    made = len(re.findall(r"= empty_strided_(?:cpu|cuda)\(\(8, 8\)", code))
    assert made <= 6 and code.count("# reuse") >= 4, "ten results need no buffer each: " + code


@check
def test_small_all_reduces_of_dynamic_shapes(name):
    """A graph for many sizes goes by the size that it was compiled for. Larger ones than that are right, too."""

    def function(x):
        y = x * x
        dist.all_reduce(y)
        return torch.relu(x) * y

    def larger(x):  # whose graph is in no cache
        return function(x) + 1

    def check(compiled, count, more=0):
        x = rand(count)
        with torch.no_grad():
            near(compiled(x), torch.relu(x) * reference.all_reduce(x * x, "sum", name) + more)

    known = len(tandem.torch.explain_graph())
    with tandem.torch.compile_config():
        small = torch.compile(function, fullgraph=True)
        for count in (1024, 1536, 40000, 512):  # dynamic from the second on
            check(small, count)
        if not SHARED_GPUS:
            check(torch.compile(larger, fullgraph=True, dynamic=True), 40000, 1)
    fused = [record.fused_into for record in tandem.torch.explain_graph()[known:]]
    assert fused == ["all_reduce", "all_reduce", *([""] * (not SHARED_GPUS))], fused


@check
def test_collectives_that_stay_are_bucketed(name):
    """Beside those that are fused: Inductor makes one gather of two, one scatter of two, one all-reduce of two."""
    if SHARED_GPUS:
        return  # what stays is torch's own, which has no backend for ranks that share a GPU
    group = dist.group.WORLD

    def function(x, w, a, b, c, d):
        hidden = funcol.all_gather_tensor(x, 0, group) @ w
        out = funcol.reduce_scatter_tensor(hidden @ w.t(), "sum", 0, group)
        ops, size = torch.ops._c10d_functional, world()
        gathers = [ops.all_gather_into_tensor(one, size, name) for one in (a, b)]
        scatters = [ops.reduce_scatter_tensor(one * 2, "sum", size, name) for one in (a, b)]
        sums = [ops.all_reduce(one, "sum", name) for one in (c, d)]
        return out, *[ops.wait_tensor(one) for one in (*gathers, *scatters, *sums)]

    x, w = rand(4, 6), rand(6, 8, seed=1, same=True)
    a, b = rand(2 * world(), 5, seed=2), rand(4 * world(), 5, seed=3)
    c, d = rand(256, 256, seed=4), rand(256, 320, seed=5)  # too many bytes to be lowered as small
    modes = {"bucket_all_gathers_fx": "all", "bucket_reduce_scatters_fx": "all", "bucket_all_reduces_fx": "all"}
    with tandem.torch.compile_config(), torch._inductor.config.patch(modes):
        _, results, code, fused = lowered(function, x, w, a, b, c, d)
    assert fused == ["", "", "", "", "", "", "all_gather_matmul", "matmul_reduce_scatter"], fused
    for op in ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"):
        calls = [line for line in code.splitlines() if f"_c10d_functional.{op}" in line and "=" in line.split("(")[0]]
        assert len(calls) <= 1, calls
    assert code.count("wait_tensor.default(") == 3, code
    hidden = reference.all_gather(x, 0, name) @ w
    wanted = [reference.reduce_scatter(hidden @ w.t(), "sum", 0, name)]
    wanted += [reference.all_gather(one, 0, name) for one in (a, b)]
    wanted += [reference.reduce_scatter(one * 2, "sum", 0, name) for one in (a, b)]
    wanted += [reference.all_reduce(one, "sum", name) for one in (c, d)]
    for got, want in zip(results, wanted, strict=True):
        near(got, want)


if __name__ == "__main__":
    main()

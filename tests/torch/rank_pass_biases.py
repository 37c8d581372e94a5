"""A rank that compiles biases that are added before or behind a collective, as row-parallel layers do: with and without a residual
and a norm, what is scattered, what is no bias, and biases that differ from rank to rank."""

import torch
import torch.distributed as dist
from checks import DEVICE, SHARED_GPUS, check, main
from rank_pass import AR, RS, Compiler, compare
from rank_pass_norms import PRODUCT, by_hugging_face, by_torch, compared, operands, summed
from reference_ops import near, rand, world
from torch.distributed import _functional_collectives as funcol
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

TOLD, OWN, SCALED = "with the bias that is added behind it", "no bias: each rank adds its own", "scaled_"


def factors(*shape, columns=4):
    """Of a product, and a bias of its columns, another on each rank."""
    return rand(*shape), rand(shape[-1], columns, seed=1), rand(columns, seed=2)


def fused(function, *tensors, ops, told=TOLD, **options):
    """The function's collectives become these ops, each with its bias: of the op, or added behind the op."""
    compiler = compare(function, *tensors, fused=ops, **options)
    taken = [record for record in compiler.records if record.fused_into]
    assert all(told in record.reason for record in taken), [str(record) for record in compiler.records]


@check
def test_behind_an_all_reduce(name):
    """The bias on either side, with views between; gradients pass, too."""
    for function, shape in (
        (lambda a, b, bias: summed(a @ b) + bias, (3, 6)),
        (lambda a, b, bias: bias + summed(a @ b), (2, 3, 6)),
        (lambda a, b, bias: summed(a.flatten(0, 1) @ b).view(2, 3, -1) + bias, (2, 3, 6)),
        (lambda a, b, bias: (summed(a @ b) + bias.view(1, 1, -1)).flatten(), (2, 3, 6)),
        (lambda a, b, bias: summed(a @ b) + bias[None], (3, 6)),
    ):
        for grads in (False, True):
            compiler = compare(function, *factors(*shape), fused=None, grads=grads)
            record = compiler.records[0]
            assert record.fused_into == AR and OWN in record.reason, str(record)


@check
def test_other_all_reduces(name):
    """Averages, to which the bias is added as it is; in place, and of symm_mem."""

    def eager(a, b, bias):
        return summed(a @ b) + bias

    def in_place(a, b, bias):
        y = a @ b
        dist.all_reduce(y)
        return y + bias

    def adding_in_place(a, b, bias):
        y = summed(a @ b)
        y += bias
        return y

    for function, want in (
        (lambda a, b, bias: summed(a @ b, "avg") + bias, lambda a, b, bias: summed(a @ b) / world() + bias),
        (in_place, eager),
        (adding_in_place, eager),
        (lambda a, b, bias: torch.ops.symm_mem.one_shot_all_reduce(a @ b, "sum", name) + bias, eager),
    ):
        fused(function, *factors(4, 6), ops=[AR], told=OWN, grads=False, eager=want)


@check
def test_dynamic_shapes(name):
    tensors = factors(2 * world(), 6)
    for function, op, told in (
        (lambda a, b, bias: summed(a @ b) + bias, AR, OWN),
        (lambda a, b, bias: bias + funcol.reduce_scatter_tensor(a @ b, "sum", 0, dist.group.WORLD), RS, TOLD),
    ):
        for grads in (False, True):
            compiler = compare(function, *tensors, fused=None, left=None, grads=grads, dynamic=True)
            assert told in compiler.records[0].reason, str(compiler.records[0])
            assert compiler.records[0].fused_into == op, str(compiler.records[0])


@check
def test_behind_a_scatter(name):
    """Of any dimension but the columns, as each rank adds its bias to its rows."""
    rows = 2 * world()
    for shape, dims in (((rows, 6), (0,)), ((world(), rows, 6), (0, 1))):
        for dim in dims:
            for op in ("sum", "avg"):
                for grads in (False, True):

                    def function(a, b, bias, op=op):
                        return funcol.reduce_scatter_tensor(a @ b, op, dim, dist.group.WORLD) + bias

                    def eager(a, b, bias):
                        part = funcol.reduce_scatter_tensor(a @ b, "sum", dim, dist.group.WORLD)
                        return part / (world() if op == "avg" else 1) + bias

                    if grads and op == "avg":
                        continue
                    compiler = compare(function, *factors(*shape), fused=None, left=None, grads=grads, eager=eager)
                    record = compiler.records[0]
                    assert record.fused_into == RS and TOLD in record.reason, str(record)

    def own(a, b, bias):
        """Each rank's bias is its own."""
        return funcol.reduce_scatter_tensor(a @ b, "sum", 0, dist.group.WORLD) + a.sum() * bias

    fused(own, *factors(rows, 6), ops=[RS], grads=False)


@check
def test_of_fp8_products(name):
    one = torch.tensor(0.5, device=DEVICE)
    a, b = rand(16 * world(), 16).to(torch.float8_e4m3fn), rand(16, 16, seed=1).to(torch.float8_e4m3fn).t()
    bias = rand(16, seed=2)

    def product(a, b, one):
        return torch._scaled_mm(a, b, one, one, out_dtype=torch.float32)

    fused(
        lambda a, b, one, bias: summed(product(a, b, one)) + bias,
        *(a, b, one, bias),
        ops=[SCALED + AR],
        told=OWN,
        grads=False,
    )

    def scattered(a, b, one, bias):
        return funcol.reduce_scatter_tensor(product(a, b, one), "sum", 0, dist.group.WORLD) + bias

    fused(scattered, a, b, one, bias, ops=[SCALED + RS], grads=False)


@check
def test_with_a_residual_and_a_norm(name):
    def behind(x, a, b, residual, weight, bias):
        h = residual + (summed(a @ b) + bias)
        return h, by_torch(h, weight)

    def before(x, a, b, residual, weight, bias):
        h = (bias + summed(a @ b)) + residual
        return (by_hugging_face(h, weight),)

    def viewed(x, a, b, residual, weight, bias):
        h = (summed(a.flatten(0, -2) @ b) + bias).view(residual.shape) + residual
        return h, by_torch(h, weight)

    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for function in (behind, before, viewed):
            given = [*operands(2, 3, 8, dtype=dtype), rand(8, dtype=dtype, seed=5)]
            (record,) = compared(function, *given).records
            assert record.fused_into == PRODUCT and TOLD in record.reason, str(record)

    def averaged(x, a, b, residual, weight, bias):
        return (by_torch(residual + (summed(a @ b, "avg") + bias), weight),)

    def halved(x, a, b, residual, weight, bias):
        return (by_torch(residual + (summed(a @ b) / world() + bias), weight),)

    def by_other_rows(x, a, b, residual, weight, bias):
        h = (summed(a @ b) + bias).view(2, 3, 2, 4) + residual.view(2, 3, 2, 4)
        return (by_torch(h, weight[:4]),)

    given = [*operands(2, 3, 8), rand(8, seed=5)]
    for function, eager, reason in (
        (averaged, halved, "does not reduce by avg"),
        (by_other_rows, None, "its row is none of the product"),
    ):
        (record,) = compared(function, *given, eager=eager).records
        assert record.fused_into == AR and f"{OWN}; no norm: " in record.reason, str(record)
        assert reason in record.reason, str(record)


@check
def test_one_row(name):
    """What is added to it alone has its shape, and is a residual."""

    def function(x, a, b, residual, weight):
        h = residual + summed(a @ b)
        return h, by_torch(h, weight)

    (record,) = compared(function, *operands(1, 8)).records
    assert record.fused_into == PRODUCT and TOLD not in record.reason, str(record)


@check
def test_what_is_no_bias_has_its_reason(name):
    a, b, bias = factors(2 * world(), 6, columns=2 * world())

    def scattered(x, dim):
        return funcol.reduce_scatter_tensor(x, "sum", dim, dist.group.WORLD)

    def columns_alone(a, b, bias):
        return scattered(a @ b, 1) + bias[:2]

    def columns_as_rows(a, b, bias):
        """With as many columns again as the product, but of several rows."""
        return scattered(a @ b, 1).reshape(-1, 2 * world()) + bias

    def wider(a, b, bias):
        return (summed(a.half() @ b.half()) + bias).half()

    def used_twice(a, b, bias):
        y = summed(a @ b)
        return (y + bias) * y

    for function, into, reason in (
        (lambda a, b, bias: summed(a @ b) + bias * 2, AR, "each rank adds its own"),
        (lambda a, b, bias: summed(a @ b) + a.mean(0)[:1], AR, "no vector of the product's columns"),
        (wider, AR, "of another type"),
        (
            lambda a, b, bias: summed(a @ b).view(-1, world()) + bias[: world()],
            AR,
            "no vector of the product's columns",
        ),
        (columns_alone, RS, "no vector of the product's columns"),
        (columns_as_rows, RS, "no vector of the product's columns"),
        (lambda a, b, bias: summed(a @ b) + bias.view(-1, 1), AR, ""),
        (lambda a, b, bias: summed(a @ b) + 1.5, AR, ""),
        (lambda a, b, bias: torch.add(summed(a @ b), bias, alpha=2), AR, ""),
        (used_twice, AR, ""),
    ):
        (record,) = compare(function, a, b, bias, fused=[into], grads=False).records
        assert reason in record.reason and ("; no bias: " in record.reason) == bool(reason), str(record)


@check
def test_divided_by_the_ranks(name):
    """A vector over their number is added by each rank: the sum has the mean of all, which is none of them."""
    group = dist.group.WORLD

    def scattered(a, b, bias):
        return funcol.reduce_scatter_tensor(torch.addmm(bias / world(), a, b), "sum", 0, group)

    def computed(a, b, bias):
        return summed(torch.addmm(a.mean(0)[0] * bias / world(), a, b))

    for function, op in (
        (scattered, "reduce_scatter"),
        (lambda a, b, bias: summed(torch.addmm(bias / world(), a, b)), "all_reduce"),
        (computed, "all_reduce"),
    ):
        compiler = compare(function, *factors(2 * world(), 6), fused=[op], grads=False)
        (record,) = compiler.records
        assert "bias of its own" in record.reason, str(record)


@check
def test_replicated_by_the_program(name):
    """A DTensor's placements say that ranks have equal biases: these are the op's. A sharded one of the same shape is not taken for
    it, also where a backward is compiled."""

    def function(a, b, bias, other):
        before = funcol.reduce_scatter_tensor(torch.addmm(bias.to_local() / world(), a, b), "sum", 0, dist.group.WORLD)
        behind = summed(a @ b) + bias.to_local()
        return before, behind, summed(a @ b) + other.to_local(), summed(torch.addmm(other.to_local() / world(), a, b))

    a, b, bias = rand(2 * world(), 6), rand(6, 4, seed=1), rand(4, seed=2, same=True)
    own = rand(4, seed=3)
    for grads in (False, True):
        torch._dynamo.reset()
        compiler = Compiler()
        outcomes = []
        for run, device in ((function, "cpu"), (torch.compile(function, backend=compiler, fullgraph=True), DEVICE)):
            placed = DeviceMesh.from_group(dist.group.WORLD, device)
            leaves = [one.to(device, copy=True).requires_grad_(grads) for one in (a, b, bias, own)]
            shared = DTensor.from_local(leaves[2], placed, [Replicate()], run_check=False)
            apart = DTensor.from_local(leaves[3], placed, [Shard(0)], run_check=False)
            results = run(leaves[0], leaves[1], shared, apart)
            if grads:
                sum((one * one).sum() for one in results).backward()
            outcomes.append([*(one.detach() for one in results), *(leaf.grad for leaf in leaves if grads)])
        for want, got in zip(*outcomes, strict=True):
            near(got, want)
        records = [(record.fused_into, record.reason) for record in compiler.records[:4]]
        for (op, reason), (fused_into, told) in zip(
            records, ((RS, "of the product"), (AR, TOLD), (AR, OWN), ("all_reduce", "bias of its own")), strict=True
        ):
            assert op == fused_into and told in reason, records


@check
def test_without_a_product(name):
    """The plain all-reduce adds no bias."""
    if SHARED_GPUS:
        return
    compiler = compare(
        lambda x, bias: summed(x * 2) + bias, rand(4, 6), rand(6, seed=1, same=True), fused=["all_reduce"], grads=False
    )
    assert "bias" not in compiler.records[0].reason, compiler.records


if __name__ == "__main__":
    main()

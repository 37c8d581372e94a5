"""A rank that checks torch.ops.tandem against torch's own collectives and products, values and gradients."""

import tandem.torch
import torch
import torch.distributed as dist
from checks import DEVICE, check, main, once
from reference_ops import (
    OPS,
    TOLERANCE,
    _Reduce,
    _Scatter,
    gradients,
    near,
    rand,
    rank,
    ref_gather,
    reference,
    same_gradients,
    world,
)
from torch.distributed import _functional_collectives as funcol
from torch.testing import assert_close


@check
def test_it_is_served_by_tandem(name):
    attached = tandem.torch.attach(name)
    assert attached.group is not None, attached.reason
    assert (attached.group.rank, attached.group.world_size) == (rank(), world())
    assert tandem.torch.attach(dist.group.WORLD) is attached


@check
def test_collectives_of_all_types(name):
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8):
        x = (rand(2 * world(), 3, 4 * world()) * 4).to(dtype)
        exact = dtype not in TOLERANCE
        for op in ("sum",) if exact else ("sum", "avg"):
            want = reference.all_reduce(x.float() if not exact else x.long(), op, name).to(dtype)
            got = OPS.all_reduce(x, op, name)
            assert torch.equal(got, want) if exact else near(got, want) is None
            for dim in (0, 2, -1):
                part = torch.chunk(want, world(), dim)[rank()]
                got = OPS.reduce_scatter(x, op, dim, name)
                assert got.is_contiguous()
                assert torch.equal(got, part) if exact else near(got, part) is None
        for dim in (0, 1, -1):
            assert torch.equal(OPS.all_gather(x, dim, name), reference.all_gather(x, dim % 3, name))
        for dim in (0, 2):
            assert torch.equal(OPS.all_to_all(x, dim, name), reference.all_to_all(x, dim, name))
        assert torch.equal(OPS.broadcast(x, world() - 1, name), reference.broadcast(x, world() - 1, name))


@check
def test_reductions_that_are_no_sums(name):
    functions = {
        "min": torch.minimum,
        "max": torch.maximum,
        "product": torch.mul,
        "band": torch.bitwise_and,
        "bor": torch.bitwise_or,
        "bxor": torch.bitwise_xor,
    }
    for op, function in functions.items():
        floats = () if op in ("band", "bor", "bxor") else (torch.float32, torch.bfloat16)
        for dtype in (*floats, torch.int32, torch.int64, torch.uint8):
            x = (rand(2 * world(), 3, 4 * world()) * 4).to(dtype)
            each = reference.all_gather(x, 0, name).chunk(world())
            want = each[0].float() if dtype.is_floating_point else each[0]
            for one in each[1:]:
                want = function(want, one)
            want = want.to(dtype)
            assert torch.equal(OPS.all_reduce(x, op, name), want), (op, dtype)
            for dim in (0, 2):
                assert torch.equal(OPS.reduce_scatter(x, op, dim, name), want.chunk(world(), dim)[rank()]), (op, dtype)
            y = x.clone()
            OPS.all_reduce_(y, op, name)
            assert torch.equal(y, want), (op, dtype)


@check
def test_reductions_that_are_none(name):
    x, w = rand(2, 3), rand(3, 2)
    for call, said in (
        (lambda: OPS.all_reduce(x, "most", name), "reduce_op is one of sum, avg"),
        (lambda: OPS.all_reduce(x, "bxor", name), "needs integers"),
        (lambda: OPS.matmul_all_reduce(x, w, "max", name), "'sum' or 'avg', not 'max'"),
    ):
        try:
            call()
        except ValueError as error:
            assert said in str(error), error
        else:
            raise AssertionError(said)
    leaf = x.clone().requires_grad_()
    try:
        OPS.all_reduce(leaf, "max", name).sum().backward()
    except RuntimeError as error:
        assert "'max' has no gradient" in str(error), error
    else:
        raise AssertionError("a maximum has no gradient")


@check
def test_collectives_of_odd_tensors(name):
    for x in (
        rand(0, 4),
        rand(7).reshape(7),
        rand(6, 4 * world()).t(),
        rand(3, 8)[:, ::2],
        rand(1, 4).expand(5, 4),
        torch.tensor(float(rank()), device=DEVICE),
    ):
        near(OPS.all_reduce(x, "sum", name), reference.all_reduce(x, "sum", name))
        if x.dim():
            near(OPS.all_gather(x, 0, name), reference.all_gather(x, 0, name))


@check
def test_all_gather_matmul(name):
    for dtype in TOLERANCE:
        for shape, dims in (((4, 6), (0, 1, -1)), ((2, 4, 6), (0, 1, 2)), ((1, 4, 6), (0, 1))):
            a = rand(*shape, dtype=dtype)
            for dim in dims:
                depth = 6 * (world() if dim % len(shape) == len(shape) - 1 else 1)
                bs = [rand(depth, 5, dtype=dtype, seed=1), rand(3, depth, dtype=dtype, seed=2).t()]
                for use in (bs[:1], bs):
                    whole, products = OPS.all_gather_matmul(a, use, dim, name)
                    want = reference.all_gather(a, dim % a.dim(), name)
                    assert torch.equal(whole, want)
                    for got, b in zip(products, use, strict=True):
                        near(got, (want.float() @ b.float()).to(dtype))
                    none, again = OPS.all_gather_matmul(a, use, dim, name, return_A=False)
                    assert none is None and all(map(torch.equal, again, products))


@check
def test_all_gather_matmul_with_biases(name):
    a, bs, biases = rand(4, 6), [rand(6, 5, seed=1), rand(6, 3, seed=2)], [rand(5, seed=3), rand(3, seed=3)]
    _, products = OPS.all_gather_matmul(a, bs, 0, name, biases)
    for got, b, bias in zip(products, bs, biases, strict=True):
        near(got, reference.all_gather(a, 0, name) @ b + bias)


@check
def test_matmul_reduce_scatter(name):
    for dtype in TOLERANCE:
        for shape in ((2 * world(), 6), (world(), 2 * world(), 6), (1, world(), 6)):
            a = rand(*shape, dtype=dtype)
            for b in (rand(6, 3 * world(), dtype=dtype, seed=1), rand(3 * world(), 6, dtype=dtype, seed=1).t()):
                for op in ("sum", "avg"):
                    for dim in range(-1, len(shape)):
                        if shape[dim] % world() and dim not in (-1, len(shape) - 1):
                            continue
                        got = OPS.matmul_reduce_scatter(a, b, op, dim, name)
                        near(got, reference.reduce_scatter(a.float() @ b.float(), op, dim % len(shape), name).to(dtype))
                        assert got.is_contiguous()


@check
def test_matmul_reduce_scatter_with_bias(name):
    a, b = rand(2 * world(), 6), rand(6, 3 * world(), seed=1)
    bias = rand(3 * world(), seed=2)
    near(OPS.matmul_reduce_scatter(a, b, "sum", 0, name, bias), reference.reduce_scatter(a @ b, "sum", 0, name) + bias)
    near(
        OPS.matmul_reduce_scatter(a, b, "sum", 1, name, bias),
        reference.reduce_scatter(a @ b, "sum", 1, name) + bias.chunk(world())[rank()],
    )


@check
def test_matmul_all_reduce(name):
    for dtype in TOLERANCE:
        for shape in ((1, 6), (5, 6), (2, 3, 6)):
            a, b = rand(*shape, dtype=dtype), rand(6, 4, dtype=dtype, seed=1)
            bias = rand(4, dtype=dtype, seed=2, same=True)
            for op in ("sum", "avg"):
                want = reference.all_reduce(a.float() @ b.float(), op, name)
                near(OPS.matmul_all_reduce(a, b, op, name), want.to(dtype))
                near(OPS.matmul_all_reduce(a, b, op, name, bias), (want + bias.float()).to(dtype))


@check
def test_out_overloads(name):
    a, b = rand(2 * world(), 6), rand(6, 4, seed=1)
    out = torch.full((2, 4), float("nan"), device=DEVICE)
    assert OPS.matmul_reduce_scatter.out(a, b, "sum", 0, name, out=out) is None
    near(out, reference.reduce_scatter(a @ b, "sum", 0, name))
    wide = torch.full((2 * world(), 4, 2), float("nan"), device=DEVICE)[:, :, 0]  # not contiguous
    OPS.matmul_all_reduce.out(a, b, "sum", name, out=wide)
    near(wide.contiguous(), reference.all_reduce(a @ b, "sum", name))
    x = rand(2 * world(), 3)
    for op, arguments, like in (
        ("all_reduce", ("sum",), x),
        ("all_gather", (0,), torch.empty(2 * world() ** 2, 3, device=DEVICE)),
        ("reduce_scatter", ("sum", 0), torch.empty(2, 3, device=DEVICE)),
        ("all_to_all", (0,), x),
        ("broadcast", (0,), x),
    ):
        out = torch.full_like(like, float("nan"))
        getattr(OPS, op).out(x, *arguments, name, out=out)
        assert torch.equal(out, getattr(OPS, op)(x, *arguments, name)), op
    try:
        OPS.all_reduce.out(x, "sum", name, out=torch.empty(1, device=DEVICE))
        raise AssertionError("a wrong out was taken")
    except ValueError as error:
        assert "must be" in str(error)
    try:
        OPS.all_reduce.out(x.clone().requires_grad_(), "sum", name, out=torch.empty_like(x))
        raise AssertionError("gradients got lost in silence")
    except RuntimeError as error:
        assert "no gradients" in str(error)


@check
def test_gradients_of_collectives(name):
    x = rand(2 * world(), 3 * world())
    for op in ("sum", "avg"):
        same_gradients(lambda x: [OPS.all_reduce(x, op, name)], lambda x: [_Reduce.apply(x, op, name)], x)
        for dim in (0, 1):
            same_gradients(
                lambda x: [OPS.reduce_scatter(x, op, dim, name)], lambda x: [_Scatter.apply(x, op, dim, name)], x
            )
    for dim in (0, -1):
        same_gradients(lambda x: [OPS.all_gather(x, dim, name)], lambda x: [ref_gather(x, dim, name)], x)
    weights = torch.linspace(0.5, 1.5, x.numel(), device=DEVICE).view(x.shape)
    (got,) = gradients(lambda x: [OPS.all_to_all(x, 0, name)], x)
    near(got, reference.all_to_all(weights * (1 + rank()), 0, name))
    (got,) = gradients(lambda x: [OPS.broadcast(x, 1, name)], x)
    near(got, weights * (sum(range(1, world() + 1)) if rank() == 1 else 0))


@check
def test_gradients_of_all_gather_matmul(name):
    for shape, dims in (((4, 6), (0, 1)), ((2, 4, 6), (0, 1, 2))):
        a = rand(*shape)
        for dim in dims:
            depth = 6 * (world() if dim == len(shape) - 1 else 1)
            b, c, first, second = rand(depth, 5, seed=1), rand(depth, 3, seed=2), rand(5, seed=3), rand(3, seed=3)

            def theirs(a, b, c, first, second):
                whole = ref_gather(a, dim, name)
                return [whole, whole @ b + first, whole @ c + second]

            for keep in (True, False):

                def ours(a, b, c, first, second):
                    whole, products = OPS.all_gather_matmul(a, [b, c], dim, name, [first, second], return_A=keep)
                    return [whole, *products]

                same_gradients(ours, lambda *given: theirs(*given)[0 if keep else 1 :], a, b, c, first, second)
            same_gradients(
                lambda a, b: OPS.all_gather_matmul(a, [b], dim, name, return_A=False)[1],
                lambda a, b: [ref_gather(a, dim, name) @ b],
                a,
                b,
            )
            # Only A's gradient, only B's, and a product that no loss uses.
            (got,) = gradients(lambda a: OPS.all_gather_matmul(a, [b, c], dim, name, return_A=False)[1][1:], a)
            (want,) = gradients(lambda a: [ref_gather(a, dim, name) @ c], a)
            near(got, want)
            (got,) = gradients(lambda c: OPS.all_gather_matmul(a, [b, c], dim, name, return_A=False)[1], c)
            (want,) = gradients(lambda c: [ref_gather(a, dim, name) @ b, ref_gather(a, dim, name) @ c], c)
            near(got, want)


@check
def test_gradients_of_reduced_products(name):
    bias = rand(3 * world(), seed=3)
    for shape in ((2 * world(), 6), (2, world(), 6)):
        a, b = rand(*shape), rand(6, 3 * world(), seed=1)
        for op in ("sum", "avg"):
            for dim in (len(shape) - 2, len(shape) - 1):
                same_gradients(
                    lambda a, b: [OPS.matmul_reduce_scatter(a, b, op, dim, name)],
                    lambda a, b: [_Scatter.apply(a @ b, op, dim, name)],
                    a,
                    b,
                )
            same_gradients(
                lambda a, b, bias: [OPS.matmul_reduce_scatter(a, b, op, len(shape) - 2, name, bias)],
                lambda a, b, bias: [_Scatter.apply(a @ b, op, len(shape) - 2, name) + bias],
                a,
                b,
                bias,
            )
            same_gradients(
                lambda a, b, bias: [OPS.matmul_reduce_scatter(a, b, op, -1, name, bias)],
                lambda a, b, bias: [_Scatter.apply(a @ b, op, -1, name) + bias.chunk(world())[rank()]],
                a,
                b,
                bias,
            )
            same_gradients(
                lambda a, b, bias: [OPS.matmul_all_reduce(a, b, op, name, bias)],
                lambda a, b, bias: [_Reduce.apply(a @ b, op, name) + bias],
                a,
                b,
                bias,
            )
        (got,) = gradients(lambda b: [OPS.matmul_reduce_scatter(a, b, "sum", len(shape) - 2, name)], b)
        (want,) = gradients(lambda b: [_Scatter.apply(a @ b, "sum", len(shape) - 2, name)], b)
        near(got, want)


@check
def test_opcheck(name):
    x = rand(2 * world(), 3 * world()).requires_grad_()
    a, b, bias = (
        rand(2 * world(), 6).requires_grad_(),
        rand(6, 2 * world(), seed=1).requires_grad_(),
        rand(2 * world()).requires_grad_(),
    )
    cases = [
        ("all_reduce", (x, "sum", name), {}),
        ("all_gather", (x, 1, name), {}),
        ("reduce_scatter", (x, "avg", 1, name), {}),
        ("all_to_all", (x, 0, name), {}),
        ("broadcast", (x, 0, name), {}),
        ("matmul_reduce_scatter", (a, b, "sum", 0, name, bias), {}),
        ("matmul_reduce_scatter", (a, b, "sum", 1, name), {}),
        ("matmul_all_reduce", (a, b, "sum", name, bias), {}),
        ("all_gather_matmul", (a, [b, b.detach().clone()], 0, name, [bias, bias]), {"return_A": False}),
        ("all_gather_matmul", (a, [b], 0, name), {"return_A": True}),
        ("all_gather_matmul", (rand(2, 3, 4).requires_grad_(), [rand(4, 2).requires_grad_()], 1, name), {}),
    ]
    eight, one = rand(2 * world(), 16).to(torch.float8_e4m3fn), torch.tensor(0.5, device=DEVICE)
    cases += [
        ("scaled_matmul_all_reduce", (eight, eight.t(), one, one, "sum", name, None, None, torch.bfloat16), {}),
        (
            "scaled_matmul_reduce_scatter",
            (eight, eight.t(), one, one, "sum", 0, 0, name, None, None, None, torch.bfloat16),
            {},
        ),
        (
            "all_gather_scaled_matmul",
            (eight, [eight.t()], one, [one], 0, name, [None], [None], [torch.bfloat16], [True]),
            {},
        ),
    ]
    for op, arguments, named in cases:
        every = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
        # torch compares no fp8 tensors on the CPU, which torch's first test does.
        torch.library.opcheck(getattr(OPS, op).default, arguments, named, test_utils=every["scaled" in op :])


@check
@torch.no_grad()
def test_opcheck_of_overloads(name):
    x, a, b = rand(2 * world(), 3 * world()), rand(2 * world(), 6), rand(6, 2 * world(), seed=1)
    bias = rand(2 * world())
    eight, one = rand(2 * world(), 16).to(torch.float8_e4m3fn), torch.tensor(0.5, device=DEVICE)
    for op, arguments, out in (
        ("all_reduce", (x, "sum", name), torch.empty_like(x)),
        ("all_gather", (x, 0, name), torch.empty(2 * world() ** 2, 3 * world(), device=DEVICE)),
        ("reduce_scatter", (x, "avg", 0, name), torch.empty(2, 3 * world(), device=DEVICE)),
        ("all_to_all", (x, 0, name), torch.empty_like(x)),
        ("broadcast", (x, 0, name), torch.empty_like(x)),
        (
            "matmul_reduce_scatter",
            (a, b, "sum", 0, name),
            torch.empty(2, 2 * world(), device=DEVICE),
        ),
        (
            "matmul_all_reduce",
            (a, b, "sum", name),
            torch.empty(2 * world(), 2 * world(), device=DEVICE),
        ),
    ):
        noted = {"graph": "opcheck"}
        for overload, named in (("out", {"out": out}), ("noted", noted), ("noted_out", noted | {"out": out})):
            torch.library.opcheck(
                getattr(getattr(OPS, op), overload),
                arguments,
                named,
                test_utils=("test_schema", "test_faketensor"),
            )
    whole, shard = (2 * world(), 2 * world()), (2, 2 * world())
    reduced = (eight, eight.t(), one, one, "sum", name, None, None, torch.bfloat16)
    scattered = (eight, eight.t(), one, one, "sum", 0, 0, name, None, None, None, torch.bfloat16)
    for op, arguments, shape in (
        ("scaled_matmul_all_reduce", reduced, whole),
        ("scaled_matmul_reduce_scatter", scattered, shard),
    ):
        out = torch.empty(shape, dtype=torch.bfloat16, device=DEVICE)
        for overload, named in (("out", {"out": out}), ("noted", noted), ("noted_out", noted | {"out": out})):
            torch.library.opcheck(
                getattr(getattr(OPS, op), overload), arguments, named, test_utils=("test_faketensor",)
            )
    rows = 2 * world() ** 2
    eights = torch.empty(rows, 16, dtype=torch.float8_e4m3fn, device=DEVICE)
    products = [torch.empty(rows, 2 * world(), dtype=torch.bfloat16, device=DEVICE)]
    for overload, named in (("out", {}), ("noted_out", noted)):
        torch.library.opcheck(
            getattr(OPS.all_gather_scaled_matmul, overload),
            (eight, [eight.t()], one, [one], 0, name, [None], [None], [torch.bfloat16], [True]),
            named | {"gathered": eights, "outs": products},
            test_utils=("test_faketensor",),
        )
    low = x
    for op, arguments, out in (
        ("low_contention_all_gather", (low, name), torch.empty(rows, 3 * world(), device=DEVICE)),
        ("low_contention_reduce_scatter", (low, "sum", name), torch.empty(2, 3 * world(), device=DEVICE)),
    ):
        for overload, named in (("default", {}), ("out", {"out": out})):
            torch.library.opcheck(
                getattr(getattr(OPS, op), overload),
                arguments,
                named,
                test_utils=("test_schema", "test_faketensor"),
            )
    outs = [torch.empty(2 * world() ** 2, 2 * world(), device=DEVICE) for _ in range(2)]
    gathered = [torch.empty(2 * world() ** 2, 6, device=DEVICE)]
    torch.library.opcheck(
        OPS.all_gather_matmul.out,
        (a, [b, b.clone()], 0, name, [bias, bias.clone()]),
        {"gathered": gathered, "outs": outs},
        test_utils=("test_schema", "test_faketensor"),
    )


@check
def test_wrong_arguments_fail_before_anything_is_sent(name):
    a, b = rand(4, 6), rand(6, 4)
    for call in (
        lambda: OPS.all_reduce(a, "most", name),
        lambda: OPS.all_reduce(a, "bor", name),
        lambda: OPS.all_gather(a, 2, name),
        lambda: OPS.reduce_scatter(rand(2 * world() + 1, 3), "sum", 0, name),
        lambda: OPS.broadcast(a, world(), name),
        lambda: OPS.all_gather_matmul(a, [], 0, name),
        lambda: OPS.all_gather_matmul(a, [rand(5, 4)], 0, name),
        lambda: OPS.all_gather_matmul(a, [b], 0, name, [rand(3)]),
        lambda: OPS.matmul_all_reduce(a, b.half(), "sum", name),
        lambda: OPS.matmul_all_reduce(a[0], b, "sum", name),
        lambda: OPS.matmul_reduce_scatter(a, b, "sum", 0, name, rand(9)),
    ):
        try:
            call()
        except ValueError:
            continue
        raise AssertionError("wrong arguments were taken")


@once
def test_declined_types_fall_back_alike(name):
    import warnings

    x = rand(4, 3).double()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            assert_close(OPS.all_reduce(x, "sum", name), reference.all_reduce(x, "sum", name))
    texts = [str(one.message) for one in seen]
    assert len(texts) == (1 if rank() == 0 else 0) and all("float64" in text for text in texts), texts
    assert all(one.filename == __file__ for one in seen), seen


@once
def test_ranks_that_disagree_get_an_error(name):
    try:
        OPS.all_reduce(rand(4, 211 + rank()), "sum", name)  # columns, of no family yet: rows may differ
        raise AssertionError("a disagreement was taken")
    except tandem.FieldMismatch as error:
        assert "shape" in error.field, error
    near(OPS.all_reduce(rand(4, 211), "sum", name), reference.all_reduce(rand(4, 211), "sum", name))


@check
def test_functional_collectives_compose(name):
    x = rand(4, 4)
    near(
        funcol.all_reduce(OPS.all_reduce(x, "sum", name), "sum", name) * 1.0,
        reference.all_reduce(reference.all_reduce(x, "sum", name), "sum", name),
    )


if __name__ == "__main__":
    main()

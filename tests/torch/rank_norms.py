"""A rank that checks sums with a residual and an RMSNorm behind them: values, the residual in place, and what goes past Python."""

import warnings

import tandem.torch
import torch
from checks import DEVICE, check, main, once
from norm_checks import EPSILON, fails, launched_since, operands
from reference_ops import OPS, TOLERANCE, near, rank, reference, world
from tandem.torch import _fallback, _native
from torch._inductor.utils import run_and_get_code
from torch.testing import assert_close


def calls_of(x, a, b, weight, bias, name):
    """Both ops: what they take before and behind the residual."""
    return (
        ("all_reduce_rms_norm", (x,), (weight, EPSILON, name)),
        ("matmul_all_reduce_rms_norm", (a, b), (weight, EPSILON, name)),
        ("matmul_all_reduce_rms_norm", (a, b), (weight, EPSILON, name, bias)),
    )


def wanted(first, residual, behind):
    """The norm and the residual behind it, from values in f32."""
    weight, epsilon, name, *bias = behind
    product = first[0].float() if len(first) == 1 else first[0].float() @ first[1].float()
    total = reference.all_reduce(product, "sum", name) + residual.float() + sum(one.float() for one in bias)
    normed = torch.nn.functional.rms_norm(total, weight.shape, weight.float(), epsilon)
    return normed.to(residual.dtype), total.to(residual.dtype)


@check
def test_values(name):
    for dtype in TOLERANCE:
        for shape in ((1, 8), (5, 8), (2, 3, 40), (3, 1000), (0, 8)):
            x, a, b, residual, weight, bias = operands(*shape, dtype=dtype)
            for op, first, behind in calls_of(x, a, b, weight, bias, name):
                given = residual.clone()
                address = given.data_ptr()
                got = getattr(OPS, op)(*first, given, *behind)
                normed, total = wanted(first, residual, behind)
                near(got, normed)
                near(given, total)
                assert given.data_ptr() == address != got.data_ptr() or not got.numel()
                assert got.is_contiguous() and got.dtype == dtype
                # Rounded once, as the residual is beside it.
                exact = _fallback._normed(given.double(), weight.double(), EPSILON)
                step = torch.finfo(dtype).eps
                assert_close(got.double(), exact, rtol=1.1 * step if dtype != torch.float32 else 8 * step, atol=1e-7)
    x, _, _, residual, weight, _ = operands(8)  # of one dimension
    want = reference.all_reduce_rms_norm(x, residual, weight, EPSILON, name)
    near(OPS.all_reduce_rms_norm(x, residual, weight, EPSILON, name), want[0])
    near(residual, want[1])


@check
def test_launches_go_past_python(name):
    x, a, b, residual, weight, bias = operands(4, 8)
    out, nan = torch.empty_like(x), float("nan")
    for op, first, behind in calls_of(x, a, b, weight, bias, name):
        normed, total = wanted(first, residual, behind)
        operation = getattr(OPS, op)
        calls = (
            lambda given: operation(*first, given, *behind),
            lambda given: operation.noted(*first, given, *behind, graph="a graph"),
            lambda given: operation.out(*first, given, *behind, out=out.fill_(nan)) or out,
            lambda given: operation.noted_out(*first, given, *behind, graph="a graph", out=out.fill_(nan)) or out,
        )
        for call in calls:
            call(residual.clone())
            before = _native.counts().launched
            for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
                with mode():
                    given = residual.clone()
                    near(call(given), normed)
                    near(given, total)
            assert launched_since(before, 3), op


@check
def test_epsilons_have_plans_of_their_own(name):
    x, _, _, residual, weight, _ = operands(4, 8)
    small = 1e-3 * residual
    for epsilon in (1e-5, 1.0, 0.0, 1e-5, 1.0):
        want, _ = wanted((x * 1e-3,), small, (weight, epsilon, name))
        for _ in range(2):
            near(OPS.all_reduce_rms_norm(x * 1e-3, small.clone(), weight, epsilon, name), want)
    near(OPS.all_reduce(x, "sum", name), reference.all_reduce(x, "sum", name))


@check
def test_tensors_of_other_strides(name):
    x, a, b, residual, weight, bias = operands(4, 8)
    for op, first, behind in calls_of(x, a, b, weight, bias, name):
        normed, total = wanted(first, residual, behind)
        for _ in range(3):
            given = torch.stack([residual, residual], -1)[..., 0]
            wide = torch.full((4, 8, 2), float("nan"), device=DEVICE)
            getattr(OPS, op).out(*first, given, *behind, out=wide[..., 1])
            near(wide[..., 1].contiguous(), normed)
            near(given.contiguous(), total)
            assert wide[..., 0].isnan().all()
            given, wide = residual.clone(), torch.full((4, 8, 2), float("nan"), device=DEVICE)
            getattr(OPS, op).out(*first, given, *behind, out=wide[..., 1])
            near(wide[..., 1].contiguous(), normed)
            given, turned = residual.clone(), [one.t().contiguous().t() for one in first]
            scattered = torch.stack([weight, weight], 1)[:, 0]
            near(getattr(OPS, op)(*turned, given, scattered, *behind[1:]), normed)
            near(given, total)
        fails(ValueError, lambda: getattr(OPS, op)(*first, residual[:1].expand(4, 8), *behind), "share memory")


@check
def test_peers_write_symmetric_outputs_in_place(name):
    for dtype in (torch.float32, torch.bfloat16):
        x, a, b, residual, weight, bias = operands(4 * world(), 8, dtype=dtype)
        for op, first, behind in calls_of(x, a, b, weight, bias, name)[::2]:
            normed, total = wanted(first, residual, behind)
            plain, symmetric = torch.empty_like(normed), tandem.torch.empty(normed.shape, dtype=dtype)
            plans = []
            for step, out in enumerate((plain, symmetric, plain, symmetric, symmetric)):
                before, given = _native.counts().launched, residual.clone()
                getattr(OPS, op).out(*first, given, *behind, out=out.fill_(float("nan")))
                near(out.clone(), normed)
                near(given, total)
                plans.append(tandem.torch.attach(name).plans.infos()[-1]["plan_id"])
                assert step <= 1 or launched_since(before, 1), (op, step)
            assert plans[0] == plans[2] != plans[1] == plans[3] == plans[4], plans
            held = tandem.torch.empty(normed.shape, dtype=dtype)  # a residual there is an ordinary one
            for _ in range(2):
                held.copy_(residual)
                near(getattr(OPS, op)(*first, held, *behind), normed)
                near(held.clone(), total)
            del symmetric, out, held


def compiles_to_the_same(block, name):
    """Whether a compiled block gives eager mode's results and leaves its residual as eager mode does."""
    x, _, b, residual, weight, bias = operands(4, 8, columns=8)
    given, expected = residual.clone(), residual.clone()
    with torch.no_grad():
        want = block(x, expected, weight, b, bias)
        got, (code,) = run_and_get_code(torch.compile(block, fullgraph=True), x, given, weight, b, bias)
    near(got, want)
    near(given, expected)
    return code


@check
def test_compiled(name):
    def layer(x, residual, weight, b, bias):
        hidden = OPS.all_reduce_rms_norm(torch.relu(x), residual, weight, EPSILON, name)
        return 2 * OPS.matmul_all_reduce_rms_norm(hidden, b, residual, weight + 1, 1e-6, name, bias)

    def stream(x, residual, weight, b, bias):
        """The residual is no input of the graph."""
        own = residual * x
        return layer(x, own, weight, b, bias) + own

    for block in (layer, stream):
        code = compiles_to_the_same(block, name)
        assert "tandem.all_reduce_rms_norm" in code and "tandem.matmul_all_reduce_rms_norm" in code, code
        torch._dynamo.reset()
        with tandem.torch.compile_config():
            compiles_to_the_same(block, name)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    for rows in (4, 6, 7):
        x, _, b, residual, weight, bias = operands(rows, 8, columns=8)
        expected = residual.clone()
        with torch.no_grad():
            want = layer(x, expected, weight, b, bias)
            near(compiled(x, residual, weight, b, bias), want)
        near(residual, expected)


@check
def test_opcheck(name):
    x, a, b, residual, weight, bias = operands(4, 8)
    for op, first, behind in calls_of(x, a, b, weight, bias, name):
        out = torch.empty_like(residual)
        torch.library.opcheck(getattr(OPS, op).default, (*first, residual.clone(), *behind))
        noted = {"graph": "opcheck"}
        for overload, named in (("out", {"out": out}), ("noted", noted), ("noted_out", noted | {"out": out})):
            torch.library.opcheck(
                getattr(getattr(OPS, op), overload),
                (*first, residual.clone(), *behind),
                named,
                test_utils=("test_schema", "test_faketensor"),
            )


@check
def test_wrong_arguments_fail_before_anything_is_sent(name):
    x, a, b, residual, weight, bias = operands(4, 8)
    before = residual.clone()
    for op, first, behind in calls_of(x, a, b, weight, bias, name):
        operation = getattr(OPS, op)
        for given, what in (
            ((residual.half(), *behind), "residual is torch.float16"),
            ((residual[:3], *behind), "residual is torch.float32 [3, 8]"),
            ((residual, weight.double(), *behind[1:]), "weight is torch.float64"),
            ((residual, weight[:7], *behind[1:]), "weight is torch.float32 [7]"),
            ((residual, weight.view(1, 8), *behind[1:]), "weight is torch.float32 [1, 8]"),
            ((residual, weight, -1.0, *behind[2:]), "epsilon is -1.0"),
            ((residual, weight, float("nan"), *behind[2:]), "epsilon is nan"),
        ):
            fails(ValueError, lambda: operation(*first, *given), what)
            fails(ValueError, lambda: operation.out(*first, *given, out=torch.empty_like(x)), what)
        fails(
            ValueError,
            lambda: operation.out(*first, residual, *behind, out=x[:2].clone()),
            "out is torch.float32 [2, 8]",
        )
        for leaf in (first[0], weight, residual):
            leaf.requires_grad_()
            fails(RuntimeError, lambda: operation(*first, residual, *behind), f"tandem::{op} has no gradients")
            leaf.requires_grad_(False)
    fails(ValueError, lambda: OPS.matmul_all_reduce_rms_norm(a, b[:5], residual, weight, EPSILON, name), "B is")
    whole = torch.ones(4, 8, dtype=torch.int32, device=DEVICE)
    fails(ValueError, lambda: OPS.all_reduce_rms_norm(whole, whole, whole[0], EPSILON, name), "floating-point")
    assert torch.equal(residual, before)


@once
def test_declined_types_fall_back_alike(name):
    x, a, b, residual, weight, bias = (one.double() for one in operands(4, 8))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for op, first, behind in calls_of(x, a, b, weight, bias, name):
            given = residual.clone()
            no_bias = (None,) if len(first) == 2 and len(behind) == 3 else ()
            normed, total = getattr(reference, op)(*first, residual, *behind, *no_bias)
            assert_close(getattr(OPS, op)(*first, given, *behind), normed)
            assert_close(given, total)
    texts = [str(one.message) for one in seen]
    assert len(texts) == (2 if rank() == 0 else 0) and all("float64" in text for text in texts), texts


if __name__ == "__main__":
    main()

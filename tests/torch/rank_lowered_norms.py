"""A rank that compiles sums with a residual and an RMSNorm behind them by Inductor: where residuals are written, and whole
models for inference and for training."""

import re

import tandem.torch
import torch
import torch.distributed as dist
import torch.nn.functional as F
from checks import DEVICE, SHARED_GPUS, check, main
from rank_lowered import lowered
from rank_pass_biases import OWN, TOLD
from rank_pass_norms import EPSILON, PLAIN, PRODUCT, by_hugging_face, by_meta, by_torch, operands, summed
from reference_ops import near, rand
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def buffers(code):
    """How many buffers the code allocates."""
    return len(re.findall(r"= empty_strided_(?:cpu|cuda)\(", code))


@check
def test_residuals_are_written_in_place_where_nobody_else_has_them(name):
    """By Inductor: how many buffers hold the residual, the result, and a copy."""

    def given(x, residual, weight):
        h = residual + summed(x)
        return h, by_torch(h, weight)

    def own(x, residual, weight):
        return given(x, residual * 2, weight)

    def used_again(x, residual, weight):
        own = residual * 2
        h, normed = given(x, own, weight)
        return h, normed, h @ own.t()

    def aliased(x, residual, weight):
        """The residual is what the ranks sum, too."""
        own = residual * 2
        return given(own, own, weight)

    def turned(x, residual, weight):
        """It lies otherwise than its extents say."""
        return given(x, (residual.t().contiguous() * 2).t(), weight)

    def expanded(x, residual, weight):
        return given(x, (residual[:1] * 2).expand(x.shape), weight)

    def copied(x, residual, weight):
        """A view of it that is a copy already: its rows are cut and put together otherwise."""
        own = (residual * 2).view(2, 4, 8).transpose(0, 1).reshape(8, 8)
        return given(x, own, weight)

    def viewed(x, residual, weight):
        return given(x.view(2, 4, 8), (residual * 2).view(2, 4, 8), weight)

    def stream(x, residual, weight):
        h = residual * 2
        normed = weight
        for _ in range(3):
            h = h + summed(x * normed)
            normed = by_torch(h, weight)
        return h, normed

    x, _, _, residual, weight = operands(8, 8)
    for function, count, made in (
        (given, 1, {2}),  # the copy is the new residual
        (own, 1, {2}),
        (used_again, 1, {4}),
        (aliased, 1, {3}),
        (turned, 1, {3, 4}),  # torch 2.15 keeps both layouts
        (expanded, 1, {2}),  # made as a whole at once
        (copied, 1, {2}),
        (viewed, 1, {2}),
        # One residual, and results and what the ranks sum in turns. The CPU's code keeps each result.
        (stream, 3, {3 if DEVICE == "cuda" else 5}),
    ):
        before = residual.clone()
        want = function(x.cpu(), residual.cpu(), weight.cpu())
        with tandem.torch.compile_config():
            compiled, results, code, fused = lowered(function, x, residual, weight)
        with torch.no_grad():
            again = compiled(x, residual, weight)
        assert fused == [PLAIN] * count, (function, fused)
        assert torch.equal(residual, before), "the program's tensor was written"
        for got, same, one in zip(results, again, want, strict=True):
            near(got.cpu(), one)
            near(same.cpu(), one)
        assert buffers(code) in made, (function, buffers(code), code)


@check
def test_a_residual_that_torch_has_summed(name):
    """The first sum stays torch's own, being large and without a norm behind it."""
    if SHARED_GPUS:
        return  # torch's own has no backend for ranks that share a GPU

    def function(x, residual, weight):
        h = summed(x * residual)
        for _ in range(2):
            h = h + summed(by_torch(h, weight) * x)
        return h, by_torch(h, weight)

    x, _, _, residual, weight = operands(128, 512)
    want = function(x.cpu(), residual.cpu(), weight.cpu())
    with tandem.torch.compile_config():
        compiled, results, _, fused = lowered(function, x, residual, weight)
    with torch.no_grad():
        again = compiled(x, residual, weight)
    assert fused == ["", PLAIN, PLAIN], fused
    for got, same, one in zip(results, again, want, strict=True):
        near(got.cpu(), one)
        near(same.cpu(), one)


class Layer(nn.Module):
    """A decoder's part on this rank: its heads, and its part of the hidden features."""

    def __init__(self, norm, columns, hidden, dtype):
        super().__init__()
        self.norm = norm
        for i, (label, shape) in enumerate(
            (
                ("qkv", (columns, 3 * hidden)),
                ("out", (hidden, columns)),
                ("up", (columns, 2 * hidden)),
                ("down", (hidden, columns)),
            )
        ):
            self.register_parameter(label, nn.Parameter((rand(*shape, seed=10 + i) / 4).to(dtype)))
        for i, label in enumerate(("before", "behind")):
            self.register_parameter(label, nn.Parameter((1 + rand(columns, seed=20 + i, same=True) / 4).to(dtype)))

    def forward(self, h):
        q, k, v = (self.norm(h, self.before) @ self.qkv).unflatten(-1, (3, 1, -1)).movedim(-3, 0).transpose(-2, -3)
        attention = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + summed(attention.transpose(-2, -3).flatten(-2) @ self.out)
        gate, up = (self.norm(h, self.behind) @ self.up).chunk(2, -1)
        return h + summed((F.silu(gate) * up) @ self.down)


class Decoder(nn.Module):
    """Whose vocabulary is cut among the ranks, as its heads are."""

    def __init__(self, norm, dtype, columns=16, hidden=8, words=12):
        super().__init__()
        self.norm = norm
        self.layers = nn.ModuleList(Layer(norm, columns, hidden, dtype) for _ in range(2))
        self.words = nn.Parameter(rand(words, columns, seed=30).to(dtype))
        self.final = nn.Parameter((1 + rand(columns, seed=31, same=True) / 4).to(dtype))

    def forward(self, tokens):
        h = summed(F.embedding(tokens, self.words))
        for layer in self.layers:
            h = layer(h)
        return self.norm(h, self.final) @ self.words.t()


@check
def test_whole_decoder(name):
    """As it is compiled for inference: every sum but the embedding's has its norm, also under inference_mode."""
    for norm in (by_torch, by_hugging_face, by_meta):
        for dtype in (torch.float32, torch.bfloat16):
            model = Decoder(norm, dtype).to(DEVICE)
            for mode in (torch.no_grad, torch.inference_mode):
                torch._dynamo.reset()
                tokens = torch.arange(10 if mode is torch.no_grad else 12, device=DEVICE).view(2, -1)
                known = len(tandem.torch.explain_graph())
                with mode(), tandem.torch.compile_config():
                    compiled = torch.compile(model, fullgraph=True)
                    results = [compiled(tokens) for _ in range(2)]
                with torch.no_grad():
                    want = model.cpu()(tokens.cpu())
                    model.to(DEVICE)
                for got in results:
                    near(got.cpu(), want)
                records = tandem.torch.explain_graph()[known:]
                assert [record.fused_into for record in records] == ["all_reduce", *4 * [PRODUCT]], (norm, records)
                assert "the sum has several uses" in records[0].reason, records[0]


class Norm(nn.Module):
    """As Hugging Face has it: epsilon is the module's attribute."""

    def __init__(self, columns, eps):
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(1 + rand(columns, seed=4, same=True) / 4), eps

    def forward(self, h):
        x = h.float()
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon)).to(h.dtype)


class Block(nn.Module):
    """For torch's own tensor parallelism."""

    def __init__(self, bias, norm=nn.RMSNorm):
        super().__init__()
        torch.manual_seed(3)
        self.up, self.down = nn.Linear(8, 16, bias=bias), nn.Linear(16, 8, bias=bias)
        self.norm = norm(8, eps=EPSILON)

    def forward(self, x):
        h = x + self.down(F.silu(self.up(x)))
        return h, self.norm(h)


@check
def test_dtensor_trains_without_and_infers_with_the_norm(name):
    """The same model: gradients need what is inside the norm."""
    for bias in (False, True):
        outcomes, fused = [], []
        for device, compiled in (("cpu", False), (DEVICE, True)):
            mesh = DeviceMesh.from_group(dist.group.WORLD, device)
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            model = parallelize_module(Block(bias).to(device), mesh, plan, src_data_rank=None)
            torch._dynamo.reset()
            known = len(tandem.torch.explain_graph())
            run = torch.compile(model, fullgraph=True) if compiled else model
            x = rand(2, 3, 8, same=True).to(device).requires_grad_()
            with tandem.torch.compile_config():
                with torch.no_grad():
                    inferred = run(x)
                fused.append([record.fused_into for record in tandem.torch.explain_graph()[known:]])
                h, normed = run(x)
                (
                    normed * torch.linspace(0.5, 1.5, normed.numel(), device=device).view(normed.shape) + h
                ).sum().backward()
            trained = tandem.torch.explain_graph()[known + len(fused[-1]) :]
            grads = [one.grad.to_local() if hasattr(one.grad, "to_local") else one.grad for one in model.parameters()]
            outcomes.append([*inferred, h, normed, x.grad, *grads])
        for want, got in zip(*outcomes, strict=True):
            near(got.detach().cpu(), want.detach())
        assert fused == [[], [PRODUCT]], fused
        assert [record.fused_into for record in trained] == 2 * ["matmul_all_reduce"], trained
        assert "used outside it, as by gradients" in trained[0].reason, trained


def inferred(shapes, *, bias, marked=None, dynamic=None):
    """The records of a block under torch's tensor parallelism, of which one graph gets inputs of these shapes."""
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    whole, mesh = Block(bias, Norm), DeviceMesh.from_group(dist.group.WORLD, DEVICE)
    parallel = parallelize_module(Block(bias, Norm).to(DEVICE), mesh, plan, src_data_rank=None)
    torch._dynamo.reset()
    known = len(tandem.torch.explain_graph())
    with tandem.torch.compile_config(), torch.no_grad():
        run = torch.compile(parallel, fullgraph=True, dynamic=dynamic)
        for shape in shapes:
            x = rand(*shape, same=True)
            if marked is not None:
                torch._dynamo.mark_dynamic(x, marked)
            for got, want in zip(run(x), whole.cpu()(x.cpu()), strict=True):
                near(got.cpu(), want)
    return tandem.torch.explain_graph()[known:]


@check
def test_dtensor_infers_with_any_batch(name):
    """And with any length: one graph, which has the norm."""
    for bias in (False, True):
        for marked, shapes in ((0, ((2, 3, 8), (4, 3, 8), (7, 3, 8))), (1, ((2, 3, 8), (2, 4, 8), (2, 7, 8)))):
            records = inferred(shapes, bias=bias, marked=marked)
            assert [record.fused_into for record in records] == [PRODUCT], [str(record) for record in records]


@check
def test_numbers_that_torch_makes_inputs(name):
    """Under dynamic=True epsilon is one, and a number again where torch is set so."""
    shapes = (2, 3, 8), (4, 5, 8)
    (record,) = inferred(shapes, bias=False, dynamic=True)
    assert record.fused_into == "matmul_all_reduce" and "epsilon is an input" in record.reason, str(record)
    with torch._dynamo.config.patch(specialize_float=True):
        (record,) = inferred(shapes, bias=False, dynamic=True)
    assert record.fused_into == PRODUCT, str(record)


@check
def test_biases_behind_the_sums(name):
    """As row-parallel layers of other libraries add them: with a norm behind, and without; for inference and for training."""

    def function(x, a, b, residual, weight, bias):
        h = residual + (summed(a @ b) + bias)
        return h, by_torch(h, weight), summed(h @ b.t() @ b) + bias

    for dynamic in (False, True):
        for training in (False, True):
            torch._dynamo.reset()
            known = len(tandem.torch.explain_graph())
            with tandem.torch.compile_config():
                compiled = torch.compile(function, fullgraph=True, dynamic=dynamic)
                for rows in (4, 6, 7)[: 3 if dynamic else 1]:
                    tensors = [*operands(3, rows, 8), rand(8, seed=5)]
                    outcomes = []
                    for run, device in ((function, "cpu"), (compiled, DEVICE)):
                        given = [one.detach().to(device, copy=True).requires_grad_(training) for one in tensors]
                        results = run(*given)
                        if training:
                            sum((one * one).sum() for one in results).backward()
                        grads = [one.grad for one in given[1:] if training]
                        outcomes.append([one.detach() for one in (*results, *grads)])
                    for want, got in zip(*outcomes, strict=True):
                        near(got.cpu(), want)
            records = tandem.torch.explain_graph()[known:]
            told = [record.fused_into for record in records if (OWN if training else TOLD) in record.reason]
            wanted = ["matmul_all_reduce"] * 2 if training else [PRODUCT]  # the residual takes the bias of each rank
            assert told == wanted, [str(record) for record in records]


class Late(nn.Module):
    """Products whose sums get a vector of the module's own, and one of the call's."""

    def __init__(self):
        super().__init__()
        self.a, self.b = (nn.Parameter(rand(6, 8, seed=seed)) for seed in (6, 7))
        self.bias = nn.Parameter(rand(8, seed=8))

    def forward(self, x, vector):
        return summed(x @ self.a) + self.bias, summed(x @ self.b) + vector


@check
def test_parameters_may_differ(name):
    """A module's parameter is each rank's own, as a vector that a call brings."""
    x, vector = rand(4, 6), rand(8, seed=9)
    module = Late()
    for training in (False, True):
        torch._dynamo.reset()
        known = len(tandem.torch.explain_graph())
        with tandem.torch.compile_config(), torch.set_grad_enabled(training):
            results = torch.compile(module.to(DEVICE), fullgraph=True)(x.to(DEVICE), vector.to(DEVICE))
        for got, want in zip(results, module.cpu()(x.cpu(), vector.cpu()), strict=True):
            near(got.detach().cpu(), want.detach())
        reasons = [record.reason for record in tandem.torch.explain_graph()[known:]]
        assert len(reasons) == 2 and all(OWN in reason for reason in reasons), reasons


@check
def test_dynamic_shapes(name):
    """One graph for all numbers of rows, by Inductor; inputs stay."""

    def function(x, a, b, residual, weight):
        first = residual + summed(a @ b)
        second = first + summed(x * by_torch(first, weight))
        return first, second, by_hugging_face(second, weight)

    for wide in (False, True):
        torch._dynamo.reset()
        known = len(tandem.torch.explain_graph())
        with tandem.torch.compile_config(), torch.no_grad():
            compiled = torch.compile(function, fullgraph=True, dynamic=True)
            for rows in (4, 6, 7):
                given = operands(*((3, rows, 8) if wide else (rows, 8)))
                before = [one.clone() for one in given]
                for got, want in zip(compiled(*given), function(*(one.cpu() for one in given)), strict=True):
                    near(got.cpu(), want)
                assert all(map(torch.equal, given, before)), "an input was written"
        records = tandem.torch.explain_graph()[known:]
        assert [record.fused_into for record in records] == [PRODUCT, PLAIN], [str(record) for record in records]


if __name__ == "__main__":
    main()

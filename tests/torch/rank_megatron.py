"""A rank: Megatron-core's linear layers, from the real package, by Megatron's own code and by Tandem behind install()."""

import contextlib
import warnings
from unittest import mock

import tandem.megatron
import tandem.torch
import torch
import torch.distributed as dist
from checks import CUDA, DEVICE, check, main
from tandem.torch import _groups, _native
from torch.utils._pytree import tree_flatten

if not CUDA:
    torch.cuda.current_device = lambda: torch.device("cpu")  # where Megatron makes its buffers

from megatron.core import ModelParallelConfig, parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import layers, random
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig

SEQUENCE, BATCH, WIDE, INNER = 8, 3, 32, 64
COLUMN, ROW = "column parallel", "row parallel"
FUNCTIONS = ("LinearWithGradAccumulationAndAsyncCommunication", "linear_with_frozen_weight")


def group():
    """The tensor-parallel group: of all ranks."""
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=dist.get_world_size())
    return parallel_state.get_tensor_model_parallel_group()


def config(sequence_parallel, dtype=torch.float32, **more):
    return ModelParallelConfig(
        tensor_model_parallel_size=group().size(),
        sequence_parallel=sequence_parallel,
        use_cpu_initialization=True,
        params_dtype=dtype,
        **more,
    )


def filled(shape, seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).to(DEVICE)


def fill(model, rank):
    """Moves a model to the device, with new parameters: shards from this rank's seed, what lies on all ranks from one."""
    for number, one in enumerate(model.to(DEVICE).parameters()):
        alike = not hasattr(one, "tensor_model_parallel")
        with torch.no_grad():
            one.copy_(filled(one.shape, 100 + number + (0 if alike else 1000 * rank), one.dtype) / WIDE**0.5)
    return model


class Block(torch.nn.Module):
    """Column parallel, an activation, row parallel."""

    def __init__(self, how, bias=True, skip_bias_add=False, tp_group=None, **more):
        super().__init__()
        common = {
            "config": how,
            "init_method": torch.nn.init.zeros_,
            "bias": bias,
            "skip_bias_add": skip_bias_add,
            "tp_group": tp_group,
        }
        self.up = layers.ColumnParallelLinear(WIDE, INNER, **common, **more)
        self.down = layers.RowParallelLinear(INNER, WIDE, input_is_parallel=True, **common)
        fill(self, dist.get_rank(tp_group))

    def forward(self, x):
        y, bias = self.up(x)
        y, last = self.down(torch.nn.functional.gelu(y if bias is None else y + bias))
        return y if last is None else y + last


def batch(how, number=0, tp_group=None):
    """A micro-batch and the gradient of its output: with sequence parallelism the rank's part."""
    x, grad = (filled((SEQUENCE, BATCH, WIDE), 10 * number + n, how.params_dtype) for n in (1, 2))
    if how.sequence_parallel:
        size, rank = dist.get_world_size(tp_group), dist.get_rank(tp_group)
        x, grad = x.chunk(size)[rank].contiguous(), grad.chunk(size)[rank].contiguous()
    return x.requires_grad_(), grad


def step(model, how, number=0, tp_group=None):
    """The output of a micro-batch, and its input's gradient."""
    x, grad = batch(how, number, tp_group)
    y = model(x)
    y.backward(grad)
    return [y.detach(), x.grad]


def gradients(model):
    return {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


def rows():
    return {(row.layer, row.reason): row.calls for row in tandem.megatron.report().rows}


def by_tandem(program, again=True):
    """(what the program returns behind install(), the calls that the report then has, launches of its second run)."""
    before = rows()
    tandem.megatron.install()
    try:
        got = program()
        calls = {key: calls - before.get(key, 0) for key, calls in rows().items() if calls != before.get(key, 0)}
        launched = _native.counts().launched
        if again:
            program()
        tandem.torch.synchronize()
        return got, calls, _native.counts().launched - launched
    finally:
        tandem.megatron.uninstall()


def close(got, want, near, title):
    """The same numbers, and tensors whose difference is below `near` of their norm."""
    (got, form), (want, wanted) = tree_flatten(got), tree_flatten(want)
    assert form == wanted, f"{title}: {form}, not {wanted}"
    for number, (one, other) in enumerate(zip(got, want, strict=True)):
        if not isinstance(other, torch.Tensor):
            assert one == other, f"{title}: {one}, not {other}"
            continue
        assert (one.shape, one.dtype) == (other.shape, other.dtype), f"{title}: result {number} of {len(got)}"
        apart, norm = (one.double() - other.double()).norm().item(), other.double().norm().item()
        assert apart <= near * norm, f"{title}: result {number} of {len(got)} differs by {apart} of {norm}"


def compare(title, program, taken, launches, near=1e-6):
    """The same results by Megatron and by Tandem. taken: calls of layers. launches: of a program whose plans are there."""
    want, before = program(), _native.counts()
    assert (before.launched, before.handed_on) == (_native.counts().launched, _native.counts().handed_on)
    got, calls, launched = by_tandem(program)
    close(got, want, near, title)
    assert calls == {(layer, ""): number for layer, number in taken.items()}, f"{title}: {calls}"
    assert launched == launches, f"{title}: {launched} launches"


def planned():
    """The operations of the group's plans."""
    return {info["op"] for info in tandem.torch.attach(group()).plans.infos()}


def block_program(how, tp_group=None, **more):
    def program():
        model = Block(how, tp_group=tp_group, **more)
        return step(model, how, tp_group=tp_group), gradients(model)

    return program


BIASES = ({"bias": False}, {"bias": True}, {"bias": True, "skip_bias_add": True})
OPS = {True: {"all_gather_matmul", "matmul_reduce_scatter"}, False: {"matmul_all_reduce"}}


@check
def test_sequence_parallel(name):
    for more in BIASES:
        compare(more, block_program(config(True), **more), {COLUMN: 1, ROW: 1}, 5)
    assert OPS[True] <= planned(), planned()


@check
def test_without_sequence_parallelism(name):
    for more in BIASES:
        compare(more, block_program(config(False), **more), {COLUMN: 1, ROW: 1}, 2)
    assert OPS[False] <= planned(), planned()


@check
def test_bf16(name):
    for sequence_parallel, launches in ((True, 5), (False, 2)):
        how = config(sequence_parallel, torch.bfloat16)
        compare(f"bf16, {sequence_parallel}", block_program(how), {COLUMN: 1, ROW: 1}, launches, near=1e-2)


@check
def test_an_input_of_two_dimensions(name):
    how = config(True)

    def program():
        model, (x, grad) = Block(how), batch(how)
        x = x.detach().flatten(0, 1).requires_grad_()
        model(x).backward(grad.flatten(0, 1))
        return x.grad, gradients(model)

    compare("rows", program, {COLUMN: 1, ROW: 1}, 5)


@check
def test_without_gradients(name):
    how = config(True)

    @torch.no_grad()
    def program():
        return Block(how)(batch(how)[0])

    compare("no_grad", program, {COLUMN: 1, ROW: 1}, 2)


@check
def test_frozen_weights(name):
    for sequence_parallel, launches in ((True, 4), (False, 2)):
        how = config(sequence_parallel)

        def program(how=how):
            model = Block(how)
            model.up.weight.requires_grad_(False)
            model.down.weight.requires_grad_(False)
            return step(model, how), gradients(model)

        compare(f"frozen, {sequence_parallel}", program, {COLUMN: 1, ROW: 1}, launches)


@check
def test_gradients_of_several_micro_batches(name):
    how = config(True)

    def program():
        model = Block(how)
        return [step(model, how, number) for number in range(3)], gradients(model)

    compare("micro-batches", program, {COLUMN: 3, ROW: 3}, 15, near=3e-6)


class Kernels:
    """Stands for the module of Apex's that adds to main gradients."""

    calls = 0

    @classmethod
    def wgrad_gemm_accum_fp32(cls, total_input, grad_output, main_grad):
        cls.calls += 1
        main_grad.add_(grad_output.float().t() @ total_input.float())


@contextlib.contextmanager
def apex(there=True):
    with mock.patch.object(layers, "_grad_accum_fusion_available", True):
        if not there:
            yield
            return
        with mock.patch.object(layers, "fused_weight_gradient_mlp_cuda", Kernels, create=True):
            yield


def accumulation(how, flag):
    """Three micro-batches whose gradients are added to fp32 main gradients. flag: autograd's hooks must run, too."""

    def program():
        model = Block(how)
        for one in (model.up.weight, model.down.weight):
            one.main_grad = torch.full(one.shape, 0.5, device=DEVICE)
            if flag:
                one.grad_added_to_main_grad, one.zero_out_wgrad = False, True
        results = [step(model, how, number) for number in range(3)]
        weights = (model.up.weight, model.down.weight)
        flags = [getattr(one, "grad_added_to_main_grad", None) for one in weights]
        return results, [one.main_grad for one in weights], gradients(model), flags

    return program


@check
def test_main_gradients(name):
    for sequence_parallel, launches in ((True, 15), (False, 6)):
        for dtype, near in ((torch.float32, 1e-6), (torch.bfloat16, 1e-2)):
            how = config(sequence_parallel, dtype, gradient_accumulation_fusion=True)
            program = accumulation(how, flag=dtype == torch.float32)
            with apex():
                compare("with Apex", program, {COLUMN: 3, ROW: 3}, launches, near)
                want = program()
            calls = Kernels.calls
            with apex(there=False):  # not even Megatron could run it
                got, _, _ = by_tandem(program)
            assert Kernels.calls == calls
            close(got, want, near, "without Apex")


@check
def test_the_package_own_mlp(name):
    for sequence_parallel, launches in ((True, 15), (False, 6)):
        how = TransformerConfig(
            num_layers=1,
            hidden_size=WIDE,
            num_attention_heads=4,
            ffn_hidden_size=INNER,
            add_bias_linear=False,
            gated_linear_unit=True,
            activation_func=torch.nn.functional.silu,
            tensor_model_parallel_size=group().size(),
            sequence_parallel=sequence_parallel,
            use_cpu_initialization=True,
        )

        def program(how=how):
            parts = MLPSubmodules(linear_fc1=layers.ColumnParallelLinear, linear_fc2=layers.RowParallelLinear)
            model = fill(MLP(how, parts, ffn_hidden_size=INNER), dist.get_rank())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            results = []
            for number in range(3):
                optimizer.zero_grad()
                results.append(step(lambda x: model(x)[0], how, number))
                optimizer.step()
            return results, dict(model.state_dict())

        compare(f"MLP, {sequence_parallel}", program, {COLUMN: 3, ROW: 3}, launches, near=3e-6)


def gpt(sequence_parallel):
    """A GPT of Megatron's local specification. Norms are torch's: Megatron's own for sequence parallelism is Apex's."""
    how = TransformerConfig(
        num_layers=2,
        hidden_size=WIDE,
        num_attention_heads=4,
        ffn_hidden_size=INNER,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        normalization="RMSNorm",
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        tensor_model_parallel_size=group().size(),
        sequence_parallel=sequence_parallel,
        use_cpu_initialization=True,
    )
    layer = get_gpt_layer_local_spec(normalization="RMSNorm")
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = Norm
    block = TransformerBlockSubmodules(layer_specs=[layer] * 2, layer_norm=Norm)
    return fill(GPTModel(how, block, vocab_size=128, max_sequence_length=SEQUENCE), dist.get_rank())


class Norm(torch.nn.RMSNorm):
    def __init__(self, config, hidden_size, eps=1e-5):
        super().__init__(hidden_size, eps)


@check
def test_the_package_own_gpt(name):
    for sequence_parallel, launches in ((True, 46), (False, 18)):

        def program(sequence_parallel=sequence_parallel):
            model = gpt(sequence_parallel)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            losses = []
            for number in range(2):
                tokens = torch.randint(128, (BATCH, SEQUENCE + 1), generator=torch.Generator().manual_seed(number)).to(
                    DEVICE
                )
                places = torch.arange(SEQUENCE, device=DEVICE).expand(BATCH, SEQUENCE)
                mask = torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool, device=DEVICE).triu(1)[None, None]
                optimizer.zero_grad()
                loss = model(tokens[:, :-1], places, mask, labels=tokens[:, 1:]).mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            return losses, {name: one for name, one in model.state_dict().items() if one is not None}

        forks = mock.patch.object(random.CudaRNGStatesTracker, "fork", lambda *given: contextlib.nullcontext())
        with forks:
            compare(f"GPT, {sequence_parallel}", program, {COLUMN: 10, ROW: 8}, launches, near=3e-6)


@check
def test_groups_of_a_part_of_the_ranks(name):
    world = dist.get_world_size()
    groups = [dist.new_group([rank, rank + 1]) for rank in range(0, world, 2)]
    own = groups[dist.get_rank() // 2]
    if world > 2:
        compare("a part", block_program(config(True), own), {COLUMN: 1, ROW: 1}, 5)
    for one in groups:
        if one is own:
            dist.destroy_process_group(one)


def left(title, program, reasons):
    """Megatron's own code runs all of the program: the results are equal bit by bit."""
    want = program()
    got, calls, launched = by_tandem(program)
    torch.testing.assert_close(got, want, rtol=0, atol=0, msg=lambda text: f"{title}: {text}")
    assert calls == reasons and launched == 0, f"{title}: {calls}, {launched} launches"


@check
def test_what_is_not_served(name):
    why = "Tandem has no products of float64"
    left("f64", block_program(config(True, torch.float64)), {(COLUMN, why): 1, (ROW, why): 1})
    how = config(False)
    left("no all-reduce", lambda: Block(how, disable_grad_reduce=True).up(batch(how)[0])[0].detach(), {})

    def autocast():
        with torch.autocast(DEVICE, torch.bfloat16):
            return Block(how)(batch(how)[0]).detach()

    left("autocast", autocast, {(COLUMN, "autocast is in force"): 1, (ROW, "autocast is in force"): 1})

    def row(change, **more):
        common = {"init_method": torch.nn.init.zeros_, "bias": False, "skip_bias_add": True, "tp_group": group()}
        layer = layers.RowParallelLinear(WIDE, INNER, config=how, **{"input_is_parallel": True} | common | more)
        change(fill(layer, dist.get_rank()))
        return layer(filled((4, WIDE // (group().size() if layer.input_is_parallel else 1)), 1))[0].detach()

    def another(layer):
        layer._forward_impl = lambda input, weight, **more: 2 * input.matmul(weight.t())

    left("expert", lambda: row(id, is_expert=True), {(ROW, "the experts' dispatcher has the collective"): 1})
    left("split", lambda: row(id, input_is_parallel=False), {(ROW, "the layer splits its input"): 1})
    left("another product", lambda: row(another), {(ROW, "the layer has another product"): 1})

    def deferred():
        x, kept = filled((4, WIDE), 1).requires_grad_(), []
        weight = filled((6, WIDE), 2).requires_grad_()
        weight.main_grad = torch.zeros_like(weight)
        linear = layers.linear_with_grad_accumulation_and_async_allreduce
        y = linear(x, weight, None, True, True, False, kept, 1, tp_group=group())
        y.backward(torch.ones_like(y))
        return x.grad, len(kept)

    left("deferred", deferred, {(COLUMN, "the weight's gradient is deferred"): 1})


@check
def test_a_group_that_tandem_does_not_serve(name):
    how = config(True)
    unserved = mock.patch.object(_groups.Attachment, "unserved", return_value="a reason")
    with unserved, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        left("declined", block_program(how), {(COLUMN, "a reason"): 1, (ROW, "a reason"): 1})
    told = [str(one.message) for one in told if issubclass(one.category, RuntimeWarning)]
    assert len(told) == (dist.get_rank() == 0), told
    assert all("runs on Megatron's own code: a reason" in text for text in told), told


@check
def test_installed_and_uninstalled(name):
    places = [(layers, one) for one in FUNCTIONS] + [(layers.RowParallelLinear, "forward")]
    before = [getattr(*place) for place in places]
    for _ in range(2):
        tandem.megatron.install()
    assert tandem.megatron.installed()
    assert all(getattr(*place) is not one for place, one in zip(places, before, strict=True))
    tandem.megatron.uninstall()
    assert not tandem.megatron.installed()
    assert [getattr(*place) for place in places] == before
    tandem.megatron.uninstall()
    how = config(True)
    model, (x, grad) = Block(how), batch(how)
    tandem.megatron.install()
    y = model(x)
    tandem.megatron.uninstall()
    y.backward(grad)  # by Tandem
    assert rows()[COLUMN, ""]
    want = Block(how)
    close(x.grad, step(want, how)[1], 1e-6, "x")
    close(gradients(model), gradients(want), 1e-6, "weights")


@check
def test_an_unknown_version(name):
    before = layers.linear_with_frozen_weight
    with mock.patch.object(layers.RowParallelLinear, "forward", lambda self, input_, more: None):
        try:
            tandem.megatron.install()
        except ImportError as error:
            assert "RowParallelLinear.forward takes (self, input_, more), not (self, input_)" in str(error), error
        else:
            raise AssertionError("installed")
    assert not tandem.megatron.installed() and layers.linear_with_frozen_weight is before


if __name__ == "__main__":
    main()

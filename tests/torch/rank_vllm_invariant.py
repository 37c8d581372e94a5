"""A rank of vLLM in its batch-invariant mode: Tandem serves the tensor-parallel groups with determinism "batch".

As rank_vllm_compiled.py, whose groups, norms and passes these are. Checks off_* are run by name."""

import contextlib
import os
import types
import warnings

import tandem.torch
import tandem.vllm
import torch
import torch.distributed as dist
from checks import check, main
from rank_vllm import Own, launches, near, parts, vllm_groups, warns, world
from rank_vllm_compiled import COLUMNS, layer, run, vllm_passes
from rank_vllm_norms import Norm, counted, function_of, gemma, plain
from tandem import errors
from tandem.torch._plans import Declined, NoPlanYet
from vllm.compilation.passes import inductor_pass
from vllm.config.utils import Range
from vllm.distributed import communication_op


@contextlib.contextmanager
def invariant_groups(tensor, pipeline=1):
    """As vllm_groups(), in vLLM's batch-invariant mode."""
    os.environ["VLLM_BATCH_INVARIANT"] = "1"
    try:
        with vllm_groups(tensor, pipeline) as group:
            yield group
    finally:
        del os.environ["VLLM_BATCH_INVARIANT"]


BATCHES = (1, 3, 64, 300, 3)


def bits(tensor):
    return tensor.contiguous().view(torch.int32 if tensor.dtype is torch.float32 else torch.int16)


def batches(pool):
    """Rows of the pool in batches of these sizes: their numbers, each batch in another order."""
    for seed, rows in enumerate(BATCHES):
        yield torch.randint(len(pool), (rows,), generator=torch.Generator().manual_seed(seed))


def check_bits(known, chosen, *results):
    """The bits of each row's results are those that this row had in each batch before."""
    for kind, result in enumerate(results):
        for row, found in zip(chosen.tolist(), bits(result), strict=True):
            first = known.setdefault((kind, row), found)
            assert torch.equal(first, found), (kind, row, len(chosen))


def promises(group):
    return {info["determinism"] for info in tandem.torch.attach(group.device_group).plans.infos()}


def raises(kind, text, call, *given):
    try:
        call(*given)
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__} with {text!r}")


@check
def test_a_row_has_the_same_bits_in_every_batch(name):
    with invariant_groups(world()) as group:
        own, size = group.rank_in_group, group.world_size
        for dtype in (torch.float32, torch.bfloat16):
            pools, known, before = parts(group, (7, 40), 3, dtype), {}, launches()
            with Own("all_reduce") as reduce, Own("reduce_scatter") as scatter:
                for chosen in batches(pools[own]):
                    x = pools[own][chosen]
                    check_bits(known, chosen, communication_op.tensor_model_parallel_all_reduce(x))
                    whole = chosen.repeat_interleave(size)
                    part = communication_op.tensor_model_parallel_reduce_scatter(pools[own][whole], 0)
                    check_bits(known, whole.chunk(size)[own], part)
                    near(communication_op.tensor_model_parallel_all_gather(x, 0)[: len(x)], pools[0][chosen])
            assert (reduce.calls, scatter.calls) == (0, 0)
            assert launches() == before + 3 * len(BATCHES)
        assert promises(group) == {"batch"}, promises(group)


@check
def test_groups_leave_others_as_they_are(name):
    """Of groups that serve the tensor-parallel ranks alone, and of none after them."""
    assert tandem.torch.configure().determinism == "off"
    with invariant_groups(world()) as group:
        group.all_reduce(torch.ones(3, 8))
        torch.ops.tandem.all_reduce(torch.ones(3, 8), "sum", dist.group.WORLD.group_name)
        found = tandem.torch.attach(dist.group.WORLD)
        assert {info["determinism"] for info in found.plans.infos()} == {"off"}
        assert found.config.determinism == tandem.torch.configure().determinism == "off"
    tandem.torch.detach(dist.group.WORLD)
    with vllm_groups(world()) as group:
        group.all_reduce(torch.ones(3, 8))
        assert promises(group) == {"off"}, promises(group)


@check
def test_what_is_declined_is_vllms_own_for_all_rows(name):
    """And asks Tandem no more: no number of rows gets another answer."""
    with invariant_groups(world()) as group:
        plans = tandem.torch.attach(group.device_group).plans
        tensors = parts(group, (300, 8), dtype=torch.float64)
        with warns("vLLM's own communicator"), Own("all_reduce") as reduce:
            for rows in (3, 1, 300):
                given = tensors[group.rank_in_group][:rows].clone()
                near(group.all_reduce(given).float(), torch.stack(tensors).sum(0)[:rows].float())
        assert reduce.calls == 3 and len(plans._plans) == 1, plans._plans
        found = [row for row in tandem.vllm.report().rows if row.group == group.unique_name and "float64" in row.reason]
        assert sum(row.calls for row in found) == 3, found


@check
def test_a_choice_by_rows_is_an_error(name):
    """A daemon that has served some rows of a type and a length, and refuses others."""
    with invariant_groups(world()) as group:
        plans = tandem.torch.attach(group.device_group).plans
        run = plans.run

        def refuse_large(key, make):
            if key[1][0] > 300:
                raise Declined("too many rows")
            return run(key, make)

        plans.run = refuse_large
        with Own("all_reduce") as reduce, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            near(group.all_reduce(torch.ones(3, 24)), torch.full((3, 24), float(world())))
            raises(errors.Unavailable, "too many rows", group.all_reduce, torch.ones(301, 24))
            near(group.all_reduce(torch.ones(4, 24)), torch.full((4, 24), float(world())))
            assert reduce.calls == 0
            # Other rows are other calls: the first one decides for all of them.
            for rows in (301, 4):
                near(group.all_reduce(torch.ones(rows, 16)), torch.full((rows, 16), float(world())))
            assert reduce.calls == 2
        plans.run = run


@check
def test_a_capture_without_a_plan_is_an_error(name):
    with invariant_groups(world()) as group:
        plans = tandem.torch.attach(group.device_group).plans
        run = plans.run

        def no_plan(*_):
            raise NoPlanYet("a graph is being captured")

        plans.run = no_plan
        with Own("all_reduce") as reduce:
            raises(NoPlanYet, "whatever else is in the batch", group.all_reduce, torch.ones(3, 5))
        assert reduce.calls == 0
        plans.run = run
        near(group.all_reduce(torch.ones(3, 5)), torch.full((3, 5), float(world())))


class Never:
    """vLLM's fused kernel, which takes some numbers of rows alone, is never asked for while this is entered."""

    def __enter__(self):
        self.before = gemma._can_use_flashinfer, plain._can_use_flashinfer

        def asked(*_):
            raise AssertionError("vLLM's function was called")

        gemma._can_use_flashinfer = plain._can_use_flashinfer = asked

    def __exit__(self, *_):
        gemma._can_use_flashinfer, plain._can_use_flashinfer = self.before


@check
def test_a_norm_has_the_same_bits_in_every_batch(name):
    with invariant_groups(world()) as group, Never():
        before = counted(group)
        for is_gemma in (False, True):
            for dtype in (torch.float32, torch.bfloat16):
                pools, residuals = parts(group, (7, 40), 3, dtype), parts(group, (7, 40), 4, dtype)
                norm, known = Norm(40, dtype, is_gemma), {}
                for chosen in batches(residuals[0]):
                    x, residual = pools[group.rank_in_group][chosen], residuals[0][chosen]
                    check_bits(known, chosen, *function_of(is_gemma)(x, residual, norm))
        assert counted(group) - before == 4 * len(BATCHES), tandem.vllm.report()
        assert promises(group) == {"batch"}, promises(group)


@check
def test_a_norm_that_is_declined_is_apart_for_all_rows(name):
    """Tandem's sum, and the norm's own module: vLLM's function might fuse them where there are few rows."""
    with invariant_groups(world()) as group, Never():
        odd = Norm(8, torch.bfloat16, True)
        for function in (function_of(True), function_of(False)):
            for rows in (3, 1, 64):
                launched = launches()
                got = function(torch.ones(rows, 8), torch.ones(rows, 8), odd)
                near(got[1], torch.full((rows, 8), 1.0 + world()))
                assert launches() == launched + 1, "the sum alone"
        assert counted(group, "weight is torch.bfloat16") == 6, tandem.vllm.report()
        # A norm whose weight fits is another one.
        fit = Norm(8, torch.float32, True)
        function_of(True)(torch.ones(1, 8), torch.ones(1, 8), fit)
        assert counted(group) == 1, tandem.vllm.report()
        # A residual that fits one number of rows alone.
        raises(errors.Unavailable, "the residual is", function_of(True), torch.ones(3, 8), torch.ones(1, 8), fit)


@check
def test_a_compiled_norm_has_the_same_bits_in_every_batch(name):
    with invariant_groups(world()) as group:
        group.use_custom_op_call = True  # as on GPUs
        dtype = torch.bfloat16
        pools, residuals = parts(group, (7, COLUMNS), 3, dtype), parts(group, (7, COLUMNS), 4, dtype)
        weight, known, before = (
            torch.rand(COLUMNS, generator=torch.Generator().manual_seed(5)).to(dtype),
            {},
            counted(group),
        )
        for rows in (3, 1, 64):
            chosen = torch.randint(7, (rows,), generator=torch.Generator().manual_seed(rows))
            x, residual = pools[group.rank_in_group][chosen], residuals[0][chosen]
            check_bits(known, chosen, *run(layer(), x, residual, weight))
        assert counted(group) - before == 6, tandem.vllm.report()
        assert promises(group) == {"batch"}, promises(group)


@check
def test_norms_of_a_model_with_an_encoder_stay_apart(name):
    """vLLM runs it uncompiled in some steps, where no pass has fused them."""

    def has_pass(has_encoder):
        with inductor_pass.pass_context(Range(1, 4096)):
            passes = vllm_passes(types.SimpleNamespace(is_encoder_decoder=has_encoder, dtype=torch.bfloat16)).passes
        return "TandemAllReduceNormPass" in [type(one).__name__ for one in passes]

    with invariant_groups(world()):
        assert (has_pass(True), has_pass(False)) == (False, True)
    with vllm_groups(world()):
        assert has_pass(True)


@check
def test_errors_where_they_are_asked_for(name):
    tandem.torch.configure(on_unavailable="error")
    try:
        with invariant_groups(world()) as group:
            near(group.all_reduce(torch.ones(3, 4)), torch.full((3, 4), float(world())))
            raises(errors.Unavailable, "float64", group.all_reduce, torch.ones(3, 4).double())
    finally:
        tandem.torch.configure(on_unavailable="fallback")


@check
def test_a_group_that_was_attached_with_less_is_vllms_own(name):
    with vllm_groups(world()) as group:
        os.environ["VLLM_BATCH_INVARIANT"] = "1"
        try:
            kind = type(group.device_communicator)
            made = kind(group.cpu_group, group.device, group.device_group, unique_name="tp:again")
        finally:
            del os.environ["VLLM_BATCH_INVARIANT"]
        before = launches()
        near(made.all_reduce(torch.ones(3, 4)), torch.full((3, 4), float(world())))
        assert launches() == before
        made.destroy()


@check
def off_everything_is_vllms_own(name):
    """Where the node's daemon refuses what the mode needs, the report has its reason; where there is none, the log has it."""
    reason = os.environ.get("TANDEM_TEST_REASON", "")
    with invariant_groups(world()) as group:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for rows in (3, 1, 64):
                with Own("all_reduce") as reduce:
                    near(group.all_reduce(torch.ones(rows, 4)), torch.full((rows, 4), float(world())))
                assert reduce.calls == 1
        rows = [row for row in tandem.vllm.report().rows if row.group == group.unique_name]
        assert tandem.vllm.report().taken == 0
        assert [reason in row.reason for row in rows] == ([True] if reason else []), rows


if __name__ == "__main__":
    main("gloo")

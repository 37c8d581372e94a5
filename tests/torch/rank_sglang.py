"""A rank of SGLang: its groups are those of the real package, which finds Tandem among its plug-ins.

The environment's PYTHONPATH has SGLang's sources and Tandem's entry points (test_sglang.py). Checks off_* are run by name. On the CPU
SGLang's gathers of one tensor do not go through the method that GPUs have, so the checks call that method itself."""

import contextlib
import os
import warnings

import tandem.sglang
import tandem.torch
import torch
import torch.distributed as dist
from checks import check, main
from sglang.srt.distributed import parallel_state
from sglang.srt.environ import envs
from sglang.srt.plugins import load_plugins
from tandem.torch import _native
from tandem.torch._plans import NoPlanYet

CLIENT = os.environ.get("TANDEM_TEST_CLIENT", "") == "1"
load_plugins()


def world():
    return dist.get_world_size()


@contextlib.contextmanager
def sglang_group(name="tp", sizes=None):
    """SGLang's group of all ranks, or of each so many in turn."""
    tandem.torch.configure(placement="client" if CLIENT else "auto")
    size = sizes or world()
    ranks = [list(range(first, first + size)) for first in range(0, world(), size)]
    group = parallel_state.init_model_parallel_group(
        ranks, int(os.environ["LOCAL_RANK"]), "gloo", use_custom_allreduce=False, use_pynccl=False, group_name=name
    )
    try:
        yield group
    finally:
        group.destroy()


def launches():
    """Calls that Tandem's kernels, or Python's for them, have run."""
    counts = _native.counts()
    return counts.launched + counts.handed_on


def parts(group, shape, seed=0, dtype=torch.float32):
    """A random tensor of each rank of the group, equal on all."""
    made = torch.Generator().manual_seed(1000 * seed + group.ranks[0])
    return [torch.randn(shape, generator=made).to(dtype) for _ in range(group.world_size)]


def near(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-5 if found.dtype is torch.float32 else 2e-2, atol=1e-5)


def all_three(group, rows, seed, dtype=torch.float32):
    """Each collective on random tensors with so many rows; in place and out of it, as SGLang's ops of compiled graphs call them."""
    own, size = group.rank_in_group, group.world_size
    tensors = parts(group, (rows, 24), seed, dtype)
    total = torch.stack([one.float() for one in tensors]).sum(0).to(dtype)
    near(group.all_reduce(tensors[own].clone()), total)
    near(group._all_reduce_out_place(tensors[own], outplace_all_reduce_method="auto"), total)
    x = tensors[own].clone()
    group._all_reduce_in_place(x)
    near(x, total)
    whole = torch.empty(rows * size, 24, dtype=dtype)
    group._all_gather_into_tensor(whole, tensors[own])
    near(whole, torch.cat(tensors))
    tensors = parts(group, (rows * size, 6), seed + 1, dtype)
    total = torch.stack([one.float() for one in tensors]).sum(0).to(dtype)
    part = torch.empty(rows, 6, dtype=dtype)
    assert group._reduce_scatter_tensor(output=part, input=tensors[own]) is part
    near(part, total.chunk(size)[own])


def taken(group, reason=""):
    """Calls of the group's collectives with this outcome."""
    rows = tandem.sglang.report().rows
    return sum(
        row.calls
        for row in rows
        if row.group == group.unique_name and (reason in row.reason if reason else not row.reason)
    )


@check
def test_every_collective_is_taken(name):
    with sglang_group() as group:
        for seed, rows in enumerate((1, 7, 64)):
            for dtype in (torch.float32, torch.bfloat16):
                all_three(group, rows, seed, dtype)
        assert taken(group) == 30 and "SGLang" in str(tandem.sglang.report()), tandem.sglang.report()


@check
def test_the_input_stays(name):
    with sglang_group() as group:
        x = torch.full((5, 8), float(dist.get_rank() + 1))
        kept = x.clone()
        group.all_reduce(x)
        assert torch.equal(x, kept), x


@check
def test_every_number_of_rows_shares_a_plan(name):
    if not CLIENT:  # families run on the ranks' own streams
        return
    with sglang_group() as group:
        plans = tandem.torch.attach(group.device_group).plans
        for rows in (*range(1, 40), 255, 256, 1, 100):
            x = torch.full((rows, 16), float(group.rank_in_group + 1))
            near(group.all_reduce(x), torch.full_like(x, world() * (world() + 1) / 2))
        assert plans._made == 1, plans._made


@check
def test_what_tandem_declines_is_sglangs_own(name):
    with sglang_group() as group:
        tensors = parts(group, (4, 8), dtype=torch.float64)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            near(group.all_reduce(tensors[group.rank_in_group].clone()).float(), torch.stack(tensors).sum(0).float())
        found = [str(one.message) for one in caught if "SGLang's own communicator" in str(one.message)]
        assert len(found) == (1 if dist.get_rank() == 0 else 0), found
        assert (taken(group), taken(group, "float64")) == (0, 1), tandem.sglang.report()
        all_three(group, 4, 0)
        assert taken(group) == 5


@check
def test_a_capture_without_a_plan_is_sglangs_own(name):
    with sglang_group() as group:

        def no_plan(*_):
            raise NoPlanYet("a graph is being captured")

        tandem.torch.attach(group.device_group).plans.run = no_plan
        x = torch.full((3, 5), float(group.rank_in_group + 1))
        near(group.all_reduce(x), torch.full((3, 5), world() * (world() + 1) / 2))
        assert taken(group, "captured") == 1, tandem.sglang.report()


@check
def test_several_tensor_parallel_groups(name):
    if world() < 4:
        return
    with sglang_group(sizes=2) as group, sglang_group("attention_tp", 2) as attention:
        for seed, rows in enumerate((1, 5, 64)):
            all_three(group, rows, seed)
            all_three(attention, rows, seed)
        assert (taken(group), taken(attention)) == (15, 15), tandem.sglang.report()


@check
def test_other_groups_are_left_alone(name):
    before = launches()
    with sglang_group("pp") as group:
        near(group.all_reduce(torch.ones(4, 2)), torch.full((4, 2), float(world())))
        assert taken(group) == 0
    assert launches() == before


@check
def test_destroying_a_group_leaves_tandems(name):
    with sglang_group() as group:
        all_three(group, 3, 0)
        found = tandem.torch.attach(group.device_group)
        assert found.group is not None
    assert found.group is None, found
    with sglang_group() as group:  # and the next one is served
        all_three(group, 3, 1)
        assert taken(group) > 0


@contextlib.contextmanager
def deterministic_group(name="tp"):
    """As sglang_group(), in SGLang's deterministic mode."""
    with envs.SGLANG_ENABLE_DETERMINISTIC_INFERENCE.override(True), sglang_group(name) as group:
        yield group


BATCHES = (1, 3, 64, 300, 3)


def check_bits(known, chosen, *results):
    """The bits of each row's results are those that this row had in each batch before."""
    for kind, result in enumerate(results):
        kept = result.contiguous().view(torch.int32 if result.dtype is torch.float32 else torch.int16)
        for row, found in zip(chosen.tolist(), kept, strict=True):
            first = known.setdefault((kind, row), found)
            assert torch.equal(first, found), (kind, row, len(chosen))


def batches(count):
    """Rows of so many, in batches of these sizes, each in another order."""
    for seed, rows in enumerate(BATCHES):
        yield torch.randint(count, (rows,), generator=torch.Generator().manual_seed(seed))


def promises(group):
    return {info["determinism"] for info in tandem.torch.attach(group.device_group).plans.infos()}


@check
def test_deterministic_a_row_has_the_same_bits_in_every_batch(name):
    with deterministic_group() as group:
        own, size = group.rank_in_group, group.world_size
        for dtype in (torch.float32, torch.bfloat16):
            pools, known, before = parts(group, (7, 40), 3, dtype), {}, taken(group)
            for chosen in batches(7):
                x = pools[own][chosen]
                check_bits(known, chosen, group.all_reduce(x.clone()))
                check_bits(known, chosen, group._all_reduce_out_place(x, outplace_all_reduce_method="auto"))
                group._all_reduce_in_place(x)
                check_bits(known, chosen, x)
                whole = chosen.repeat_interleave(size)
                part = torch.empty(len(chosen), 40, dtype=dtype)
                group._reduce_scatter_tensor(output=part, input=pools[own][whole])
                check_bits(known, whole.chunk(size)[own], part)
                group.reduce_scatter_tensor(part, pools[own][whole])  # SGLang makes it from a sum
                check_bits(known, whole.chunk(size)[own], part)
            assert taken(group) == before + 5 * len(BATCHES), tandem.sglang.report()
        assert promises(group) == {"batch"}, promises(group)
    assert tandem.torch.configure().determinism == "off"
    with sglang_group() as group:
        group.all_reduce(torch.ones(3, 8))
        assert promises(group) == {"off"}, promises(group)


@check
def test_deterministic_what_is_declined_is_sglangs_own_for_all_rows(name):
    with deterministic_group() as group:
        plans = tandem.torch.attach(group.device_group).plans
        tensors = parts(group, (300, 8), dtype=torch.float64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for rows in (3, 1, 300):
                given = tensors[group.rank_in_group][:rows].clone()
                near(group.all_reduce(given).float(), torch.stack(tensors).sum(0)[:rows].float())
        assert len(plans._plans) == 1 and taken(group, "float64") == 3, tandem.sglang.report()


@check
def test_deterministic_a_capture_without_a_plan_is_an_error(name):
    with deterministic_group() as group:

        def no_plan(*_):
            raise NoPlanYet("a graph is being captured")

        tandem.torch.attach(group.device_group).plans.run = no_plan
        try:
            group.all_reduce(torch.ones(3, 5))
        except NoPlanYet as error:
            assert "whatever else is in the batch" in str(error), error
        else:
            raise AssertionError("SGLang's own has run")


@check
def test_another_signature_stays_sglangs(name):
    """A later SGLang whose groups have other parameters."""
    from tandem.sglang import _served, _signatures

    class GroupCoordinator(parallel_state.GroupCoordinator):
        def destroy(self, how):
            pass

    names = tuple(_served.AROUND)
    assert _signatures.difference(parallel_state.GroupCoordinator, names) == ""
    assert "(self, how)" in _signatures.difference(GroupCoordinator, names)


@check
def off_everything_is_sglangs_own(name):
    before = launches()
    with sglang_group() as group:
        near(group.all_reduce(torch.ones(3, 4)), torch.full((3, 4), float(world())))
    assert (launches(), tandem.sglang.report().taken) == (before, 0)


if __name__ == "__main__":
    main("gloo")

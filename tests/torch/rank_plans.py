"""A rank that checks the groups and plans behind torch.ops.tandem: names, padding, placement, bounds, and that nothing grows."""

import json
import os
import subprocess

import tandem.torch
import torch
import torch.distributed as dist
from checks import DEVICE, check, configured, main
from reference_ops import OPS, near, rand, rank, reference, world
from tandem.torch import _native


@check
def test_subgroups_and_recycled_names(name):
    for _ in range(2):
        pairs = [dist.new_group(ranks) for ranks in ([0, 1], *([[2, 3]] if world() == 4 else []))]
        mine = pairs[rank() // 2]
        x = rand(4, 3)
        got = OPS.all_reduce(x, "sum", mine.group_name)
        near(got, reference.all_reduce(x, "sum", mine.group_name))
        tandem.torch.detach(mine)
        near(OPS.all_reduce(x, "sum", mine.group_name), got)
        # A later process group has the name of one that is gone: the attachment of the former does not serve it.
        former = tandem.torch.attachment(mine.group_name)
        former._process_group = lambda: None
        near(OPS.all_reduce(x, "sum", mine.group_name), got)
        assert tandem.torch.attachment(mine.group_name) is not former and former.group is None
        tandem.torch.detach(mine)


@check
def test_families_serve_other_rows_without_a_meeting(name):
    tandem.torch.detach(name)
    tandem.torch.configure(placement="client", families="all", max_rows=512)
    try:
        b, bias = rand(6, 5, seed=1), rand(5, seed=2, same=True)
        plans = tandem.torch.attach(name).plans

        def call(rows):
            a, wide = rand(rows, 6), rand(rows * world(), 6, seed=3)
            near(OPS.all_reduce(a, "sum", name), reference.all_reduce(a, "sum", name))
            assert torch.equal(OPS.all_gather(a, 0, name), reference.all_gather(a, 0, name))
            near(OPS.reduce_scatter(wide, "avg", 0, name), reference.reduce_scatter(wide, "avg", 0, name))
            whole, (product,) = OPS.all_gather_matmul(a, [b], 0, name, [bias])
            near(product, whole @ b + bias)
            near(OPS.matmul_reduce_scatter(wide, b, "sum", 0, name), reference.reduce_scatter(wide @ b, "sum", 0, name))
            near(OPS.matmul_all_reduce(a, b, "avg", name, bias), reference.all_reduce(a @ b, "avg", name) + bias)

        call(7)
        made = plans._made
        part = 256 // world()  # the most rows of a rank below the least bound
        for rows in (1, 2, part - 3, 33, 7, part, 1):
            call(rows)
        assert plans._made == made, (plans._made, made)
        before = _native.counts()
        for rows in (33, 34, 5):  # the last two were never seen
            call(rows)
        if _native.kernels is not None:  # all six ops, without Python
            assert _native.counts().launched == before.launched + 3 * 6
        # The bound doubles where a call has more rows; beyond the most rows a plan has one shape.
        call(2 * part - 5)
        assert plans._made > made
        made = plans._made
        call(2 * part - 9)
        assert plans._made == made, (plans._made, made)
        x = rand(600, 6)
        near(OPS.all_reduce(x, "sum", name), reference.all_reduce(x, "sum", name))
        assert plans._made == made + 1
        # A call that Python runs, of a family that has grown, meets one that a kernel runs on another rank.
        x = rand(300, 6)
        near(OPS.all_reduce(x[:100], "sum", name), reference.all_reduce(x[:100], "sum", name))
        near(OPS.all_reduce(x, "sum", name), reference.all_reduce(x, "sum", name))
        near(OPS.all_reduce(x[:90], "sum", name), reference.all_reduce(x[:90], "sum", name))
        if dist.get_rank() == 0:
            plans._table.remove(next(one for one in plans.prepared() if one.plan.info["op"] == "all_reduce"))
        near(OPS.all_reduce(x[:80], "sum", name), reference.all_reduce(x[:80], "sum", name))
    finally:
        tandem.torch.configure(placement="auto", families="all", max_rows=8192)
        tandem.torch.detach(name)


@check
def test_a_family_is_prepared_ahead(name):
    """Then no call of up to so many rows meets, and what was given is as it was."""
    with configured(name, placement="client", families="all", max_rows=2048):
        plans, b, weight = tandem.torch.attach(name).plans, rand(6, 5, seed=1), rand(5, seed=3, same=True)
        a, residual = rand(3, 6), rand(3, 5, seed=4, same=True)
        given = (residual, weight, 1e-5, name)
        before = residual.clone()
        assert tandem.torch.prepare(OPS.matmul_all_reduce_rms_norm, a, b, *given, max_rows=700)
        assert tandem.torch.prepare("all_reduce", a, "sum", name, max_rows=1000)
        assert tandem.torch.prepare(OPS.all_reduce_, a.clone(), "sum", name)
        assert tandem.torch.prepare(OPS.all_gather_matmul.default, a, [b], 0, name)
        assert torch.equal(residual, before)
        made = plans._made
        assert tandem.torch.prepare("all_reduce", a, "sum", name, max_rows=900)
        for rows in (700, 1, 3, 513, 257):
            a, residual = rand(rows, 6), rand(rows, 5, seed=4, same=True)
            near(OPS.all_reduce(a, "sum", name), reference.all_reduce(a, "sum", name))
            want = residual + reference.all_reduce(a @ b, "sum", name)
            normed = OPS.matmul_all_reduce_rms_norm(a, b, residual, weight, 1e-5, name)
            near(residual, want)
            near(normed, want / (want.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight)
            near(OPS.all_gather_matmul(a, [b], 0, name)[1][0], reference.all_gather(a, 0, name) @ b)
        assert plans._made == made, (plans._made, made)
        # More rows than a family may have: a plan of one shape, once.
        for _ in range(2):
            assert not tandem.torch.prepare("all_reduce", rand(2, 7), "sum", name, max_rows=4096)
        assert plans._made == made + 1, (plans._made, made)
        for wrong in (
            lambda: tandem.torch.prepare("all_sum", a),
            lambda: tandem.torch.prepare("all_reduce", a, max_rows=0),
        ):
            try:
                wrong()
                raise AssertionError("it was taken")
            except ValueError as error:
                assert "all_sum" in str(error) or "max_rows is 0" in str(error), error
    with configured(name, placement="engine"):
        plans = tandem.torch.attach(name).plans
        assert not tandem.torch.prepare("all_reduce", rand(5, 6), "sum", name)  # engines have no families
        near(OPS.all_reduce(rand(5, 6), "sum", name), reference.all_reduce(rand(5, 6), "sum", name))
        assert plans._made == 1, plans._made


@check
def test_leading_dimensions_are_rows(name):
    """A batch of sequences is served by the family of its rows; its own extents do not count."""
    with configured(name, placement="client", families="all", max_rows=512):
        b, bias, plans = rand(6, 5, seed=1), rand(5, seed=2, same=True), tandem.torch.attach(name).plans
        weight = rand(5, seed=3, same=True)

        def call(batch, length):
            a, wide = rand(batch, length, 6), rand(batch * world(), length, 6, seed=3)
            near(OPS.all_reduce(a, "sum", name), reference.all_reduce(a, "sum", name))
            product = OPS.all_gather_matmul(a, [b], 0, name, [bias], return_A=False)[1][0]
            near(product, reference.all_gather(a, 0, name) @ b + bias)
            near(OPS.matmul_reduce_scatter(wide, b, "sum", 0, name), reference.reduce_scatter(wide @ b, "sum", 0, name))
            total = reference.all_reduce(a @ b, "sum", name)
            near(OPS.matmul_all_reduce(a, b, "sum", name, bias), total + bias)
            residual = rand(batch, length, 5, seed=4, same=True)
            want = residual + total
            normed = OPS.matmul_all_reduce_rms_norm(a, b, residual, weight, 1e-5, name)
            near(residual, want)
            near(normed, want / (want.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight)

        call(2, 7)
        made = plans._made
        for batch, length in ((1, 1), (1, 30), (3, 7), (5, 4), (2, 7)):
            call(batch, length)
        near(
            OPS.matmul_all_reduce(rand(9, 6), b, "sum", name, bias),
            reference.all_reduce(rand(9, 6) @ b, "sum", name) + bias,
        )
        for length in (3, 11, 3):  # sequences of one batch, along their own dimension
            a, wide = rand(1, length, 6), rand(1, length * world(), 6, seed=3)
            product = OPS.all_gather_matmul(a, [b], 1, name, [bias], return_A=False)[1][0]
            near(product, reference.all_gather(a, 1, name) @ b + bias)
            near(OPS.matmul_reduce_scatter(wide, b, "sum", 1, name), reference.reduce_scatter(wide @ b, "sum", 1, name))
        assert plans._made == made, (plans._made, made)
        before = _native.counts()
        call(4, 7)  # of another batch, without Python
        if _native.kernels is not None:
            assert _native.counts().launched == before.launched + 5
        # Several batches have other parts along that dimension, and plans of one shape.
        a = rand(2, 11, 6)
        product = OPS.all_gather_matmul(a, [b], 1, name, [bias], return_A=False)[1][0]
        near(product, reference.all_gather(a, 1, name) @ b + bias)
        assert plans._made == made + 1, (plans._made, made)
        made += 1
        # More rows than the most have a plan of one shape, whatever the batch.
        x = rand(2, 300, 6)
        near(OPS.matmul_all_reduce(x, b, "sum", name), reference.all_reduce(x @ b, "sum", name))
        near(OPS.matmul_all_reduce(x, b, "sum", name), reference.all_reduce(x @ b, "sum", name))
        assert plans._made == made + 1
        assert not [info for info in plans.infos() if info["max_rows"] > 512], plans.infos()


@check
def test_a_family_of_wide_rows_begins_with_few(name):
    with configured(name, placement="client", families="all"):
        for columns, bound in ((64, 256), (1 << 20, 16)):
            x = rand(2, columns)
            near(OPS.all_reduce(x, "sum", name), reference.all_reduce(x, "sum", name))
            bounds = [info["max_rows"] for info in tandem.torch.attach(name).plans.infos()]
            assert bounds[-1] == bound, bounds


@check
def test_families_are_bounded_as_other_plans(name):
    """Calls of ever new widths make ever new families: the least recently used ones go first, on all ranks alike."""

    def reduce(rows, columns):
        x = rand(rows, columns, seed=columns)
        near(OPS.all_reduce(x, "sum", name), reference.all_reduce(x, "sum", name))

    with configured(name, placement="client", families="all", max_plans=4, max_rows=4096):
        plans = tandem.torch.attach(name).plans
        made = []
        for columns in range(2, 20):
            reduce(3, columns)
            made += [one.plan for one in plans.prepared() if one.plan not in made]
            reduce(5, 1)  # used all the time, by other calls than the first
            assert len(plans._families) <= 4, len(plans._families)
        live = [plan for plan in made if plan._handle.value]
        assert len(made) == 18 + 1 and len(live) <= 4, (len(made), len(live))
        count = plans._made
        for columns in (1, 19):
            reduce(7, columns)
        assert plans._made == count, "a family that was used has gone"
        reduce(7, 2)  # its family is prepared again
        assert plans._made == count + 1
        # A family that grows leaves smaller ones, which go with it, or where no other can go.
        for rows in (300, 600, 1200, 2400, 2500):
            reduce(rows, 1)
            assert len(plans._families) <= 4, len(plans._families)
        count = plans._made
        for columns in (3, 4, 5, 6):
            reduce(2, columns)
        assert plans._made == count + 4 and len(plans._families) <= 4


@check
def test_plans_run_where_they_are_told(name):
    x, a, b = rand(4, 6), rand(2 * world(), 6), rand(6, 4, seed=1)
    for placement in ("engine", "client", "auto"):
        tandem.torch.detach(name)
        tandem.torch.configure(placement=placement)
        try:
            for _ in range(2):
                near(OPS.all_reduce(x, "sum", name), reference.all_reduce(x, "sum", name))
                if DEVICE == "cpu":  # on CUDA not every product can be placed on the client
                    near(OPS.matmul_all_reduce(a, b, "sum", name), reference.all_reduce(a @ b, "sum", name))
            told = [info["placement"] for info in tandem.torch.attach(name).plans.infos()]
        finally:
            tandem.torch.configure(placement="auto")
            tandem.torch.detach(name)
        wanted = ("engine: ", "client: ") if placement == "auto" else f"{placement}: "
        assert len(told) == (2 if DEVICE == "cpu" else 1) and all(text.startswith(wanted) for text in told), (
            placement,
            told,
        )
    try:
        tandem.torch.configure(placement="host")
        raise AssertionError("a wrong placement was taken")
    except ValueError as error:
        assert "placement" in str(error)


@check
def test_plans_are_measured_while_they_are_prepared(name):
    x = rand(4099)
    tandem.torch.detach(name)
    tandem.torch.configure(autotune=True)
    try:
        for _ in range(2):
            near(OPS.all_reduce(x, "sum", name), reference.all_reduce(x, "sum", name))
        (told,) = tandem.torch.attach(name).plans.infos()
    finally:
        tandem.torch.configure(autotune=False)
        tandem.torch.detach(name)
    # Where a table of such GPUs is shipped, nothing is measured again.
    assert "measured fastest" in told["reason"] or "as measured on these GPUs' kind" in told["reason"], told["reason"]


@check
def test_a_rank_that_does_not_come_is_named(name):
    group = dist.new_group()
    OPS.all_reduce(rand(3), "sum", group.group_name)
    tandem.torch.detach(group)
    before = tandem.torch._config.current().rendezvous_timeout
    tandem.torch.configure(rendezvous_timeout=5)  # in which all ranks attach on a busy machine
    try:
        tandem.torch.attach(group)
        if rank() != 1:
            try:
                OPS.all_reduce(rand(5), "sum", group.group_name)
                raise AssertionError("a plan without rank 1")
            except tandem.RankLate as error:
                assert error.ranks == (1,), error
        dist.barrier(group)
    finally:
        tandem.torch.configure(rendezvous_timeout=before)
        tandem.torch.detach(group)


@check
def test_plans_are_bounded_and_released_alike(name):
    tandem.torch.detach(name)
    before = tandem.torch._config.current()
    tandem.torch.configure(max_plans=3)
    try:
        attached = tandem.torch.attach(name)
        for _ in range(2):
            for rows in (1, 2, 3, 4, 5):
                x = rand(rows, 2)
                near(OPS.all_reduce(x, "sum", name), reference.all_reduce(x, "sum", name))
                assert len(attached.plans) <= 3
    finally:
        tandem.torch.configure(max_plans=before.max_plans)
        tandem.torch.detach(name)


@check
def test_a_local_rank_that_is_no_number_is_named(name):
    if DEVICE == "cuda":
        return  # a rank's GPU is the current device there
    given = os.environ["LOCAL_RANK"]
    last = world() - 1
    try:
        for text, reason in (("", ""), ("all", f"rank {last}: LOCAL_RANK is 'all', not a number"), (given, "")):
            tandem.torch.detach(name)
            os.environ["LOCAL_RANK"] = text if rank() == last else given
            assert tandem.torch.attach(name).reason == reason, tandem.torch.attach(name).reason
    finally:
        os.environ["LOCAL_RANK"] = given


@check
def test_ten_thousand_steps_grow_nothing(name):
    if world() > 2:
        return  # two ranks show it, and sooner
    a, up, down = rand(4, 6), rand(6, 4, seed=1).requires_grad_(), rand(4, 6, seed=2).requires_grad_()

    def step(count):
        """A block's forward, and at times its backward."""
        with torch.set_grad_enabled(count % 20 == 0):
            _, (inner,) = OPS.all_gather_matmul(a, [up], 0, name, return_A=False)
            out = OPS.matmul_reduce_scatter(inner, down, "sum", 0, name)
        if count % 20 == 0:
            out.sum().backward()
            up.grad = down.grad = None
            tandem.torch.synchronize()

    def held():
        """Pages and descriptors of this rank and of the node's daemon and engines; plans; the daemon's objects."""
        processes = [os.getpid(), *servers()]
        pages = []
        for process in processes:
            with open(f"/proc/{process}/statm") as file:
                pages.append(int(file.read().split()[1]))
        descriptors = [len(os.listdir(f"/proc/{process}/fd")) for process in processes]
        allocated = torch.cuda.memory_allocated() if DEVICE == "cuda" else 0
        return pages, descriptors, (len(tandem.torch.attach(name).plans), daemon_objects(), allocated)

    for count in range(1000):
        step(count)
    dist.barrier()
    pages, opened, before = held()
    dist.barrier()
    for count in range(10_000):
        step(count)
    dist.barrier()
    after, still_opened, counts = held()
    # gRPC closes idle connections meanwhile, so there may be fewer descriptors.
    assert all(now <= then for now, then in zip(still_opened, opened, strict=True)), (opened, still_opened)
    assert counts[:-1] == before[:-1] and counts[-1] <= before[-1], (before, counts)
    grown = [(new - old) * os.sysconf("SC_PAGE_SIZE") for new, old in zip(after, pages, strict=True)]
    assert max(grown) < 8 << 20, grown
    dist.barrier()


def servers():
    """tandemd's process and its engines'."""
    (daemon,) = [one for one in os.listdir("/proc") if one.isdigit() and runs_here(one)]
    with open(f"/proc/{daemon}/task/{daemon}/children") as file:
        return [daemon, *file.read().split()]


def runs_here(process):
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return False
    return words[0].endswith(b"tandemd") and os.environ["TANDEM_RUNTIME_DIR"].encode() in words


def daemon_objects():
    command = [os.path.join(os.environ["TANDEM_BIN_DIR"], "tandemctl"), "stats", "--json"]
    stats = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return {key: stats[key] for key in ("sessions", "groups", "plans", "segment_bytes")}


if __name__ == "__main__":
    main()

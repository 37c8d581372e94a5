"""A rank whose process group has the backend "tandem", without install()."""

from datetime import timedelta

import tandem.torch
import torch
import torch.distributed as dist
from checks import CUDA, DEVICE, SHARED_GPUS, check, main, once

OPTIONS = tandem.torch.BackendOptions(inner="gloo") if SHARED_GPUS else None
BACKEND = "cpu:gloo,cuda:tandem" if CUDA else "cpu:tandem"


def world():
    return dist.get_world_size()


def calls(work):
    """(taken, left) collectives of Tandem's counts while `work` ran."""
    before = tandem.torch.report()
    work()
    now = tandem.torch.report()
    taken = now.taken - before.taken
    return taken, now.seen - before.seen - taken


def summed(group=None, **more):
    """A sum over the group, which is checked."""
    x = torch.full((5, 3), float(dist.get_rank(group) + 1), device=DEVICE)
    dist.all_reduce(x, group=group, **more)
    size = dist.get_world_size(group)
    assert torch.equal(x, torch.full_like(x, size * (size + 1) / 2)), x


@check
def test_its_groups_are_taken(name):
    assert not tandem.torch.installed()
    assert "tandem" in dist.get_backend_config(dist.group.WORLD), dist.get_backend_config(dist.group.WORLD)
    assert calls(summed) == (1, 0)
    part, whole = torch.full((4,), float(dist.get_rank()), device=DEVICE), torch.empty(4 * world(), device=DEVICE)
    assert calls(lambda: dist.all_gather_into_tensor(whole, part)) == (1, 0)
    assert torch.equal(whole, torch.arange(float(world()), device=DEVICE).repeat_interleave(4))
    again = dist.new_group()
    assert calls(lambda: summed(again)) == (1, 0)
    dist.destroy_process_group(again)


class Sleeps:
    """What torch 2.12 has for NCCL: methods of the class of all backends. They are put where torch has none."""

    def __init__(self):
        self.owner, self.calls = torch._C._distributed_c10d.Backend, []
        self.lacks = not hasattr(self.owner, "suspend")

    def __enter__(self):
        if self.lacks:
            self.owner.suspend = lambda backend: self.calls.append("suspend")
            self.owner.resume = lambda backend: self.calls.append("resume")
        return self

    def __exit__(self, *_):
        if self.lacks:
            del self.owner.suspend, self.owner.resume


@check
def test_c10ds_names_let_tandems_group_sleep(name):
    if CUDA:  # NCCL's own need a communicator of 2.29.7
        return
    with Sleeps() as theirs:
        groups = [dist.new_group(backend=one) for one in (BACKEND, BACKEND, "gloo")]
        backends = [group._get_backend(torch.device("cpu")) for group in groups]
        for group in groups:
            summed(group)
        for _turn in range(2):
            for backend in (backends[0], backends[2]):
                backend.suspend()
            assert theirs.calls == ["suspend"] * 2, theirs.calls
            for group in groups[1:]:  # another group of the backend, and one of another backend
                summed(group)
            try:
                summed(groups[0])
                raise AssertionError("it ran")
            except RuntimeError as error:
                assert "suspended" in str(error), error
            dist.barrier()
            for backend in (backends[0], backends[2]):
                backend.resume()
            assert theirs.calls == ["suspend"] * 2 + ["resume"] * 2, theirs.calls
            theirs.calls.clear()
            summed(groups[0])
        for group in groups:
            dist.destroy_process_group(group)


@check
def test_where_tandems_group_does_not_sleep_the_backend_is_awake(name):
    """Its tensor is of two groups."""
    if CUDA:
        return
    with Sleeps() as theirs:
        groups = [dist.new_group(backend=BACKEND) for _ in range(2)]
        for group in groups:
            summed(group)
        tandems = [tandem.torch.attach(group).group for group in groups]
        held = tandems[0].client.empty((64,), gpu_uuid=tandems[0].gpu_uuid)
        memories = [held.rendezvous(one) for one in tandems]
        backend = groups[0]._get_backend(torch.device("cpu"))
        try:
            backend.suspend()
            raise AssertionError("it slept")
        except tandem.FailedPrecondition as error:
            assert error.reason == "TENSOR_SHARED", error
        assert theirs.calls == ["suspend", "resume"], theirs.calls
        summed(groups[0])
        dist.barrier()
        del memories, held
        for group in groups:
            dist.destroy_process_group(group)


@check
def test_groups_of_other_backends_are_left_alone(name):
    other = dist.new_group(backend="gloo")
    assert calls(lambda: summed(other)) == (0, 0)
    rows = [torch.empty(2, device=DEVICE) for _ in range(world())]
    assert calls(lambda: dist.all_gather(rows, torch.ones(2, device=DEVICE), group=other)) == (0, 0)
    dist.destroy_process_group(other)


@check
def test_a_monitored_barrier_is_gloos(name):
    by_name = torch.__version__ < "2.14"  # later ones ask for a backend of the CPU, which the inner one is
    try:
        dist.monitored_barrier(timeout=timedelta(seconds=30))
    except ValueError as error:
        assert by_name and "GLOO" in str(error), error
    else:
        assert not by_name, "torch has another monitored_barrier now"
    other = dist.new_group(backend="gloo")
    dist.monitored_barrier(other, timeout=timedelta(seconds=30))
    dist.destroy_process_group(other)


@check
def test_devices_of_other_backends_are_left_alone(name):
    mixed = dist.new_group(backend="cpu:gloo,cuda:tandem", pg_options=OPTIONS)
    x = torch.ones(3)
    assert calls(lambda: dist.all_reduce(x, group=mixed)) == (0, 0)
    assert torch.equal(x, torch.full((3,), float(world())))
    dist.destroy_process_group(mixed)


@check
def test_the_rest_is_the_inner_backends(name):
    x = torch.tensor([float(dist.get_rank())], dtype=torch.float64, device=DEVICE)

    def largest():
        dist.all_reduce(x, dist.ReduceOp.MAX)
        assert x.item() == world() - 1

    assert calls(largest) == (0, 1)
    dist.barrier()
    if SHARED_GPUS:
        return  # gloo sends no memory of a GPU
    right, left = (dist.get_rank() + 1) % world(), (dist.get_rank() - 1) % world()
    sent, got = torch.full((3,), float(dist.get_rank()), device=DEVICE), torch.empty(3, device=DEVICE)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, right), dist.P2POp(dist.irecv, got, left)]):
        work.wait()
    assert torch.equal(got, torch.full_like(got, float(left)))
    rows = [torch.empty(3, device=DEVICE) for _ in range(world())] if dist.get_rank() == 0 else None
    dist.gather(sent, rows)
    if rows:
        assert [row[0].item() for row in rows] == list(range(world()))
    objects = [None] * world()
    dist.all_gather_object(objects, dist.get_rank())
    assert objects == list(range(world()))


@check
def test_asynchronous_works(name):
    x = torch.ones(7, device=DEVICE)

    def several():
        works = [dist.all_reduce(x, async_op=True) for _ in range(3)]
        for work in works:
            work.wait()

    several()
    assert calls(several) == (3, 0)
    assert torch.equal(x, torch.full_like(x, float(world() ** 6)))


@check
def test_coalesced_calls(name):
    tensors = [torch.full((n,), 1.0, device=DEVICE) for n in (3, 5, 8)]

    def all_at_once():
        with dist.distributed_c10d._coalescing_manager():
            for tensor in tensors:
                dist.all_reduce(tensor)

    assert calls(all_at_once) == (1, 0)
    for tensor in tensors:
        assert torch.equal(tensor, torch.full_like(tensor, float(world())))


@check
def test_calls_that_the_backend_coalesces(name):
    """NCCL's way: it is told of the calls before, and has a work for them afterwards. gloo has no such thing."""
    if CUDA and not SHARED_GPUS:
        tensors = [torch.full((n,), 1.0, device=DEVICE) for n in (3, 5)]

        def coalesced():
            with dist.distributed_c10d._coalescing_manager(device=tensors[0].device, async_ops=True) as works:
                for tensor in tensors:
                    dist.all_reduce(tensor)
            works.wait()

        assert calls(coalesced) == (0, 1)
        assert torch.equal(tensors[0], torch.full_like(tensors[0], float(world())))
        return
    group = dist.group.WORLD
    try:
        group._start_coalescing(torch.device(DEVICE))
    except RuntimeError:
        assert calls(summed) == (1, 0)
    assert group._start_coalescing.of_tandem
    tell = tandem.torch._distributed.library.coalescing
    tell(1)
    assert calls(summed) == (0, 1)
    tell(0)
    assert calls(summed) == (1, 0)


@check
def test_options(name):
    for options in (tandem.torch.BackendOptions(), OPTIONS):
        group = dist.new_group(backend=BACKEND, pg_options=options)
        assert calls(lambda group=group: summed(group)) == (1, 0)
        dist.destroy_process_group(group)
        if SHARED_GPUS:
            break
    try:
        dist.new_group(backend=BACKEND, pg_options=tandem.torch.BackendOptions(inner="mpi"))
    except ValueError as error:
        assert "'nccl' or 'gloo'" in str(error), error
    else:
        raise AssertionError("an unknown inner backend")


@check
def test_a_device_mesh(name):
    mesh = dist.init_device_mesh(DEVICE, (world() // 2, 2), mesh_dim_names=("data", "model"))
    assert calls(lambda: summed(mesh.get_group("model"))) == (1, 0)


@check
def test_install_takes_the_other_groups_too(name):
    other = dist.new_group(backend="gloo")
    assert calls(lambda: summed(other)) == (0, 0)
    tandem.torch.install()
    try:
        assert calls(lambda: summed(other)) == (1, 0)
        assert calls(summed) == (1, 0)
    finally:
        tandem.torch.uninstall()
    assert calls(lambda: summed(other)) == (0, 0)
    assert calls(summed) == (1, 0)
    dist.destroy_process_group(other)


@check
def test_a_hundred_groups(name):
    def all_of_them():
        for _ in range(100):
            group = dist.new_group()
            summed(group)
            dist.destroy_process_group(group)

    assert calls(all_of_them) == (100, 0)


@once
def test_torch_distributed_ends_and_begins_again(name):
    store, rank, size = dist.distributed_c10d._get_default_store(), dist.get_rank(), world()
    for time in range(5):
        dist.barrier()
        dist.destroy_process_group()
        again = dist.PrefixStore(f"again/{time}", store)  # the first one's server stays
        dist.init_process_group(
            BACKEND, store=again, rank=rank, world_size=size, timeout=timedelta(seconds=60), pg_options=OPTIONS
        )
        assert calls(summed) == (1, 0)


if __name__ == "__main__":
    main(BACKEND, pg_options=OPTIONS)

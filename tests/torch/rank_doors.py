"""Groups of servers and of Megatron, whose adapters attach them: ranks with other versions of Tandem, one without it, one that ends."""

import json
import logging
import os
import sys
import threading
import warnings

import tandem
import tandem.torch
import torch
import torch.distributed as dist
from checks import DEVICE, PATIENCE, check, configured, main, start
from reference_ops import near, rand, rank, world
from tandem.megatron import _choice
from tandem.torch import _daemon, _servers


class Counted:
    """A server's adapter, with what it has counted."""

    def __init__(self):
        self.rows = []
        self.server = _servers.Server("Stand-in", logging.getLogger("tandem.test"), lambda *row: self.rows.append(row))

    def attach(self, group, **given):
        given = {"is_first": rank() == 0, "most_rows": 64, "reason": "", "by_rows_alone": False, **given}
        return self.server.attach("tp", group, **given)

    def sum(self, group, x):
        """As a communicator of vLLM or SGLang: the server's own where Tandem declines."""
        ops = torch.ops.tandem
        result, is_run = self.server.offer("tp", "all_reduce", lambda x: ops.all_reduce(x, "sum", group.group_name), x)
        if not is_run:
            result = x.clone()
            dist.all_reduce(result, group=group)
        return result


def total(x):
    whole = x.clone()
    dist.all_reduce(whole)
    return whole


def layer(group):
    """What Megatron's adapter says of a layer of this group."""
    x, weight = rand(4, 8), rand(6, 8, seed=1)
    return _choice.why_not_column(x, weight, None, False, False, True, None, group)


@check
def test_other_versions_keep_the_servers_own(name):
    """Alike on all ranks: none joins, and the reason names both versions. So do layers of Megatron."""
    own, x = _daemon._release, rand(4, 8)
    group = dist.new_group()
    _daemon._release = lambda: f"0.1.{rank() % 2}"
    try:
        door = Counted()
        assert door.attach(group) == "", "it is served"
        reason = tandem.torch.attach(group).reason
        assert "rank 0 0.1.0, rank 1 0.1.1" in reason, reason
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # one for each fallback
            near(door.sum(group, x), total(x))
            assert "different versions" in layer(group)
        (row,) = door.rows
        assert "different versions" in row[2], row
    finally:
        _daemon._release = own
    tandem.torch.detach(group)
    assert door.attach(group) == group.group_name
    near(door.sum(group, x), total(x))
    assert not layer(group) and not door.rows[-1][2], door.rows
    dist.destroy_process_group(group)


@check
def test_a_version_that_does_not_compare(name):
    """Its message has no version. It declines by the others' offers."""
    group = dist.new_group()
    place, agree = _daemon._release, _daemon.agree
    if rank() == 1:

        def older(meeting, process_group, config, daemons):
            meeting.send("place", {"given": True})
            meeting.receive("place", config.rendezvous_timeout)
            return _daemon.Choice(os.environ["TANDEM_RUNTIME_DIR"])

        _daemon.agree = tandem.torch._groups.agree = older
    try:
        door = Counted()
        assert door.attach(group) == "", "it is served"
        assert "different versions" in tandem.torch.attach(group).reason
    finally:
        _daemon._release, _daemon.agree, tandem.torch._groups.agree = place, agree, agree
    dist.destroy_process_group(group)


@check
def test_a_rank_without_tandem_is_named(name):
    """Its plug-in is off: nobody waits longer than for a late rank."""
    with configured(name, rendezvous_timeout=2.0):
        group = dist.new_group()
        if rank() != 1:
            try:
                Counted().attach(group)
                raise AssertionError("rank 1 has not come")
            except tandem.RankLate as error:
                assert error.ranks == (1,) and "Stand-in may run without Tandem there" in str(error), error
            try:
                layer(group)
                raise AssertionError("rank 1 has not come")
            except tandem.RankLate as error:
                assert error.ranks == (1,), error
        dist.barrier()
        # It is switched on behind that, and the next attempt is right.
        assert Counted().attach(group) == group.group_name
        dist.destroy_process_group(group)


def killed():
    """A program of its own: rank 1 ends where the parent kills it, and the others print the failure."""
    start()
    group = dist.new_group()
    door, x = Counted(), torch.ones(4, 8, device=DEVICE)
    assert door.attach(group) == group.group_name
    near(door.sum(group, x), x * world())
    if rank() == 1:
        print("ready", flush=True)
        threading.Event().wait(10 * PATIENCE)
        os._exit(1)
    try:
        for _ in range(3):
            door.sum(group, x)
            tandem.torch.synchronize()
        text, ranks = "nothing", []
    except tandem.RankLost as error:
        text, ranks = str(error), list(error.ranks)
    print(json.dumps({"text": text, "ranks": ranks, "counted": len(door.rows)}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    killed() if sys.argv[1:] == ["killed"] else main()

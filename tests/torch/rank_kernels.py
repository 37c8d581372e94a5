"""A rank that checks the kernels of torch.ops.tandem in C++: what goes past Python, and what stays as it is with Python's kernels."""

import _thread
import os
import signal
import sys
import threading
import time
from datetime import timedelta

import tandem.torch
import torch
import torch.distributed as dist
from checks import DEVICE, PATIENCE, check, main
from reference_ops import OPS, near, rand, rank, reference, world
from tandem.torch import _native

assert _native.kernels is not None, "libtandem_torch.so is missing beside libtandem.so"


class Counted:
    """Within it so many calls must be launched by the table, and so many handed to Python."""

    def __init__(self, launched, handed_on):
        self.wanted = launched, handed_on

    def __enter__(self):
        self.before = _native.counts()

    def __exit__(self, kind, error, trace):
        after = _native.counts()
        got = after.launched - self.before.launched, after.handed_on - self.before.handed_on
        assert kind is not None or got == self.wanted, f"(launched, handed on) is {got}, not {self.wanted}"


def store():
    return dist.distributed_c10d._get_process_group_store(dist.group.WORLD)


@check
def test_every_op_is_launched_without_python(name):
    x, a, b = rand(2 * world(), 3 * world()), rand(2 * world(), 6), rand(6, 4, seed=1)
    bias, out = rand(4, seed=2, same=True), torch.empty(2, 4, device=DEVICE)
    whole = torch.empty_like(x)
    calls = {
        "all_reduce": lambda: OPS.all_reduce(x, "sum", name),
        "noted": lambda: OPS.all_reduce.noted(x, "sum", name, graph="a graph"),
        "all_gather": lambda: OPS.all_gather(x, -1, name),
        "reduce_scatter": lambda: OPS.reduce_scatter(x, "avg", 1, name),
        "all_to_all": lambda: OPS.all_to_all(x, 0, name),
        "broadcast": lambda: OPS.broadcast(x, 1, name),
        "matmul_reduce_scatter": lambda: OPS.matmul_reduce_scatter(a, b, "sum", 0, name),
        "with a bias": lambda: OPS.matmul_reduce_scatter(a, b, "sum", 0, name, bias),
        "by names": lambda: OPS.matmul_reduce_scatter(a, b, reduce_op="avg", scatter_dim=0, group_name=name),
        "out": lambda: OPS.matmul_reduce_scatter.out(a, b, "sum", 0, name, out=out.fill_(float("nan"))) or out.clone(),
        "out of all_reduce": lambda: OPS.all_reduce.out(x, "sum", name, out=whole.fill_(float("nan"))) or whole.clone(),
        "noted out": lambda: (
            OPS.all_reduce.noted_out(x, "sum", name, graph="a graph", out=whole.fill_(float("nan"))) or whole.clone()
        ),
        "another result": lambda: OPS.all_reduce(x, "sum", name),
        "matmul_all_reduce": lambda: OPS.matmul_all_reduce(a, b, "sum", name),
        "of three dimensions": lambda: OPS.matmul_all_reduce(a.view(2, world(), 6), b, "sum", name),
        "transposed": lambda: OPS.matmul_all_reduce(a, b.t().contiguous().t(), "sum", name),
    }
    for what, call in calls.items():
        first = call()
        with Counted(3, 0):
            assert torch.equal(call(), first), what
            with torch.no_grad():
                assert torch.equal(call(), first), what
            with torch.inference_mode():
                assert torch.equal(call(), first), what
        assert first.is_contiguous()
    for keep in (True, False):
        whole, products = OPS.all_gather_matmul(a, [b, 2 * b], 0, name, return_A=keep)
        with Counted(1, 0):
            again, second = OPS.all_gather_matmul(a, [b, 2 * b], 0, name, return_A=keep)
        assert all(map(torch.equal, products, second)) and len(second) == 2
        assert torch.equal(whole, again) if keep else again is None
        near(second[1], reference.all_gather(a, 0, name) @ (2 * b))
    outs, gathered = (
        [torch.empty(2 * world() ** 2, 4, device=DEVICE) for _ in range(2)],
        [torch.empty_like(whole_a(a, name))],
    )
    for call in (
        lambda given: OPS.all_gather_matmul.out(a, [b, 2 * b], 0, name, gathered=given, outs=outs),
        lambda given: OPS.all_gather_matmul(a, [b, 2 * b], 0, name, gathered=given, outs=outs),
        lambda given: OPS.all_gather_matmul.noted_out(a, [b, 2 * b], 0, name, graph="g", gathered=given, outs=outs),
    ):
        for given in ([], gathered):
            call(given)
            for one in (*outs, *gathered):
                one.fill_(float("nan"))
            with Counted(1, 0):
                call(given)
            assert all(map(torch.equal, outs, products))
            assert torch.equal(gathered[0], whole_a(a, name)) == bool(given)
    y = rand(2 * world(), 3 * world(), seed=9).requires_grad_()
    with Counted(2, 0):  # other values, and a backward; on CUDA strides count, and those of ones are usual ones
        OPS.all_reduce(y, "sum", name).backward(torch.ones_like(y))
    near(y.grad, torch.full_like(y, world()))


@check
def test_scaled_ops_are_launched_without_python(name):
    fp8, wide = torch.float8_e4m3fn, torch.bfloat16
    a, b, c = rand(2 * world(), 16).to(fp8), rand(16, 4 * world(), seed=1).to(fp8), rand(8, 16, seed=2).to(fp8).t()
    ones = [torch.full(shape, 0.5, device=DEVICE) for shape in ((), (1,), (1, 1))]
    rows, columns = rand(2 * world(), 1).abs() + 0.1, rand(1, 4 * world(), seed=4).abs() + 0.1
    halves = torch.full((1, 8), 0.5, device=DEVICE)
    bias, scale = rand(4 * world(), seed=5, same=True), torch.tensor(2.0, device=DEVICE)
    want = [2, world(), 4 * world()]
    calls = {
        "all_reduce": lambda: OPS.scaled_matmul_all_reduce(a, b, ones[0], ones[1], "sum", name, None, None, wide),
        "with all": lambda: OPS.scaled_matmul_all_reduce(a, b, rows, columns, "avg", name, bias, scale, wide, True),
        "fp8": lambda: OPS.scaled_matmul_all_reduce(a, b, rows, columns, "sum", name),
        "scatter": lambda: OPS.scaled_matmul_reduce_scatter(
            a, b, rows, columns, "sum", 0, 0, name, None, out_dtype=torch.float32
        ),
        "a viewed product": lambda: OPS.scaled_matmul_reduce_scatter(
            a, b, rows, columns, "sum", 1, 0, name, want, out_dtype=wide
        ),
        "noted": lambda: OPS.scaled_matmul_reduce_scatter.noted(
            a, b, ones[2], ones[1], "sum", 0, 0, name, None, out_dtype=wide, graph="a graph"
        ),
        "gather": lambda: OPS.all_gather_scaled_matmul(
            a, [b], rows, [columns], 0, name, [bias], [scale], [wide], [True]
        ),
        "gather for two": lambda: OPS.all_gather_scaled_matmul(
            a, [b, c], rows, [columns, halves], 0, name, [None, None], [None, None], [wide, None], [True, False]
        ),
    }
    for what, call in calls.items():
        first = flat(call())
        with Counted(3, 0):
            for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
                with mode():
                    again = flat(call())
                    assert all(same_bytes(x, y) for x, y in zip(first, again, strict=True)), what
    out = torch.empty(2, 4 * world(), dtype=wide, device=DEVICE)
    whole, products = (
        a.new_empty(2 * world() ** 2, 16),
        [out.new_empty(2 * world() ** 2, one.shape[1]) for one in (b, c)],
    )
    scatter = (a, b, rows, columns, "sum", 0, 0, name, None, None, None, wide, False)
    gather = (a, [b, c], rows, [columns, halves], 0, name, [None, None], [None, None], [wide, wide], [True, False])
    wanted = [OPS.scaled_matmul_reduce_scatter(*scatter), *flat(OPS.all_gather_scaled_matmul(*gather))]
    for more in ({}, {"graph": "a graph"}):
        for counted in ((0, 2), (2, 0)):
            out.fill_(float("nan")), whole.view(torch.uint8).zero_(), [one.fill_(float("nan")) for one in products]
            with Counted(*counted):
                OPS.scaled_matmul_reduce_scatter(*scatter, out=out, **more)
                OPS.all_gather_scaled_matmul(*gather, gathered=whole, outs=products, **more)
            assert all(same_bytes(x, y) for x, y in zip([out, whole, *products], wanted, strict=True))
    fails_with(ValueError, lambda: OPS.scaled_matmul_reduce_scatter(*scatter, out=out.float()))
    fails_with(ValueError, lambda: OPS.all_gather_scaled_matmul(*gather, gathered=whole, outs=products[:1]))
    with Counted(0, 2):  # a bias of the kernel's own beside a given one; a tensor that stands twice
        OPS.all_gather_scaled_matmul(
            a, [b, c], ones[0], ones[1:], 0, name, [bias, None], [None, None], [wide, wide], [True, True]
        )
        OPS.scaled_matmul_all_reduce(a, b, ones[0], ones[0], "sum", name, None, None, wide)
    x = torch.full((2,), 0.5, device=DEVICE)
    for _ in range(2):  # two scales in one memory, and then not
        got = OPS.scaled_matmul_all_reduce(a, b, x[:1].view(()), x[:1].view(1, 1), "sum", name, None, None, wide)
        near(got, OPS.scaled_matmul_all_reduce(a, b, ones[0], ones[2], "sum", name, None, None, wide))
        got = OPS.scaled_matmul_all_reduce(a, b, x[:1].view(()), (4 * x[1:]).view(1, 1), "sum", name, None, None, wide)
        near(got, 4 * OPS.scaled_matmul_all_reduce(a, b, ones[0], ones[2], "sum", name, None, None, wide))


def flat(result):
    return [result] if isinstance(result, torch.Tensor) else [result[0], *result[1]]


def same_bytes(x, y):
    return x.dtype == y.dtype and torch.equal(x.view(torch.uint8), y.view(torch.uint8))


def whole_a(a, name):
    return reference.all_gather(a, 0, name)


@check
def test_ways_past_the_autograd_key(name):
    """A call without gradients goes past it; one with a gradient is recorded, with every way to give the arguments."""
    a, b, bias = rand(2 * world(), 6), rand(6, 4, seed=1, same=True), rand(4, seed=2, same=True)
    assert (
        not OPS.all_reduce(a, "sum", name).requires_grad
        and not OPS.all_gather_matmul(a, [b], 0, name)[1][0].requires_grad
    )
    a.requires_grad_(), bias.requires_grad_()
    with torch.no_grad():
        assert not OPS.all_reduce(a, "sum", name).requires_grad
    calls = {
        "all": lambda: OPS.matmul_all_reduce(a, b, "sum", name, bias),
        "by name": lambda: OPS.matmul_all_reduce(a, b, reduce_op="sum", group_name=name, bias=bias),
        "the overload": lambda: OPS.matmul_all_reduce.default(a, b, "sum", name, bias),
        "past Python": lambda: torch._C._jit_get_operation("tandem::matmul_all_reduce")[0](a, b, "sum", name, bias),
        "two": lambda: OPS.all_gather_matmul(a, [b], 0, name, [bias], return_A=False)[1][0],
        "two, and A": lambda: OPS.all_gather_matmul(a, [b], 0, name, [bias])[1][0],
    }
    wanted = None
    for what, call in calls.items():
        a.grad = bias.grad = None
        out = call()
        assert out.requires_grad, what
        out.backward(torch.ones_like(out))
        near(bias.grad, torch.full_like(bias, out.shape[0]))
        wanted = a.grad if wanted is None else wanted
        near(a.grad, wanted)
    whole, (product,) = OPS.all_gather_matmul(a, [b], 0, name)
    a.grad = None
    whole.sum().backward()  # of the gathered A alone
    near(a.grad, torch.full_like(a, world()))
    for wrong in (
        lambda: OPS.matmul_all_reduce(a, b, "sum"),
        lambda: OPS.matmul_all_reduce(a, b, "sum", name, bia=bias),
        lambda: OPS.matmul_all_reduce(a, b, "sum", name, B=b),
        lambda: OPS.all_gather_matmul(a, [b], 0),
    ):
        fails_with((TypeError, RuntimeError), wrong)
    fails_with(ValueError, lambda: OPS.all_reduce(a, "most", name))
    with torch.no_grad():
        fails_with(ValueError, lambda: OPS.all_reduce(a, "most", name))
    assert (2 * a).requires_grad, "a failed call has left the Autograd keys as they were"
    # A gradient of a gradient, and transforms, by the formula that the Autograd key has.
    x = rand(3).requires_grad_()
    (first,) = torch.autograd.grad((OPS.all_reduce(x * x, "sum", name)).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    near(second, torch.full_like(x, 2.0 * world()))
    from torch.utils._python_dispatch import TorchDispatchMode

    class Sees(TorchDispatchMode):
        seen = ()

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.seen = (*self.seen, str(function))
            return function(*args, **(kwargs or {}))

    with Sees() as mode:
        OPS.all_reduce(x, "sum", name)
    assert "tandem.all_reduce.default" in mode.seen, mode.seen


def fails_with(kinds, call):
    try:
        call()
    except kinds:
        return
    raise AssertionError(f"no {kinds}")


@check
def test_other_arguments_get_plans_of_their_own(name):
    x = rand(2 * world(), 4)
    for op in ("sum", "avg"):
        near(OPS.all_reduce(x, op, name), reference.all_reduce(x, op, name))
        near(OPS.all_reduce(x, op, name), reference.all_reduce(x, op, name))
    near(OPS.all_reduce(x.bfloat16(), "sum", name), reference.all_reduce(x.bfloat16(), "sum", name), torch.bfloat16)
    for part in (x[:, ::2], x[:, 1::2], x[:, :2].t().contiguous().t(), x[:, :1].expand(-1, 2)):
        for _ in range(2):
            near(OPS.all_reduce(part, "sum", name), reference.all_reduce(part, "sum", name))
    wide = torch.full((2 * world(), 4, 2), float("nan"), device=DEVICE)[:, :, 0]
    for _ in range(2):
        OPS.all_reduce.out(x, "sum", name, out=wide)
        near(wide.contiguous(), reference.all_reduce(x, "sum", name))


@check
def test_errors_are_the_same(name):
    x = rand(2 * world(), 4)
    for call, kind in (
        (lambda: OPS.all_reduce(x, "most", name), ValueError),
        (lambda: OPS.all_gather(x, 5, name), ValueError),
        (lambda: OPS.all_reduce.out(x, "sum", name, out=x[:1]), ValueError),
        (lambda: OPS.all_gather_matmul(x, [], 0, name), ValueError),
    ):
        for context in (torch.no_grad, torch.enable_grad):
            try:
                with context():
                    call()
                raise AssertionError("nothing was raised")
            except kind as error:
                assert str(error), kind
    near(OPS.all_reduce(x, "sum", name), reference.all_reduce(x, "sum", name))


def when_waiting(function, within):
    """Starts a thread that calls the function once this thread has been in a call of `within` for a while. The thread runs only if
    the call leaves Python's lock alone."""
    caller = threading.get_ident()

    def inside():
        frame = sys._current_frames()[caller]
        while frame is not None and frame.f_code.co_name != within:
            frame = frame.f_back
        return frame is not None

    def watch():
        seen = 0
        while seen < 10:
            time.sleep(0.005)
            seen = seen + 1 if inside() else 0
        function()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def held_up(name, topic, within, run):
    """`run` on rank 0 while rank 1 does not come before rank 0's other thread has seen it wait in `within`."""
    if rank() == 0:
        thread = when_waiting(lambda: store().set(topic, ""), within)
        run()
        thread.join(PATIENCE)
        assert not thread.is_alive()
    else:
        if rank() == 1:
            store().wait([topic], timedelta(seconds=PATIENCE))
        run()


@check
def test_a_wait_leaves_pythons_lock_alone(name):
    x = rand(8, 4)
    want = reference.all_reduce(x, "sum", name)
    OPS.all_reduce(x, "sum", name)
    torch.cuda.synchronize() if DEVICE == "cuda" else None

    def run():
        with Counted(1, 0):
            got = OPS.all_reduce(x, "sum", name)
            tandem.torch.synchronize()
        near(got, want)

    held_up(name, "lock", "run", run)


@check
def test_a_long_wait_goes_on_in_python(name):
    if DEVICE == "cuda":  # a call does not wait
        return
    x = rand(8, 4)
    want = reference.all_reduce(x, "sum", name)
    OPS.all_reduce(x, "sum", name)

    def run():
        with Counted(1, 0):
            near(OPS.all_reduce(x, "sum", name), want)

    held_up(name, "long", "wait_on", run)


@check
def test_an_interrupt_ends_a_wait(name):
    if DEVICE == "cuda":
        return
    x = rand(8, 4)
    OPS.all_reduce(x, "sum", name)
    if rank() == 0:
        # A shell starts its background jobs with interrupts ignored.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        thread = when_waiting(_thread.interrupt_main, "wait_on")
        try:
            OPS.all_reduce(x, "sum", name)
            raise AssertionError("the wait was not interrupted")
        except KeyboardInterrupt:
            thread.join(PATIENCE)
        finally:
            signal.signal(signal.SIGINT, before)
        store().set("interrupted", "")
    else:
        store().wait(["interrupted"], timedelta(seconds=PATIENCE))
        OPS.all_reduce(x, "sum", name)
    near(OPS.all_reduce(x, "sum", name), reference.all_reduce(x, "sum", name))


@check
def test_the_least_recently_used_plan_goes_first(name):
    tandem.torch.detach(name)
    before = tandem.torch.configure()
    tandem.torch.configure(max_plans=2, families="none")
    try:
        first, second, third = rand(4), rand(5), rand(6)
        for x in (first, second):
            OPS.all_reduce(x, "sum", name)
        with Counted(1, 0):
            OPS.all_reduce(first, "sum", name)  # without Python
        OPS.all_reduce(third, "sum", name)
        assert [info["slot_bytes"][0] for info in tandem.torch.attach(name).plans.infos()] == [16, 24]
        with Counted(2, 0):
            OPS.all_reduce(first, "sum", name)
            OPS.all_reduce(third, "sum", name)
        with Counted(0, 1):
            near(OPS.all_reduce(second, "sum", name), reference.all_reduce(second, "sum", name))
    finally:
        tandem.torch.configure(max_plans=512, families=before.families)
        tandem.torch.detach(name)


@check
def test_a_destroyed_group_is_served_no_more(name):
    group = dist.new_group()
    x = rand(4)
    for _ in range(2):
        OPS.all_reduce(x, "sum", group.group_name)
    held = group  # the object outlives the group
    dist.destroy_process_group(group)
    with Counted(0, 1):
        try:
            OPS.all_reduce(x, "sum", held.group_name)
            raise AssertionError("a plan of a destroyed group was launched")
        except (RuntimeError, ValueError) as error:
            assert held.group_name in str(error), error
    tandem.torch.detach(held.group_name)


@check
def test_threads_share_the_table(name):
    """Of one rank: each thread calls in an order of its own, and nobody waits for another rank."""
    alone = dist.new_group([0], use_local_synchronization=False)
    if rank() != 0:
        return
    one, failures = alone.group_name, []
    tensors = [rand(rows, 8, seed=rows) for rows in range(1, 9)]
    for x in tensors[:4]:
        OPS.all_reduce(x, "sum", one)

    def work(number):
        try:
            for turn in range(60):
                x = tensors[(number + turn) % len(tensors)]
                assert torch.equal(OPS.all_reduce(x, "sum", one), x)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not failures and not any(thread.is_alive() for thread in threads), failures


@check
def test_calls_leave_no_memory_behind(name):
    x, a, b = rand(8, 64), rand(2 * world(), 64), rand(64, 64)

    def calls(count):
        for _ in range(count):
            OPS.all_reduce(x, "sum", name)
            OPS.all_gather_matmul(a, [b, b], 0, name)
            OPS.matmul_reduce_scatter(a, b, "sum", 0, name)

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    calls(100)
    before = resident()
    calls(400)
    # A result that stays would be 40 KB a round.
    assert resident() - before < 4 << 20, f"{resident() - before} bytes more"


@check
def test_calls_let_go_of_their_tensors(name):
    a, bs, bias = rand(2 * world(), 8), [rand(8, 6), rand(8, 6)], [rand(6), rand(6)]
    given = [a, *bs, *bias]
    before = [tensor._use_count() for tensor in given]
    for _ in range(3):
        whole, products = OPS.all_gather_matmul(a, bs, 0, name, bias)
        assert [tensor._use_count() for tensor in (whole, *products)] == [1, 1, 1]
        OPS.matmul_reduce_scatter(a, bs[0], "sum", 0, name, bias[0])
        assert [tensor._use_count() for tensor in given] == before


if __name__ == "__main__":
    main()

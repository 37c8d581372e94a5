"""A rank of test_preview.py. Rank 0 asks for previews while rank 1 stands still, and then both prepare the same requests."""

import json
import os
import sys
import traceback

import tandem

RANK, WORLD = int(sys.argv[1]), int(sys.argv[2])
KEY = "0123456789abcdef-preview"
PATIENCE = 120
# Of one plan, or of what the group has beside it.
OWN = ("plan_id", "key", "group_workspace_bytes", "unshared_workspace_bytes")


def operand(role, *shape, strides=None):
    return tandem.Operand(role, "f32", shape, strides=strides)


def both(*shape):
    return [operand("input", *shape), operand("output", *shape)]


PRODUCT = [operand("a", 64, 32), operand("b", 32, 48), operand("c", 64, 48)]
REQUESTS = [
    ("all_reduce", both(16), {}),
    ("all_reduce", both(1 << 18), {}),
    ("all_reduce", both(1 << 18), {"placement": "client"}),
    ("all_reduce", both(1024), {"algorithm": "copy_engine"}),
    ("all_reduce", both(1024), {"determinism": "batch", "placement": "client"}),
    ("all_reduce", both(256, 8), {"max_rows": 256, "placement": "client"}),
    ("reduce_scatter", [operand("input", 64 * WORLD), operand("output", 64)], {"restartable": True}),
    ("matmul_all_reduce", PRODUCT, {}),
    ("all_gather_matmul", [operand("a", 32, 32), *PRODUCT[1:]], {"algorithm": "ring", "steps": WORLD}),
    ("matmul_all_reduce", PRODUCT, {"algorithm": "unfused", "on_unfused": "allow", "placement": "engine"}),
    ("barrier", [], {}),
]
REFUSED = [
    ("all_reduce", both(16), {"algorithm": "ring"}),
    ("all_reduce", both(16), {"max_rows": 3, "placement": "engine"}),
    ("all_reduce", [operand("input", 16), operand("output", 17)], {}),
]


def outcome(call):
    try:
        return call(), None
    except tandem.TandemError as error:
        return None, (type(error).__name__, error.reason, error.field)


def main():
    client = tandem.connect()
    group = client.join("tp", world_size=WORLD, rank=RANK, job_key=KEY, deadline=PATIENCE)
    print("joined", flush=True)
    sys.stdin.readline()
    previews, usage = [], client.used_memory()
    if RANK == 0:
        previews = [group.preview(op, operands, **options) for op, operands, options in REQUESTS]
        refusals = [outcome(lambda: group.preview(op, operands, **options))[1] for op, operands, options in REFUSED]
        assert all(refusals), refusals
        sends = {"transfers": [tandem.Transfer(True, 1, 0), tandem.Transfer(False, 1, 1)]}
        _, error = outcome(lambda: group.preview("send_receive", both(16), **sends))
        assert error == ("InvalidArgument", "BAD_FIELD", "op"), error
        assert client.used_memory() == usage
        print(json.dumps(previews), flush=True)
    sys.stdin.readline()
    for number, (op, operands, options) in enumerate(REQUESTS):
        with group.prepare(f"plan {number}", op, operands, deadline=PATIENCE, **options) as plan:
            if RANK == 0:
                made = {**plan.info, **{name: previews[number][name] for name in OWN}}
                assert made == previews[number], (made, previews[number])
                assert previews[number]["plan_id"] == 0 and previews[number]["key"] == ""
    for number, (op, operands, options) in enumerate(REFUSED):
        _, error = outcome(lambda: group.prepare(f"refused {number}", op, operands, deadline=PATIENCE, **options))
        assert RANK != 0 or error == refusals[number], (error, refusals[number])
    group.leave(PATIENCE)
    client.close()


try:
    main()
except BaseException:  # at once: the other rank would be waited for
    traceback.print_exc()
    os._exit(1)

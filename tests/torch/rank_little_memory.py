"""A rank whose node has a quota of memory that some families' workspace exceeds."""

import tandem.torch
from checks import check, configured, main
from reference_ops import OPS, near, rand, reference


@check
def test_a_family_beyond_the_quota_leaves_plans_of_one_shape(name):
    b = rand(8, 1 << 16, seed=1)
    with configured(name, placement="client"):
        plans = tandem.torch.attach(name).plans
        for rows in (3, 5, 3):
            a = rand(rows, 8)
            near(OPS.matmul_all_reduce(a, b, "sum", name), reference.all_reduce(a @ b, "sum", name))
            near(OPS.all_reduce(a, "sum", name), reference.all_reduce(a, "sum", name))
        bounds = sorted({info["plan_id"]: info["max_rows"] for info in plans.infos()}.values())
        assert bounds == [0, 0, 256], bounds


if __name__ == "__main__":
    main()

"""A rank that compiles functions with torch.ops.tandem in them."""

import torch
from checks import check, main
from reference_ops import OPS, near, rand, same_gradients, world


@check
def test_compiled(name):
    a, b, c = rand(2 * world(), 6), rand(6, 4, seed=1), rand(4, 6, seed=2)

    def block(a, b, c):
        _, (hidden,) = OPS.all_gather_matmul(a, [b], 0, name, return_A=False)
        return [OPS.matmul_reduce_scatter(torch.nn.functional.silu(hidden), c, "sum", 0, name)]

    compiled = torch.compile(block, fullgraph=True)
    same_gradients(lambda *given: compiled(*given), lambda *given: block(*given), a, b, c)
    # Dynamic rows, through one graph.
    longer = rand(4 * world(), 6)
    near(compiled(longer, b, c)[0], block(longer, b, c)[0])


if __name__ == "__main__":
    main()

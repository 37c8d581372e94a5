"""Prints JSON lines of the benchmarks as short tables: table.py FILE.jsonl …"""

import json
import sys

import stats

RIVALS = {
    "matmul": ("nccl+cublas", "windows+cublas", "pytorch fused"),
    "composition": ("cublas+pytorch two-shot", "pytorch fused rs+ag"),  # for what no rival has fused
    "collective": (
        "nccl",
        "windows",
        "pytorch one-shot",
        "pytorch two-shot",
        "nccl+torch norm",
        "windows+torch norm",
        "flashinfer one-shot",
        "flashinfer two-shot",
        "flashinfer vllm",
    ),
}


def ratio_line(result, ours, rivals):
    """Tandem's arm against the best of these rivals, and how long its kernels alone take; None without a figure."""
    arms = result["arms"]
    graphs = [arm for arm in arms if stats.family(arm) in rivals]
    if not graphs:
        return None
    rival = min(graphs, key=lambda name: arms[name]["us"])
    for ratio in result["ratios"]:
        if ratio["of"] == ours and ratio["to"] == rival and ratio["median"] is not None:
            kernel = arms[ours].get("kernel_us")
            alone = (
                f"; kernel {kernel:.1f} µs by {arms[ours]['kernel_by']}, {kernel / arms[rival]['us']:.3f}"
                if kernel
                else ""
            )
            return (
                f"{ours} / {rival}: {ratio['median']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}], "
                f"{ratio['rounds']} rounds, {ratio['dropped']} dropped{alone}"
            )
    return None


def error_line(arms):
    """The errors against float64 of the arms of Tandem that are further off than NCCL + cuBLAS; None if none is."""
    rival = arms.get("nccl+cublas", {}).get("error_fp64")
    above = [
        f"{name} {arm['error_fp64']:.3g}"
        for name, arm in arms.items()
        if rival is not None and name.startswith("tandem") and arm.get("error_fp64", 0) > rival
    ]
    return f"error against float64: nccl+cublas {rival:.3g}, above it {', '.join(above)}" if above else None


def peers_table(results):
    """One line a case: the rivals' medians, then Tandem's best arm and its ratio to the best rival and the best composition."""
    for result in results:
        arms = result["arms"]
        kinds = ("matmul", "composition") if "gemm" in arms or "nccl+cublas" in arms else ("collective",)
        shown = ("gemm", "gemm beside copies", *(rival for kind in kinds for rival in RIVALS[kind]), "bare pushes")
        listed = sorted(
            (arm for arm in arms if stats.family(arm) in shown), key=lambda arm: shown.index(stats.family(arm))
        )
        cells = [f"{name.replace('pytorch ', 'torch ')} {arms[name]['us']:.1f}" for name in listed]
        ours = {name: arm["us"] for name, arm in arms.items() if name.startswith("tandem")}
        print(f"W={result['world']} {result['case']:36} " + "  ".join(cells))
        if ours:
            print(
                " " * 10 + "  ".join(f"{name} {us:.1f}" for name, us in sorted(ours.items(), key=lambda item: item[1]))
            )
            best = min(ours, key=ours.get)
            lines = [ratio_line(result, best, RIVALS[kind]) for kind in kinds] + [error_line(arms)]
            for line in filter(None, lines):
                print(f"{'':10}{line}")
        for name, problem in result["failed"].items():
            print(f"{'':10}{name}: {problem[:150]}")


def backend_table(results):
    print(f"{'figure':88} {'Tandem µs':>10} {'bare µs':>10} {'ratio':>7}  p10 … p90")
    for r in results:
        print(
            f"{r['name']:88} {r['tandem_us']:10.2f} {r['bare_us']:10.2f} {r['ratio']:7.3f}  "
            f"{r['ratio_p10']:.3f} … {r['ratio_p90']:.3f}"
        )


def collectives_table(results):
    """One line a size: the median of each arm, in µs, an arm's rivals behind it."""
    lines = {}
    for r in results:
        lines.setdefault((r["gpus"], r["op"], r["bytes"]), []).append(f"{r['arm']} {r['us']:.2f}")
    for (world, op, size), arms in lines.items():
        print(f"W={world} {op:16} {size:9} B  " + "  ".join(arms))


def figures_table(results):
    for r in results:
        print(f"{r['name']:88} {r['value']:10.2f} {r['unit']}")


def other_table(results):
    """Lines without figures: why a rival was not there, say."""
    for r in results:
        print(json.dumps(r))


def kind_of(result):
    if result.get("benchmark") == "peers":
        return "peers"
    for keys, kind in (({"tandem_us"}, "backend"), ({"arm", "gpus"}, "collectives"), ({"value"}, "figures")):
        if keys <= result.keys():
            return kind
    return "other"


def main():
    found = {"peers": [], "backend": [], "collectives": [], "figures": [], "other": []}
    for path in sys.argv[1:]:
        try:
            with open(path) as lines:
                results = [json.loads(line) for line in lines if line.startswith("{")]
        except OSError:
            continue
        for result in results:
            found[kind_of(result)].append(result)
    for kind, table in (
        ("backend", backend_table),
        ("collectives", collectives_table),
        ("figures", figures_table),
        ("peers", peers_table),
        ("other", other_table),
    ):
        if found[kind]:
            table(found[kind])


if __name__ == "__main__":
    main()

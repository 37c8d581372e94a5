"""Combines tuning tables of several sittings: combine.py [--ship] OUT TABLE…

Which of two algorithms is faster by a percent changes from sitting to sitting. An entry of the result has the candidates that every
table with this entry has measured, with the means of their figures over these tables and all their samples; what was refused,
when, and by which version is the last table's. No GPU, no torch.

--ship keeps at most three candidates an entry: the fastest of each kind. So an entry still decides
where a request or a configuration rules a kind out. Algorithms that run on request only are left out."""

import re
import sys

import tomllib

HEAD = "# Measured times of algorithms: docs/algorithms.md. Written by tandemd; `tandemctl tuning` shows it.\n"
KEY = ("gpu", "topology_class", "world_size", "op", "types", "scales", "traits", "shape")
FIGURES = ("median_us", "p10_us", "p90_us")
MOST_SHIPPED = 3
ON_REQUEST = ("ring", "tiled_two_shot")
ONE_AFTER_THE_OTHER = ("unfused", "low_latency", "nccl")


def key_of(entry):
    return tuple(str(entry.get(part)) for part in KEY)


def name_of(candidate):
    return candidate["algorithm"], candidate.get("steps", 0), candidate.get("lanes", 0)


def combined(entries):
    """One entry of several with the same key, the latest last."""
    found = {}
    for entry in entries:
        for candidate in entry["candidates"]:
            if "refused" not in candidate:
                found.setdefault(name_of(candidate), []).append(candidate)
    means = []
    for same in found.values():
        if len(same) == len(entries):
            figures = {figure: sum(one[figure] for one in same) / len(same) for figure in FIGURES}
            means.append({**same[-1], **figures, "samples": sum(one["samples"] for one in same)})
    refused = [candidate for candidate in entries[-1]["candidates"] if "refused" in candidate]
    return {**entries[-1], "candidates": sorted(means, key=lambda one: one["median_us"]) + refused}


def value_text(value):
    if isinstance(value, str):
        return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def entry_text(entry):
    lines = [f"{part} = {value_text(value)}" for part, value in entry.items() if part != "candidates"]
    lines += ["candidates = ["]
    lines += [
        "  { " + ", ".join(f"{part} = {value_text(value)}" for part, value in candidate.items()) + " },"
        for candidate in entry["candidates"]
    ]
    return "\n".join(["[[entry]]", *lines, "]\n"])


def kind_of(op, algorithm):
    """Algorithms of a kind replace each other: of a product and its collective one after the other, one is enough."""
    return ONE_AFTER_THE_OTHER[0] if "matmul" in op and algorithm in ONE_AFTER_THE_OTHER else algorithm


def to_ship(entry):
    """The entry with the fastest candidates of the MOST_SHIPPED fastest kinds."""
    kept = {}
    for candidate in entry["candidates"]:
        if "refused" not in candidate and candidate["algorithm"] not in ON_REQUEST:
            kept.setdefault(kind_of(entry["op"], candidate["algorithm"]), candidate)
    return {**entry, "candidates": list(kept.values())[:MOST_SHIPPED]}


def combine(texts, ship=False):
    """The combined table's text, of tables' texts from the oldest to the latest. `ship`: as a table that ships."""
    same = {}
    for text in texts:
        for entry in tomllib.loads(text)["entry"]:
            same.setdefault(key_of(entry), []).append(entry)
    entries = [combined(one) for one in same.values()]
    return "\n".join([HEAD + "format = 1\n", *(entry_text(to_ship(entry) if ship else entry) for entry in entries)])


def main(*arguments):
    ship = arguments[:1] == ("--ship",)
    out, *tables = arguments[1:] if ship else arguments
    texts = []
    for table in tables:
        with open(table) as file:
            texts.append(file.read())
    with open(out, "w") as file:
        file.write(combine(texts, ship))


if __name__ == "__main__":
    main(*sys.argv[1:])

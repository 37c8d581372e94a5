"""Combines tuning tables of several sittings: combine.py OUT TABLE…

Which of two algorithms is faster by a percent changes from sitting to sitting. An entry of the result has the candidates that every
table with this entry has measured, with the means of their figures over these tables and all their samples; what was refused, when, and by
which version is the last table's. No GPU, no torch."""

import re
import sys

import tomllib

HEAD = "# Measured times of algorithms: docs/algorithms.md. Written by tandemd; `tandemctl tuning` shows it.\n"
KEY = ("gpu", "topology_class", "world_size", "op", "types", "scales", "traits", "shape")
FIGURES = ("median_us", "p10_us", "p90_us")


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


def combine(texts):
    """The combined table's text, of tables' texts from the oldest to the latest."""
    same = {}
    for text in texts:
        for entry in tomllib.loads(text)["entry"]:
            same.setdefault(key_of(entry), []).append(entry)
    return "\n".join([HEAD + "format = 1\n", *(entry_text(combined(entries)) for entries in same.values())])


def main(out, *tables):
    texts = []
    for table in tables:
        with open(table) as file:
            texts.append(file.read())
    with open(out, "w") as file:
        file.write(combine(texts))


if __name__ == "__main__":
    main(*sys.argv[1:])

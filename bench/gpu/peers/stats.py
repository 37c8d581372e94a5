"""What is made of rounds: medians, ratios with an interval, and rounds that the clocks spoil. No GPU, no torch."""

import random
import re

CLOCK_TOLERANCE = 0.02
RESAMPLES = 1000


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def slowest(per_rank):
    """[rank][round] -> [round]: a round's time is the slowest rank's."""
    return [max(times) for times in zip(*per_rank)]


def clocks_agree(one, other):
    """Whether two arms ran at the same clocks in a round: [rank] MHz each, None where nothing was read."""
    pairs = [(a, b) for a, b in zip(one, other) if a and b]
    return all(abs(a - b) <= CLOCK_TOLERANCE * min(a, b) for a, b in pairs)


def ratio(ours, theirs, our_clocks=None, their_clocks=None, seed=1):
    """The median of per-round ratios ours/theirs and its 95 % interval (bootstrap over rounds). Clocks are [round][rank];
    rounds in which they differ by more than CLOCK_TOLERANCE are dropped and counted. None if no round is left."""
    rounds = range(min(len(ours), len(theirs)))
    if our_clocks and their_clocks:
        kept = [i for i in rounds if clocks_agree(our_clocks[i], their_clocks[i])]
    else:
        kept = list(rounds)
    dropped = len(rounds) - len(kept)
    ratios = [ours[i] / theirs[i] for i in kept]
    if not ratios:
        return {"median": None, "low": None, "high": None, "rounds": 0, "dropped": dropped}
    source = random.Random(seed)
    medians = [median(source.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES)]
    return {
        "median": round(median(ratios), 4),
        "low": round(quantile(medians, 0.025), 4),
        "high": round(quantile(medians, 0.975), 4),
        "rounds": len(ratios),
        "dropped": dropped,
    }


def summary(times):
    return {
        "us": round(median(times), 2),
        "p10": round(quantile(times, 0.1), 2),
        "p90": round(quantile(times, 0.9), 2),
        "rounds": len(times),
    }


def relative_norm(per_rank):
    """The relative Frobenius norm of an error: [rank] (squares of the errors, squares of the values), summed; None where a
    rank has none."""
    if not per_rank or None in per_rank:
        return None
    errors, values = (sum(column) for column in zip(*per_rank))
    return float(f"{(errors / values) ** 0.5:.3g}") if values else None


def family(arm):
    """An arm's name without the version of the library: "windows" of "windows 2.32.3", "windows+torch norm" of that one's."""
    return re.sub(r" \d+\.\d+\.\d+\b", "", arm)

"""The GPU time of Tandem's launches, as the daemon's trace has it. No GPU, no torch.

An engine times few launches of a plan by events, all others by its clock: kTimeEvery and kTimeStepsEvery of
engine/launch/launch_start.cc say which. Launches whose steps are timed too take much longer, and are left out."""

import stats

TIMED_EVERY, STEPS_EVERY = 32, 1024
SAMPLES = 5  # launches timed by events that a figure should be made of
FEWEST_SAMPLES = 3  # with fewer it is made of the others
MOST_SECONDS = 0.5  # for launches behind the measured rounds, an arm


def has_timed_steps(launch):
    return launch & (launch - 1) == 0 or launch % STEPS_EVERY == 0


def is_timed(launch):
    """Whether a plan's launch of that number, from 1, is timed by events as a whole and not by its steps."""
    return launch % TIMED_EVERY == 0 and not has_timed_steps(launch)


def more_calls(done, us):
    """How many launches of `us` microseconds it takes, beyond `done`, until SAMPLES have been timed by events; 0 if that is
    more than MOST_SECONDS' worth."""
    launch, wanted = 0, SAMPLES
    while wanted:
        launch += TIMED_EVERY
        wanted -= is_timed(launch)
    more = max(0, launch - done)
    return more if more * us <= MOST_SECONDS * 1e6 else 0


def by_plan(events, world):
    """{plan: {launch: µs}} of the slices of a Chrome trace: of launches that all `world` ranks have made, the slowest rank's."""
    found = {}
    for event in events:
        if event.get("cat") == "launch":
            launches = found.setdefault(event["args"]["plan"], {})
            launches.setdefault(event["args"]["launch"], {})[event["pid"]] = event["dur"]
    return {
        plan: {launch: max(gpus.values()) for launch, gpus in launches.items() if len(gpus) == world}
        for plan, launches in found.items()
    }


def figures(launches, after):
    """A result's figures of a plan's {launch: µs}, without launches up to number `after`. Empty where nothing ran on lanes."""
    timed = [us for launch, us in launches.items() if launch > after and is_timed(launch)]
    clock = [
        us for launch, us in launches.items() if launch > after and not is_timed(launch) and not has_timed_steps(launch)
    ]
    by, chosen = ("events", timed) if len(timed) >= FEWEST_SAMPLES else ("clock", clock)
    if not chosen or stats.median(chosen) <= 0:
        return {}
    found = {"kernel_us": round(stats.median(chosen), 2), "kernel_by": by, "kernel_launches": len(chosen)}
    if clock:
        found["kernel_clock_us"] = round(stats.median(clock), 2)
    return found

"""The result in a job's log: how much passed, failed and was skipped, and which it was."""

import json
import re
from dataclasses import dataclass, field

LISTED = 40


@dataclass
class Verdict:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list = field(default_factory=list)  # a line each
    cut_short: str = ""  # "5 of 60 cases": its own limit ended it there, and what ran was right


def of_gtest(log, _summary):
    failures = re.findall(r"^\[  FAILED  \] (.+?) \(\d+ ms\)$", log, re.M)
    begun = re.findall(r"^\[ RUN      \] (.+)$", log, re.M)
    passed = len(re.findall(r"^\[       OK \]", log, re.M))
    skipped = len(re.findall(r"^\[  SKIPPED \] .+ \(\d+ ms\)$", log, re.M))
    if len(begun) > passed + skipped + len(failures):  # it ended in the middle
        failures.append(f"{begun[-1]} (did not end)")
    return Verdict(passed, len(failures), skipped, failures)


def of_unittest(log, _summary):
    # "test_x (module.Class.test_x) ... ok": what a test prints stands between.
    names = re.findall(r"^\w+ \(([\w.]+)\)(?:\n.*)? \.\.\.", log, re.M)
    ended = re.findall(r"^(?:FAIL|ERROR): .*?\(([\w.]+)\)", log, re.M)
    failures = list(dict.fromkeys(ended))
    ran = re.search(r"^Ran (\d+) tests? in", log, re.M)
    skipped = re.search(r"^(?:OK|FAILED) \(.*skipped=(\d+)", log, re.M)
    skipped = int(skipped.group(1)) if skipped else 0
    if ran is None:  # cut short: no summary
        said = re.findall(r"^--- ([\w.]+)$", log, re.M)
        failures = [name for name in dict.fromkeys(said) if name in names]
        if names and names[-1] not in failures:
            failures.append(f"{names[-1]} (did not end)")
        return Verdict(max(0, len(names) - len(failures)), len(failures), 0, failures)
    return Verdict(max(0, int(ran.group(1)) - len(failures) - skipped), len(failures), skipped, failures)


def of_conformance(log, summary):
    """By the suite's own summary; without one, by its lines."""
    if summary:
        failures = [
            f"W{one['world']} {one.get('case', '')}: {one.get('code', one.get('message', ''))}"
            + (f", {one['first_wrong']}" if one.get("first_wrong") else "")
            for one in summary["failures"]
        ]
        # A failure outside a case (no daemon, say) is counted as wrong, not as run.
        passed = max(0, summary["run"] - summary["refused"] - summary["wrong"])
        cut = f"{summary['run']} of {summary['drawn']} cases" if summary.get("cut_short") else ""
        return Verdict(passed, summary["wrong"], summary["refused"], failures, cut)
    failures = re.findall(r"^(?:not ok \d+ - |Bail out! )(.+)$", log, re.M)
    return Verdict(len(re.findall(r"^ok \d+", log, re.M)), len(failures), 0, failures)


def of_digits(log, _summary):
    """The checks of tandem-train-digits, of all its runs."""
    failures = re.findall(r"^  FAILED  (.+)$", log, re.M)
    return Verdict(len(re.findall(r"^  ok      ", log, re.M)), len(failures), 0, failures)


READERS = {"gtest": of_gtest, "unittest": of_unittest, "conformance": of_conformance, "digits": of_digits}


def read(kind, log_path, code, timed_out, summary_path=None):
    """The verdict of a job that ended with `code`; one that ended badly has a failure, also against its log."""
    try:
        with open(log_path, errors="replace") as file:
            log = file.read()
    except OSError:
        log = ""
    summary = None
    if summary_path:
        try:
            with open(summary_path) as file:
                summary = json.load(file)
        except (OSError, ValueError):
            pass
    verdict = READERS[kind](log, summary) if kind in READERS else Verdict(passed=int(code == 0))
    if code != 0 and not verdict.failures:
        last = [line for line in log.splitlines() if line.strip()][-1:]
        verdict.failures = ["ended by its limit" if timed_out else f"exit {code}: {''.join(last)[:160]}"]
        verdict.failed = max(verdict.failed, 1)
    verdict.failures = verdict.failures[:LISTED]
    return verdict

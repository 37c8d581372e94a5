"""The subjects of the last commits: at most 72 columns, no period at the end, something to read.

Merges are exempt. A shallow clone has fewer commits, and a source without git's history has none."""

import os
import subprocess
import tempfile
import unittest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
MOST_COLUMNS, LAST = 72, 60


def git(root, *arguments):
    """The command's output; None where it fails, or git is not there."""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, errors="replace")
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def subjects(root, most=LAST):
    """The subjects of the last commits that are no merges; None without a history.

    The oldest commit of a shallow clone has lost its parents, so it may be a merge: it is left out."""
    log = git(root, "log", "--no-merges", f"--max-count={most}", "--format=%H %s")
    if log is None:
        return None
    cut = set()
    boundary = os.path.join(root, git(root, "rev-parse", "--git-path", "shallow").strip())
    if os.path.isfile(boundary):
        with open(boundary) as file:
            cut = set(file.read().split())
    commits = [line.partition(" ") for line in log.splitlines()]
    return [subject for commit, _, subject in commits if commit not in cut]


def fault(subject):
    """Why the subject breaks the rule; empty if it does not."""
    if not subject.strip():
        return "is empty"
    if len(subject) > MOST_COLUMNS:
        return f"has {len(subject)} columns"
    return "ends with a period" if subject.endswith(".") else ""


def faults(found):
    return [f"{subject!r} {why}" for subject in found if (why := fault(subject))]


class Commits(unittest.TestCase):
    def test_subjects_keep_the_rule(self):
        found = subjects(ROOT)
        if found is None:
            self.skipTest("no git history here")
        self.assertEqual(faults(found), [])

    def test_a_planted_one_is_found(self):
        self.assertEqual(fault("Name the thing first"), "")
        self.assertEqual(fault("x" * 72), "")
        self.assertEqual(fault("x" * 73), "has 73 columns")
        self.assertEqual(fault("Name the thing first."), "ends with a period")
        self.assertEqual(fault(""), "is empty")

    def test_histories_of_all_kinds(self):
        def commit(root, *arguments):
            author = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
            self.assertIsNotNone(git(root, *author, *arguments), arguments)

        with tempfile.TemporaryDirectory() as root:
            self.assertIsNone(subjects(root), "no history")
            commit(root, "init", "-q", "-b", "main", ".")
            self.assertIsNone(subjects(root), "no commit")
            commit(root, "commit", "-q", "--allow-empty", "-m", "Begin")
            commit(root, "checkout", "-q", "-b", "side")
            commit(root, "commit", "-q", "--allow-empty", "-m", "Add a side")
            commit(root, "checkout", "-q", "main")
            commit(root, "commit", "-q", "--allow-empty", "-m", "Add a bad subject.")
            commit(root, "merge", "-q", "--no-ff", "-m", f"Merge what others wrote{'!' * 72}", "side")
            self.assertEqual(sorted(subjects(root)), ["Add a bad subject.", "Add a side", "Begin"])
            self.assertEqual(faults(subjects(root)), ["'Add a bad subject.' ends with a period"])
            with tempfile.TemporaryDirectory() as shallow:
                commit(shallow, "clone", "-q", "--depth=2", f"file://{root}", "clone")
                self.assertEqual(len(subjects(root)), 3)
                clone = os.path.join(shallow, "clone")
                commit(clone, "commit", "-q", "--allow-empty", "-m", "Add to the clone")
                self.assertEqual(subjects(clone), ["Add to the clone"])


if __name__ == "__main__":
    unittest.main()

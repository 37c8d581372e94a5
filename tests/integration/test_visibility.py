"""Visibility of sessions on the clients' socket: two users, root, and the members of a group."""

import json
import os
import subprocess
import tempfile
import unittest

from harness import BIN, Client, Daemon, TandemTest, host_only

OWN, OTHER = 65533, 65534  # users


@host_only("users without GPUs")
@unittest.skipUnless(os.getuid() == 0, "only root may be other users")
class Visibility(TandemTest):
    gpus = 2

    def start(self, *extra):
        daemon = Daemon(2, ("--socket-group", str(os.getgid()), *extra))
        self.addCleanup(daemon.stop)
        os.chmod(daemon.runtime_dir, 0o755)
        for user in (OWN, OTHER):
            client = Client(daemon, f"of-{user}", user=user)
            client.connect()
            client.call("join", world=1, rank=0, name=f"group-{user}", job_key=self.job_key)
            self.all_reduce_plan([client], group=f"group-{user}")
            self.check_all_reduce([client])
        return daemon

    def ask(self, daemon, user, *command, groups=(), check=True):
        """tandemctl's answer to a user whose groups are the socket's and `groups`."""
        done = subprocess.run(
            [os.path.join(BIN, "tandemctl"), "--runtime-dir", daemon.runtime_dir, *command, "--json"],
            capture_output=True,
            text=True,
            user=user,
            group=os.getgid(),
            extra_groups=list(groups),
            timeout=60,
        )
        if check:
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)
        return done

    def uids(self, daemon, user, **arguments):
        return sorted(session["uid"] for session in self.ask(daemon, user, "sessions", **arguments)["sessions"])

    def test_a_user_sees_its_own_and_a_count_of_the_others(self):
        daemon = self.start()
        self.assertEqual(self.uids(daemon, 0), [OWN, OTHER])
        self.assertEqual(self.uids(daemon, OWN), [OWN])
        self.assertEqual(int(self.ask(daemon, OWN, "sessions")["hidden"]), 1)
        groups = self.ask(daemon, OWN, "groups")
        self.assertEqual([group["name"] for group in groups["groups"]], [f"group-{OWN}"])
        self.assertEqual(int(groups["hidden"]), 1)
        plans = self.ask(daemon, OWN, "plans")
        self.assertEqual([plan["group_name"] for plan in plans["plans"]], [f"group-{OWN}"])
        all_plans = self.ask(daemon, 0, "plans")["plans"]
        (foreign,) = [plan["info"]["plan_id"] for plan in all_plans if plan["group_name"] == f"group-{OTHER}"]
        refused = self.ask(daemon, OWN, "plans", str(foreign), check=False)
        self.assertIn("there is no plan", refused.stderr)
        for command in ("stats", "doctor", "queue", "pools"):
            self.assertNotIn(f"group-{OTHER}", json.dumps(self.ask(daemon, OWN, command)), command)
        self.assertEqual(int(self.ask(daemon, OWN, "stats")["sessions"]), 2)
        self.assertIn("(and 1 sessions of other users)", self.text(daemon, OWN, "sessions"))
        with tempfile.NamedTemporaryFile("r") as file:
            os.chmod(file.name, 0o666)
            self.text(daemon, OWN, "trace", "-o", file.name)
            trace = file.read()
        self.assertIn(f"group-{OWN}", trace)
        self.assertNotIn(f"group-{OTHER}", trace)

    def text(self, daemon, user, *command):
        done = subprocess.run(
            [os.path.join(BIN, "tandemctl"), "--runtime-dir", daemon.runtime_dir, *command],
            capture_output=True,
            text=True,
            user=user,
            group=os.getgid(),
            extra_groups=[],
            timeout=60,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_members_of_a_group_see_all(self):
        daemon = self.start("--show-sessions-group", "4243")
        self.assertEqual(self.uids(daemon, OWN, groups=[4242]), [OWN])
        self.assertEqual(self.uids(daemon, OWN, groups=[4242, 4243]), [OWN, OTHER])

    def test_a_node_may_show_all(self):
        self.assertEqual(self.uids(self.start("--show-sessions", "all"), OTHER), [OWN, OTHER])


if __name__ == "__main__":
    unittest.main()

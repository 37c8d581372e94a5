"""Stalls that engines find: a rank misses a launch. tandemctl shows them, members get an event, and a metric counts."""

import unittest
import urllib.request

from harness import TandemTest, everybody, wait_until
from test_restart import RestartTest

DEADLINE_MS = 300


class Stalls(TandemTest):
    gpus = 2
    extra = ("--metrics-listen", "127.0.0.1:0")

    def shown(self):
        (group,) = self.daemon.ctl_json("groups")["groups"]
        return group["state"], group.get("state_reason", "")

    def counted(self):
        url = f"http://127.0.0.1:{self.daemon.metrics_port()}/metrics"
        with urllib.request.urlopen(url, timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        (line,) = [line for line in lines if line.startswith("tandem_groups_stalled_total ")]
        return float(line.split()[1])

    def heard(self, client):
        events = client.call("events")["events"]
        return [event for event in events if event["kind"] == "group_stalled"]

    def stall(self, clients):
        """Rank 1 misses a launch, which ends by its deadline on rank 0."""
        clients[0].call("launch", plan="ar", bindings=[["ar.in", 0], ["ar.out", 0]])
        clients[0].call("sync")
        reply = clients[0].call("wait", plan="ar", check=False)
        self.assertEqual(reply.get("detail", {}).get("reason"), "RANK_LATE", reply)

    def test_a_missed_launch_is_shown_counted_and_told_until_the_renewal(self):
        clients = self.group(2, launch_deadline_ms=DEADLINE_MS)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        self.assertEqual((self.shown(), self.counted()), (("ready", ""), 0))
        for stalls in (1, 2):
            self.stall(clients)
            wait_until(lambda: self.shown()[1] != "", 60, "tandemctl shows no stall")
            state, reason = self.shown()
            self.assertEqual(state, "ready")
            self.assertIn("stalled, its ranks have to renew it: group 'tp': launch", reason)
            self.assertIn("rank 1 had not arrived", reason)
            self.assertEqual(self.counted(), stalls)
            for client in clients:
                wait_until(lambda client=client: len(self.heard(client)) == stalls, 60, "a member hears no stall")
                event = self.heard(client)[-1]
                self.assertEqual((event["rank"], event["code"]), (1, "DEADLINE_EXCEEDED"))
                self.assertIn("rank 1 had not arrived", event["message"])
            everybody(clients, "renew")
            self.assertEqual(self.shown(), ("ready", ""))
            self.check_all_reduce(clients)
        # Both engines have reported each stall by now, if any reports it twice.
        self.assertEqual([len(self.heard(client)) for client in clients], [2, 2])
        self.assertEqual(self.counted(), 2)
        self.assertEqual(self.daemon.tail(1000).count("stalled:"), 2)

    def test_a_renewal_without_a_stall_is_none(self):
        clients = self.group(2, launch_deadline_ms=60000)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        everybody(clients, "renew")
        # Rank 0 waits in a launch that rank 1 leaves out, since it renews the group.
        clients[0].call("launch", plan="ar", bindings=[["ar.in", 0], ["ar.out", 0]])
        everybody(clients, "renew")
        self.check_all_reduce(clients)
        self.assertEqual((self.shown(), self.counted()), (("ready", ""), 0))

    def test_an_engines_restart_ends_the_stall(self):
        clients = self.group(2, launch_deadline_ms=DEADLINE_MS)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        self.stall(clients)
        wait_until(lambda: self.shown()[1] != "", 60, "tandemctl shows no stall")
        self.daemon.kill_engine(1)
        wait_until(lambda: self.shown() == ("ready", ""), 30, "the stall stays")


class NextDaemon(RestartTest):
    """tandemd ends while a group is stalled, or before."""

    def shown(self):
        (group,) = self.daemon.ctl_json("groups")["groups"]
        return group.get("state_reason", "")

    def test_it_knows_stalls_of_before_and_of_meanwhile(self):
        clients = self.group(2, launch_deadline_ms=DEADLINE_MS)
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)
        for before in (True, False):
            clients[0].call("launch", plan="ar", bindings=[["ar.in", 0], ["ar.out", 0]])
            if before:
                wait_until(lambda: self.shown() != "", 60, "tandemctl shows no stall")
            self.end_daemon()
            clients[0].call("sync")  # returns once the engines have stalled the group
            self.next_daemon()
            wait_until(lambda: "rank 1 had not arrived" in self.shown(), 60, "the stall is forgotten")
            everybody(clients, "wait", plan="ar", check=False)
            everybody(clients, "renew")
            self.assertEqual(self.shown(), "")
            self.check_all_reduce(clients)
            self.restart()
            self.assertEqual(self.shown(), "")


if __name__ == "__main__":
    unittest.main()

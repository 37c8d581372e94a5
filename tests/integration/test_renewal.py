"""Renewal: a launch on the ranks' own streams has failed, the group is stalled, and its ranks go on with the same plans, memory and
graphs. Ranks that do not come are named, and a rank that dies meanwhile ends the group."""

import signal
import time
import unittest

from harness import everybody, wait_until
from test_client_placement import AR, InClient
from test_restart import RestartTest

MOST_RANKS = 4
DEADLINE_MS = 4000  # ranks that launch together come within it on a busy machine


class RenewalTest(InClient):
    world = 3

    def stalled(self, late=1, **arguments):
        """A group whose rank `late` has not launched in time; the others know it."""
        clients = self.prepared(launch_deadline_ms=DEADLINE_MS, **arguments)
        self.check_all_reduce(clients)
        self.stall(clients, late)
        return clients

    def stall(self, clients, late=1):
        others = [client for rank, client in enumerate(clients) if rank != late]
        for client in others:
            client.call("launch", plan="ar", bindings=AR)
        for client in others:
            client.call("sync", deadline_ms=50000)
            self.check_ended(client, "DEADLINE_EXCEEDED", "RANK_LATE", [late])
        # A rank that has waited for the verdict for too long has ended before it.
        wait_until(lambda: self.reason()[1] != "", 60, "tandemd shows no stall")

    def renew(self, clients, **arguments):
        everybody(clients, "renew", **arguments)

    def check_replays(self, clients, times):
        everybody(clients, "replay", graph="g", times=times)
        everybody(clients, "sync")
        everybody(clients, "wait", plan="ar")
        self.check_all_reduce(clients)

    def reason(self):
        (group,) = self.daemon.ctl_json("groups")["groups"]
        return group["state"], group.get("state_reason", "")


class Renewal(RenewalTest):
    def test_plans_and_graphs_go_on(self):
        clients = self.prepared(launch_deadline_ms=DEADLINE_MS)
        everybody(clients, "capture", graph="g", launches=[{"plan": "ar", "bindings": AR}] * 3)
        for late in (1, 0):
            self.stall(clients, late)
            self.assertEqual(self.reason()[0], "ready")
            self.assertIn("stalled, its ranks have to renew it", self.reason()[1])
            self.assertIn(f"rank {late} had not arrived", self.reason()[1])
            # The late rank hears of it, too, and no launch is made before the renewal.
            for client in clients:
                self.check_no_more(client, "DEADLINE_EXCEEDED")
            self.renew(clients)
            self.assertEqual(self.reason(), ("ready", ""))
            self.check_all_reduce(clients)
            self.check_replays(clients, times=4)

    def test_a_stopped_rank_comes_back(self):
        clients = self.prepared(launch_deadline_ms=DEADLINE_MS)
        self.check_all_reduce(clients)
        clients[1].kill(signal.SIGSTOP)
        try:
            self.stall(clients)
        finally:
            clients[1].kill(signal.SIGCONT)
        self.renew(clients)
        self.check_all_reduce(clients)

    def test_a_failed_replay_goes_on(self):
        clients = self.prepared(launch_deadline_ms=DEADLINE_MS)
        everybody(clients, "capture", graph="g", launches=[{"plan": "ar", "bindings": AR}] * 3)
        everybody(clients, "replay", graph="g", times=2)
        for client in clients[:2]:
            client.call("replay", graph="g", times=3)  # of which rank 2 knows nothing
        for client in clients[:2]:
            client.call("sync", deadline_ms=50000)
        self.renew(clients)
        # Nobody has asked how the replays ended: that is forgotten.
        everybody(clients, "wait", plan="ar")
        self.check_replays(clients, times=5)

    def test_ranks_that_have_ended_different_launches_go_on_alike(self):
        clients = self.prepared(launch_deadline_ms=DEADLINE_MS)
        for launches in (1, 2, 7):
            self.launch(clients, times=launches)
            everybody(clients, "sync")
            clients[0].call("launch", plan="ar", bindings=AR, times=launches)
            clients[2].call("launch", plan="ar", bindings=AR)
            for client in (clients[0], clients[2]):
                client.call("sync", deadline_ms=50000)
            self.renew(clients)
            for _ in range(3):
                self.check_all_reduce(clients)

    def test_launches_stay_counted(self):
        clients = self.prepared(launch_deadline_ms=DEADLINE_MS)
        self.launch(clients, times=5)
        everybody(clients, "sync")
        self.stall(clients)
        self.renew(clients)
        self.launch(clients, times=4)
        everybody(clients, "sync")

        def counted():
            (group,) = self.daemon.ctl_json("groups")["groups"]
            return int(group["client_launches"])

        wait_until(lambda: counted() == 9, 60, "launches are not counted as they were made")

    def test_a_rank_that_does_not_come_is_named(self):
        clients = self.stalled()
        calls = [client.send("renew", deadline_ms=1000) for client in clients[:2]]
        for client, call in zip(clients, calls):
            reply = client.reply(call, check=False)
            self.assertEqual(reply.get("code"), "DEADLINE_EXCEEDED", reply)
            self.assertEqual(reply["detail"]["reason"], "RANK_LATE", reply)
            self.assertEqual(reply["detail"]["ranks"], [2], reply)
            self.check_no_more(client, "DEADLINE_EXCEEDED")
        self.renew(clients)
        self.check_all_reduce(clients)

    def test_a_rank_killed_meanwhile_ends_the_group(self):
        clients = self.stalled()
        calls = [client.send("renew", deadline_ms=50000) for client in clients[:2]]
        time.sleep(0.2)
        clients[2].kill()
        for client, call in zip(clients, calls):
            reply = client.reply(call, check=False)
            self.assertEqual(reply.get("code"), "UNAVAILABLE", reply)
            self.assertEqual(reply["detail"]["reason"], "RANK_LOST", reply)
            self.assertEqual(reply["detail"]["ranks"], [2], reply)
            self.assertFails("UNAVAILABLE", client.call, "renew")

    def test_a_mismatch_and_a_refused_launch_go_on(self):
        clients = self.prepared(world=2)
        self.launch_unlike(clients)
        self.renew(clients)
        self.check_all_reduce(clients)
        self.launch_refused(clients)
        self.renew(clients)
        self.check_all_reduce(clients)

    def test_a_group_that_has_not_failed_may_be_renewed(self):
        clients = self.prepared()
        for _ in range(20):
            self.renew(clients)
            self.check_all_reduce(clients)

    def test_engines_launches_go_on_meanwhile(self):
        clients = self.stalled()
        self.all_reduce_plan(clients, key="engine", placement="engine")
        bindings = [["engine.in", 0], ["engine.out", 0]]
        everybody(clients, "launch", plan="engine", bindings=bindings, times=3)
        everybody(clients, "sync")
        everybody(clients, "wait", plan="engine")
        self.renew(clients)
        self.check_all_reduce(clients)

    def test_a_stalled_group_can_be_left_and_joined_again(self):
        clients = self.stalled()
        everybody(clients, "leave", group="tp")
        self.join(clients, options={"placement": "client"})
        self.all_reduce_plan(clients)
        self.check_all_reduce(clients)


class NextDaemon(RestartTest, RenewalTest):
    """tandemd ends while a group is stalled."""

    def test_it_renews_the_group(self):
        clients = self.stalled()
        self.restart()
        self.assertIn("stalled, its ranks have to renew it", self.reason()[1])
        self.check_no_more(clients[0], "DEADLINE_EXCEEDED")
        self.renew(clients)
        self.check_all_reduce(clients)
        self.restart()
        self.stall(clients)
        self.renew(clients)
        self.check_all_reduce(clients)

    def test_ranks_that_wait_for_others_wait_on(self):
        clients = self.stalled()
        calls = [client.send("renew", deadline_ms=30000) for client in clients[:2]]
        time.sleep(0.3)
        self.restart()
        clients[2].call("renew", deadline_ms=30000)
        for client, call in zip(clients, calls):
            client.reply(call, timeout=60)
        self.check_all_reduce(clients)


if __name__ == "__main__":
    unittest.main()

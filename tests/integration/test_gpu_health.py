"""Faults of GPUs, as the driver reports them: health, doctor, metrics and the page name each, and a GPU with one may take no new
groups. A file plants the faults of emulated GPUs."""

import http.client
import json
import os
import tempfile
import unittest

from harness import Daemon, TandemTest, everybody, host_only, wait_until

GPU = 1


@host_only("plants faults of emulated GPUs")
class Faults(TandemTest):
    gpus = 2
    uuid = "EMU-0000-0001"  # of GPU 1
    flags = ()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "faults")
        self.plant()
        self.extra = (
            "--testing-gpu-health-file",
            self.path,
            "--metrics-listen",
            "127.0.0.1:0",
            "--web-listen",
            "127.0.0.1:0",
            *self.flags,
        )
        super().setUp()

    def plant(self, *faults):
        """The GPU's faults, instead of those before."""
        with open(self.path + ".new", "w") as file:
            file.writelines(f"{GPU} {fault}\n" for fault in faults)
        os.rename(self.path + ".new", self.path)

    def get(self, port, path):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", path)
        text = connection.getresponse().read().decode()
        connection.close()
        return text

    def metric(self, name, **labels):
        text = self.get(self.daemon.metrics_port(), "/metrics")
        wanted = {f'{key}="{value}"' for key, value in {"gpu": self.uuid, **labels}.items()}
        for line in text.splitlines():
            head, _, value = line.rpartition(" ")
            if head.startswith(name + "{") and wanted <= set(head[len(name) + 1 : -1].split(",")):
                return float(value)
        return None

    def health(self):
        return self.daemon.ctl_json("health")

    def gpu(self):
        return self.health()["gpus"][GPU]

    def findings(self):
        # A failure among them is the command's status, too.
        listed = json.loads(self.daemon.ctl("doctor", "--json", check=False).stdout)["findings"]
        return {each["check"]: each for each in listed}

    def cordoned(self):
        return self.gpu().get("cordoned", "")

    def check_refused(self, why):
        """No new group has the GPU, and all its ranks hear why."""
        clients = [self.daemon.client() for _ in range(2)]
        for client in clients:
            client.connect()
        for reply in everybody(
            clients,
            "join",
            each=lambda rank: {"rank": rank, "world": 2, "name": "after", "job_key": self.job_key},
            check=False,
        ):
            self.assertEqual((reply["code"], reply["detail"]["reason"]), ("UNAVAILABLE", "GPU_CORDONED"), reply)
            self.assertIn(f"GPU {GPU} is cordoned", reply["message"])
            self.assertIn(why, reply["message"])
        gpu = self.health()["gpus"][0]["gpu_uuid"]
        clients[0].call("join", world=1, rank=0, name="beside", job_key=self.job_key, gpu=gpu)


class Shown(Faults):
    def test_each_fault_is_shown_everywhere(self):
        self.assertEqual(self.gpu().get("faults", []), [])
        for planted, kind, text in (
            ("ecc 3", "ecc", "3 uncorrected memory errors"),
            ("rows_pending 1", "rows", "at its next reset"),
            ("rows_failed 1", "rows", "could not replace"),
            ("active_links 16", "links", "2 of 18 NVLinks that are not active"),
            ("link_recoveries 2", "links", "trained again, 2 times"),
            ("clocks hw_thermal", "clocks", "lower clocks: hw_thermal"),
            ("lost 1", "lost", "is lost"),
            ("xid 79", "xid", "XID 79 (the GPU has fallen off the bus)"),
        ):
            with self.subTest(planted):
                self.plant(planted)
                wait_until(lambda text=text: text in " ".join(self.gpu().get("faults", [])), 60)
                self.assertEqual(self.metric("tandem_gpu_fault", fault=kind), 1)
                health = self.health()
                self.assertTrue(health["ready"], "a fault alone leaves the node ready")
                self.assertEqual(self.gpu()["kinds"], [kind])
                (fault,) = self.gpu()["faults"]
                self.assertIn(text, fault)
                named = f"GPU {GPU} ({self.uuid}) {fault}"
                self.assertIn(named, health["reasons"])
                self.assertIn(named, self.daemon.ctl("health").stdout)
                self.assertIn(named, self.get(self.daemon.metrics_port(), "/readyz"))
                self.assertEqual(self.findings()["gpu_health"]["message"], named)
                wait_until(
                    lambda fault=fault: json.loads(self.get(self.daemon.page_port(), "/state.json"))["topology"][
                        "gpus"
                    ][GPU]["faults"]
                    == [fault],
                    60,
                )
        self.plant()
        wait_until(lambda: self.metric("tandem_gpu_fault", fault="lost") == 0, 60)
        self.assertEqual(self.gpu()["kinds"], ["xid"], "an XID stays until an operator has seen to it")

    def test_an_xid_of_a_program_is_counted_only(self):
        self.plant("xid 31", "xid 31", "xid 13")
        wait_until(lambda: self.metric("tandem_gpu_xid_errors_total", xid="31") == 2, 60)
        self.assertEqual(self.metric("tandem_gpu_xid_errors_total", xid="13"), 1)
        self.assertEqual(self.gpu().get("faults", []), [])
        self.assertEqual(self.metric("tandem_gpu_fault", fault="xid"), 0)

    def test_an_xid_cordons_nothing_unasked(self):
        self.plant("xid 79")
        wait_until(lambda: self.metric("tandem_gpu_fault", fault="xid") == 1, 60)
        self.assertEqual((self.cordoned(), self.metric("tandem_gpu_cordoned")), ("", 0))
        self.group(2)

    def test_an_operator_cordons_a_gpu(self):
        before = self.group(2)
        self.all_reduce_plan(before)
        self.assertIn("is cordoned", self.daemon.ctl("cordon", "--gpu", str(GPU)).stdout)
        self.assertIn("by an operator", self.cordoned())
        self.assertNotEqual(self.daemon.ctl("health", "--ready", check=False).returncode, 0)
        self.check_refused("by an operator")
        self.check_all_reduce(before)
        self.daemon.ctl("cordon", "--gpu", self.uuid, "--undo")
        self.group(2, name="again")
        self.assertEqual(self.daemon.ctl("health", "--ready").returncode, 0)
        self.assertNotEqual(self.daemon.ctl("cordon", "--gpu", "9", check=False).returncode, 0)


class Cordoned(Faults):
    flags = ("--cordon-gpu-on-xid",)

    def test_a_gpu_with_an_xid_takes_no_new_groups(self):
        before = self.group(2)
        self.all_reduce_plan(before)
        self.plant("xid 31")
        wait_until(lambda: self.metric("tandem_gpu_xid_errors_total", xid="31") == 1, 60)
        self.assertEqual(self.cordoned(), "")
        self.plant("xid 31", "xid 79")
        wait_until(lambda: "XID 79" in self.cordoned(), 60)
        self.assertEqual(self.metric("tandem_gpu_cordoned"), 1)
        self.assertEqual(self.findings()["gpu_cordoned"]["severity"], "NOTE")
        wait_until(
            lambda: "XID 79"
            in json.loads(self.get(self.daemon.page_port(), "/state.json"))["topology"]["gpus"][GPU]["cordoned"],
            60,
        )
        self.check_refused("XID 79")
        self.check_all_reduce(before)
        # The operator has seen to the GPU.
        self.daemon.ctl("cordon", "--gpu", str(GPU), "--undo")
        self.assertEqual((self.cordoned(), self.gpu().get("faults", [])), ("", []))
        self.group(2, name="again")
        self.plant("xid 31", "xid 79", "xid 48")
        wait_until(lambda: "XID 48" in self.cordoned(), 60)

    def restart(self):
        """Another tandemd with the same state directory."""
        self.daemon.stop()
        self.daemon = Daemon(self.gpus, self.extra, runtime_dir=self.folder)
        self.addCleanup(self.daemon.stop)

    def test_a_cordon_outlives_tandemd(self):
        folder = tempfile.TemporaryDirectory(prefix="tandem-test.")
        self.addCleanup(folder.cleanup)
        self.folder = os.path.join(folder.name, "run")
        os.mkdir(self.folder)
        self.restart()
        self.plant("xid 79")
        wait_until(lambda: "XID 79" in self.cordoned(), 60)
        self.plant()
        self.restart()
        self.assertIn("XID 79", self.cordoned())
        self.assertEqual(self.gpu().get("faults", []), [])
        self.daemon.ctl("cordon", "--gpu", str(GPU), "--undo")
        self.restart()
        self.assertEqual(self.cordoned(), "")


if __name__ == "__main__":
    unittest.main()

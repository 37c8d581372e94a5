"""Manifests of deploy/kubernetes: Kubernetes' schemas accept them, and tandemd has what they name: keys, directories, port, health paths."""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

from daemon import Daemon

try:
    import yaml
except ImportError:
    raise unittest.SkipTest("needs PyYAML (Debian's package python3-yaml)") from None
try:
    import kubernetes_validate
except ImportError:
    kubernetes_validate = None

ROOT = pathlib.Path(__file__).parents[2]
BIN = pathlib.Path(os.environ.get("TANDEM_BIN_DIR", ROOT / "build/check/bin"))
FOLDER = ROOT / "deploy/kubernetes"
# Objects of the Prometheus operator and of kubectl itself have no schema in Kubernetes.
FOREIGN = {"PodMonitor", "Kustomization"}


def objects():
    return {path.name: yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yaml"))}


class Manifests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.objects = objects()
        cls.pod = cls.objects["daemonset.yaml"]["spec"]["template"]["spec"]
        cls.container = cls.pod["containers"][0]
        cls.mounts = {mount["mountPath"]: mount for mount in cls.container["volumeMounts"]}
        cls.volumes = {volume["name"]: volume for volume in cls.pod["volumes"]}

    @unittest.skipUnless(kubernetes_validate, "needs kubernetes-validate (PyPI)")
    def test_schemas(self):
        checked = 0
        for thing in self.objects.values():
            if thing["kind"] not in FOREIGN:
                kubernetes_validate.validate(thing, "1.30", strict=True)
                checked += 1
        self.assertEqual(checked, 4)

    def test_kustomization_lists_what_is_there(self):
        listed = set(self.objects["kustomization.yaml"]["resources"])
        self.assertEqual(set(self.objects) - listed, {"kustomization.yaml", "podmonitor.yaml", "example-job.yaml"})

    def test_selectors_select_the_pods(self):
        labels = self.objects["daemonset.yaml"]["spec"]["template"]["metadata"]["labels"]
        for selector in (
            self.objects["daemonset.yaml"]["spec"]["selector"],
            self.objects["podmonitor.yaml"]["spec"]["selector"],
        ):
            self.assertLessEqual(selector["matchLabels"].items(), labels.items())
        ports = {port["name"] for port in self.container["ports"]}
        self.assertIn(self.objects["podmonitor.yaml"]["spec"]["podMetricsEndpoints"][0]["port"], ports)
        job = self.objects["podmonitor.yaml"]["spec"]["podMetricsEndpoints"][0]["relabelings"][0]
        self.assertIn(f'job="{job["replacement"]}"', (ROOT / "deploy/monitoring/tandem.rules.yml").read_text())

    def test_mounts_have_volumes(self):
        self.assertEqual({mount["name"] for mount in self.mounts.values()}, set(self.volumes))

    def test_the_administrators_socket_stays_in_the_pod(self):
        self.assertIn("emptyDir", self.volumes[self.mounts["/run/tandem-admin"]["name"]])
        clients = self.volumes[self.mounts["/run/tandem"]["name"]]["hostPath"]["path"]
        job = self.objects["example-job.yaml"]["spec"]["template"]["spec"]
        self.assertEqual([volume["hostPath"]["path"] for volume in job["volumes"]], [clients])
        self.assertTrue(all(mount["readOnly"] for mount in job["containers"][0]["volumeMounts"]))

    def test_capabilities_are_the_units(self):
        unit = (ROOT / "deploy/systemd/tandemd.service").read_text()
        bound = re.search(r"^CapabilityBoundingSet=(.*)$", unit, re.M).group(1).split()
        added = self.container["securityContext"]["capabilities"]["add"]
        self.assertEqual({f"CAP_{name}" for name in added}, set(bound))

    def test_the_jobs_group_is_the_sockets(self):
        group = yaml.safe_load(
            self.objects["configmap.yaml"]["data"]["node.toml"].split("socket_group = ")[1].splitlines()[0]
        )
        job = self.objects["example-job.yaml"]["spec"]["template"]["spec"]
        self.assertEqual(job["securityContext"]["supplementalGroups"], [int(group)])


class WithTandemd(unittest.TestCase):
    def test_the_configuration_is_valid_and_fits_the_mounts(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "tandemd.toml").write_text("")
            (folder / "config.d").mkdir()
            for name, text in objects()["configmap.yaml"]["data"].items():
                (folder / "config.d" / name).write_text(text)
            done = subprocess.run(
                [BIN / "tandemd", "--config", folder / "tandemd.toml", "--print-config"],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        self.assertEqual(done.returncode, 0, done.stderr)
        container = objects()["daemonset.yaml"]["spec"]["template"]["spec"]["containers"][0]
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        settings = dict(re.findall(r'^(\w+) = "?([^"\n]*)"?$', done.stdout, re.M))
        self.assertEqual(settings["socket_group"], "64064")
        self.assertLessEqual(
            {settings["runtime_dir"], settings["runtime_dir"] + "-admin", settings["state_dir"]}, mounts
        )
        metrics = done.stdout.split("[metrics]")[1].split("\n[")[0]
        listen = re.search(r'^listen = "([^"]+)"', metrics, re.M)
        self.assertEqual(int(listen[1].rsplit(":", 1)[1]), container["ports"][0]["containerPort"])

    def test_the_probes_paths_answer(self):
        container = objects()["daemonset.yaml"]["spec"]["template"]["spec"]["containers"][0]
        daemon = Daemon(BIN / "tandemd")
        self.addCleanup(daemon.stop)
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            self.assertTrue(daemon.get(container[probe]["httpGet"]["path"]), probe)
        path = objects()["podmonitor.yaml"]["spec"]["podMetricsEndpoints"][0]["path"]
        self.assertIn("tandem_uptime_seconds", daemon.get(path))


if __name__ == "__main__":
    unittest.main()

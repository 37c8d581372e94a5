"""Manifests and chart of deploy/kubernetes, and the CDI file: schemas accept them, the chart's defaults are the manifests, and
tandemd has what they name: keys, directories, port, health paths."""

import json
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
try:
    import helm_python
except ImportError:
    helm_python = None
try:
    import jsonschema
except ImportError:
    jsonschema = None

ROOT = pathlib.Path(__file__).parents[2]
BIN = pathlib.Path(os.environ.get("TANDEM_BIN_DIR", ROOT / "build/check/bin"))
FOLDER = ROOT / "deploy/kubernetes"
CHART = FOLDER / "chart"
# Objects of the Prometheus operator and of kubectl itself have no schema in Kubernetes.
JOBS = ("example-job.yaml", "example-torchrun.yaml")
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
        self.assertEqual(checked, 5)

    def test_kustomization_lists_what_is_there(self):
        listed = set(self.objects["kustomization.yaml"]["resources"])
        self.assertEqual(set(self.objects) - listed, {"kustomization.yaml", "podmonitor.yaml", *JOBS})

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
        for name in JOBS:
            job = self.objects[name]["spec"]["template"]["spec"]
            of_the_node = {
                volume["name"]: volume["hostPath"]["path"] for volume in job["volumes"] if "hostPath" in volume
            }
            self.assertEqual(list(of_the_node.values()), [clients], name)
            mounts = [mount for mount in job["containers"][0]["volumeMounts"] if mount["name"] in of_the_node]
            self.assertTrue(mounts and all(mount["readOnly"] for mount in mounts), name)

    def test_the_torchrun_jobs_program_is_in_its_image(self):
        command = self.objects["example-torchrun.yaml"]["spec"]["template"]["spec"]["containers"][0]["command"]
        self.assertEqual(command[0], "torchrun")
        (program,) = [word for word in command if word.endswith(".py")]
        made = (ROOT / "deploy/kubernetes/Dockerfile.torchrun").read_text()
        copies = dict(map(reversed, re.findall(r"^COPY (\S+) (\S+)$", made, re.M)))
        source = ROOT / program.replace("/opt/tandem/examples/torch", copies["/opt/tandem/examples/torch"])
        options = set(re.findall(r'add_argument\("(--[\w-]+)"', source.read_text()))
        given = {word for word in command[command.index(program) :] if word.startswith("--")}
        self.assertTrue(given and given <= options, given - options)
        limits = self.objects["example-torchrun.yaml"]["spec"]["template"]["spec"]["containers"][0]["resources"][
            "limits"
        ]
        self.assertEqual(command[command.index("--nproc-per-node") + 1], str(limits["nvidia.com/gpu"]))

    def test_capabilities_are_the_units(self):
        unit = (ROOT / "deploy/systemd/tandemd.service").read_text()
        bound = re.search(r"^CapabilityBoundingSet=(.*)$", unit, re.M).group(1).split()
        added = self.container["securityContext"]["capabilities"]["add"]
        self.assertEqual({f"CAP_{name}" for name in added}, set(bound))
        page = (ROOT / "docs/security.md").read_text().split("## Why root")[1].split("\n## ")[0]
        self.assertEqual(set(re.findall(r"CAP_\w+", page)), set(bound))

    def test_the_jobs_group_is_the_sockets(self):
        group = yaml.safe_load(
            self.objects["configmap.yaml"]["data"]["node.toml"].split("socket_group = ")[1].splitlines()[0]
        )
        for name in JOBS:
            job = self.objects[name]["spec"]["template"]["spec"]
            self.assertEqual(job["securityContext"]["supplementalGroups"], [int(group)], name)


class ContainerDeviceInterface(unittest.TestCase):
    def test_the_device_is_the_clients_directory(self):
        """By the rules of CDI 0.6: version, kind VENDOR/CLASS, devices with names and edits."""
        spec = json.loads((ROOT / "deploy/cdi/tandem.json").read_text())
        self.assertEqual(set(spec), {"cdiVersion", "kind", "devices"})
        self.assertRegex(spec["cdiVersion"], r"^\d+\.\d+\.\d+$")
        self.assertRegex(spec["kind"], r"^[A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]/[A-Za-z][A-Za-z0-9_-]*$")
        (device,) = spec["devices"]
        self.assertRegex(device["name"], r"^[A-Za-z0-9][A-Za-z0-9_.:-]*$")
        self.assertIn(f"--device {spec['kind']}={device['name']} ", (ROOT / "docs/install.md").read_text())
        self.assertEqual(set(device["containerEdits"]), {"mounts"})
        (mount,) = device["containerEdits"]["mounts"]
        (job,) = objects()["example-job.yaml"]["spec"]["template"]["spec"]["volumes"]
        self.assertEqual({mount["hostPath"], mount["containerPath"]}, {job["hostPath"]["path"]})
        self.assertIn("ro", mount["options"])


@unittest.skipUnless(jsonschema, "needs jsonschema (Debian's package python3-jsonschema)")
class ChartValues(unittest.TestCase):
    def test_the_defaults_are_described_and_valid(self):
        schema = json.loads((CHART / "values.schema.json").read_text())
        jsonschema.Draft7Validator.check_schema(schema)
        values = yaml.safe_load((CHART / "values.yaml").read_text())
        jsonschema.validate(values, schema)
        self.assertEqual(set(schema["properties"]) - {"global"}, set(values))
        templates = "".join(path.read_text() for path in sorted((CHART / "templates").iterdir()))
        for name in values:
            self.assertIn(f".Values.{name}", templates)

    def test_wrong_values_are_refused(self):
        schema = json.loads((CHART / "values.schema.json").read_text())
        good = yaml.safe_load((CHART / "values.yaml").read_text())
        on = {"enabled": True, "interval": "15s"}
        jsonschema.validate({**good, "podMonitor": on}, schema)
        for wrong in (
            {"socketGroup": "tandem"},
            {"metricsPort": 0},
            {"stateDirectory": "srv/tandem"},
            {"nonsense": 1},
            {"podMonitor": on, "serviceMonitor": on},
        ):
            with self.assertRaises(jsonschema.ValidationError, msg=wrong):
                jsonschema.validate({**good, **wrong}, schema)


@unittest.skipUnless(helm_python, "needs helm-python-sdk (PyPI)")
class Chart(unittest.TestCase):
    @staticmethod
    def rendered(**values):
        """The objects by their kinds."""
        with helm_python.Chart.load(str(CHART)) as chart:
            chart.validate_schema(values)
            texts = chart.render(values, name="tandem", namespace="tandem")
        things = [
            thing
            for path, text in texts.items()
            if path.endswith(".yaml")
            for thing in yaml.safe_load_all(text)
            if thing
        ]
        return {thing["kind"]: thing for thing in things}

    def test_helm_finds_no_fault(self):
        report = helm_python.lint(str(CHART), strict=True)
        self.assertEqual([m for m in report["messages"] if m["severity"] > 1] + report["errors"], [])

    def test_the_defaults_are_the_manifests(self):
        things = self.rendered()
        self.assertEqual(set(things), {"ConfigMap", "DaemonSet"})
        container = things["DaemonSet"]["spec"]["template"]["spec"]["containers"][0]
        self.assertEqual(container.pop("imagePullPolicy"), "IfNotPresent")
        self.assertEqual(things["DaemonSet"], objects()["daemonset.yaml"])
        self.assertEqual(print_config(things["ConfigMap"]["data"]), print_config(objects()["configmap.yaml"]["data"]))

    def test_values_reach_all_that_they_concern(self):
        things = self.rendered(
            stateDirectory="/srv/tandem",
            socketGroup=4294967294,
            metricsPort=9999,
            config="cordoned = true\n[quotas]\nsessions = 512\n",
            image={"repository": "local/tandem", "tag": "7"},
            runtimeClassName="",
        )
        pod = things["DaemonSet"]["spec"]["template"]["spec"]
        container = pod["containers"][0]
        self.assertEqual(container["image"], "local/tandem:7")
        self.assertNotIn("runtimeClassName", pod)
        self.assertEqual(container["ports"][0]["containerPort"], 9999)
        settings = print_config(things["ConfigMap"]["data"])
        for line in (
            'socket_group = "4294967294"',
            'listen = "0.0.0.0:9999"',
            "cordoned = true",
            "sessions = 512",
        ):
            self.assertIn(f"\n{line}\n", f"\n{settings}")
        paths = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in pod["volumes"]}
        self.assertEqual((paths["clients"], paths["state"]), ("/run/tandem", "/srv/tandem"))

    def test_the_operators_monitors_are_of_the_same_pods(self):
        plain = objects()["podmonitor.yaml"]
        on = {"enabled": True, "interval": "15s"}
        self.assertEqual(self.rendered(podMonitor=on)["PodMonitor"], plain)
        things = self.rendered(serviceMonitor=on)
        self.assertEqual(things["ServiceMonitor"]["spec"]["endpoints"], plain["spec"]["podMetricsEndpoints"])
        service = things["Service"]
        labels = things["DaemonSet"]["spec"]["template"]["metadata"]["labels"]
        self.assertLessEqual(service["spec"]["selector"].items(), labels.items())
        selected = things["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
        self.assertLessEqual(selected.items(), service["metadata"]["labels"].items())
        self.assertEqual(service["spec"]["ports"][0]["name"], things["ServiceMonitor"]["spec"]["endpoints"][0]["port"])

    def test_wrong_values_are_refused(self):
        for wrong in ({"socketGroup": "tandem"}, {"nonsense": 1}):
            with self.assertRaises(helm_python.HelmValuesError, msg=wrong):
                self.rendered(**wrong)

    @unittest.skipUnless(kubernetes_validate, "needs kubernetes-validate (PyPI)")
    def test_schemas(self):
        things = self.rendered(serviceMonitor={"enabled": True, "interval": "15s"})
        for kind in ("ConfigMap", "DaemonSet", "Service"):
            kubernetes_validate.validate(things[kind], "1.30", strict=True)


def print_config(files):
    """tandemd's settings with these files in config.d."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "tandemd.toml").write_text("")
        (folder / "config.d").mkdir()
        for name, text in files.items():
            (folder / "config.d" / name).write_text(text)
        done = subprocess.run(
            [BIN / "tandemd", "--config", folder / "tandemd.toml", "--print-config"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return done.stdout


class WithTandemd(unittest.TestCase):
    def test_the_configuration_is_valid_and_fits_the_mounts(self):
        said = print_config(objects()["configmap.yaml"]["data"])
        container = objects()["daemonset.yaml"]["spec"]["template"]["spec"]["containers"][0]
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        settings = dict(re.findall(r'^(\w+) = "?([^"\n]*)"?$', said, re.M))
        self.assertEqual(settings["socket_group"], "64064")
        self.assertLessEqual(
            {settings["runtime_dir"], settings["runtime_dir"] + "-admin", settings["state_dir"]}, mounts
        )
        metrics = said.split("[metrics]")[1].split("\n[")[0]
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

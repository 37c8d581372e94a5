"""Has systemd check the units of deploy/systemd, with stand-ins for the programs that are not installed here; and what
systemd cannot know: that tandemd comes after an MPS daemon that answers, in the same pipe directory."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

UNITS = pathlib.Path(__file__).parents[2] / "deploy/systemd"
SKIPPED = 77


def values(text, key):
    return re.findall(rf"^{key}=(.*)$", text, re.MULTILINE)


def main():
    tandemd, mps = ((UNITS / name).read_text() for name in ("tandemd.service", "tandem-mps.service"))
    assert any("tandem-mps.service" in after for after in values(tandemd, "After")), "tandemd does not come after MPS"
    assert any("tandem-mps.service" in wants for wants in values(tandemd, "Wants")), "tandemd does not bring MPS"
    assert not values(tandemd, "Requires"), "tandemd works without MPS"
    assert "-multiuser-server" in values(mps, "ExecStart")[0], "clients of other users would never get a context"
    assert "get_server_list" in values(mps, "ExecStartPost")[0], "started must mean answering"

    def pipes(text):
        return [value for value in values(text, "Environment") if value.startswith("CUDA_MPS_PIPE_DIRECTORY=")]
    assert pipes(tandemd) == pipes(mps) and len(pipes(mps)) == 1, "engines and MPS disagree on the directory"
    assert pipes(mps)[0].endswith("/" + values(mps, "RuntimeDirectory")[0]), "nobody makes the pipe directory"

    if shutil.which("systemd-analyze") is None:
        print("systemd-analyze is not installed")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        for unit in UNITS.glob("*.service"):
            text = re.sub(r"/usr/bin/(tandemd|nvidia-cuda-mps-control)", "/bin/true", unit.read_text())
            (pathlib.Path(folder) / unit.name).write_text(text)
        found = subprocess.run(["systemd-analyze", "verify", "--man=no",
                                *(os.path.join(folder, unit.name) for unit in UNITS.glob("*.service"))],
                               capture_output=True, text=True, timeout=60)
    # Other units of this machine may be unwell; only ours count.
    ours = [line for line in found.stderr.splitlines() if "tandem" in line]
    print("\n".join(ours))
    return 1 if ours else 0


if __name__ == "__main__":
    sys.exit(main())

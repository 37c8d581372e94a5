"""Another Linux below a folder: a bare system of another release, made by debootstrap, in which a program runs without what this
machine has. Needs root; the first time a network, too."""

import os
import shutil
import subprocess
import tempfile

SUITE = "trixie"
MIRROR = "http://deb.debian.org/debian"
PACKAGES = "python3,python3-venv"
NOBODY = 65534
PATIENCE = 300  # seconds for debootstrap, which has to download some 60 MB
# Mounts are of the command's own namespace and go with it; the system's files stay as they are.
SCRIPT = """
set -e
mount -t proc proc "$ROOT/proc"
mount -t tmpfs -o mode=1777 tmpfs "$ROOT/tmp"
cp -r "$GIVEN" "$ROOT/tmp/given"
exec chroot --userspec="$USER_ID:$USER_ID" "$ROOT" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp sh -ec "$COMMAND"
"""


def unavailable():
    """Why there can be no other root on this machine; "" if there can."""
    if os.geteuid() != 0:
        return "needs root"
    missing = [program for program in ("debootstrap", "unshare", "chroot") if shutil.which(program) is None]
    if missing:
        return f"needs {', '.join(missing)}"
    alone = subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True)
    return "" if alone.returncode == 0 else f"needs namespaces: {alone.stderr.strip()}"


def make(folder):
    """A bare system in `folder`/SUITE, of this call or an earlier one. OSError with debootstrap's last words if it cannot be made."""
    root = os.path.join(folder, SUITE)
    if os.path.exists(root):
        return root
    os.makedirs(folder, exist_ok=True)
    made = tempfile.mkdtemp(dir=folder)
    done = subprocess.run(
        [
            *("unshare", "--mount", "timeout", str(PATIENCE), "debootstrap", "--variant=minbase"),
            f"--include={PACKAGES}",
            SUITE,
            made,
            MIRROR,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        shutil.rmtree(made, ignore_errors=True)
        raise OSError(f"debootstrap: {' '.join(done.stdout.splitlines()[-2:])}")
    os.chmod(made, 0o755)
    os.rename(made, root)  # one that is there is whole
    return root


def run(root, command, given, user=NOBODY, timeout=180):
    """Runs a shell command in the system, as this user and with the files of the folder `given` in /tmp/given."""
    return subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", SCRIPT],
        env={"PATH": os.environ["PATH"], "ROOT": root, "GIVEN": given, "USER_ID": str(user), "COMMAND": command},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )

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
# Mounts are of the command's own namespace and go with it; the system's files stay as they are: what AS_ROOT changes is in memory.
SCRIPT = """
set -e
if [ -n "$AS_ROOT" ]; then
  mount -t tmpfs tmpfs "$ROOT/tmp"
  mkdir "$ROOT/tmp/changed" "$ROOT/tmp/work"
  mount -t overlay -o "lowerdir=$ROOT,upperdir=$ROOT/tmp/changed,workdir=$ROOT/tmp/work" overlay "$ROOT"
fi
mount -t proc proc "$ROOT/proc"
mount -t tmpfs -o mode=1777 tmpfs "$ROOT/tmp"
cp -r "$GIVEN" "$ROOT/tmp/given"
if [ -n "$SHARED" ]; then
  mkdir "$ROOT/tmp/shared"
  mount --bind "$SHARED" "$ROOT/tmp/shared"
fi
enter() { chroot "$@" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LC_ALL=C.UTF-8 sh -ec "$COMMAND"; }
if [ -n "$AS_ROOT" ]; then COMMAND=$AS_ROOT enter "$ROOT"; fi
enter --userspec="$USER_ID:$USER_ID" "$ROOT"
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


def run(root, command, given, user=NOBODY, timeout=180, as_root="", shared=""):
    """Runs a shell command in the system, as this user, with the files of the folder `given` in /tmp/given and the folder `shared` as
    /tmp/shared. `as_root` is a command before it; what that installs goes with the call."""
    return subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", SCRIPT],
        env={
            "PATH": os.environ["PATH"],
            "ROOT": root,
            "GIVEN": given,
            "SHARED": shared,
            "USER_ID": str(user),
            "AS_ROOT": as_root,
            "COMMAND": command,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )

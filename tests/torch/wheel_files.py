"""Some files of a wheel at a package index, without the rest of it: of large wheels that the tests read, but never install."""

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile

PATIENCE = 60
GAP = 1 << 18  # bytes between two files that one request may fetch for nothing
TAIL = 1 << 20  # bytes of the list of files, as far as it is guessed


class Unreachable(Exception):
    """The index, or the wheel there, cannot be had; the text says why."""


class _Remote(io.RawIOBase):
    """A file on a server, by requests for ranges; what fetch() has fetched is kept."""

    def __init__(self, url):
        self._url, self._at, self._parts = url, 0, []
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=PATIENCE) as answer:
            self.size = int(answer.headers["Content-Length"])

    def fetch(self, first, end):
        """Fetches the bytes from `first` to before `end`."""
        asked = urllib.request.Request(self._url, headers={"Range": f"bytes={first}-{end - 1}"})
        with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:
            if answer.status != 206:
                raise Unreachable(f"{self._url} is not served in ranges")
            self._parts.append((first, answer.read()))

    def seekable(self):
        return True

    def readable(self):
        return True

    def tell(self):
        return self._at

    def seek(self, offset, whence=io.SEEK_SET):
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        return self._at

    def readinto(self, into):
        count = min(len(into), self.size - self._at)
        if count <= 0:
            return 0
        for first, data in self._parts:
            if first <= self._at < first + len(data):
                got = data[self._at - first : self._at - first + count]
                into[: len(got)] = got
                self._at += len(got)
                return len(got)
        self.fetch(self._at, min(self.size, self._at + max(count, 1 << 16)))
        return self.readinto(into)


def _url(requirement):
    """Where the index has the wheel, as pip finds it."""
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps", "--ignore-installed"]
        command += ["--only-binary", ":all:", "--disable-pip-version-check", "--ignore-requires-python"]
        try:
            ran = subprocess.run(
                [*command, "--report", report, requirement], capture_output=True, text=True, timeout=2 * PATIENCE
            )
        except subprocess.TimeoutExpired as error:
            raise Unreachable(f"pip does not find {requirement} in {2 * PATIENCE} s") from error
        if ran.returncode != 0:
            raise Unreachable(f"pip does not find {requirement}: {ran.stderr.strip()[-300:]}")
        with open(report) as file:
            return json.load(file)["install"][0]["download_info"]["url"]


def extract(requirement, wanted, folder, finish=lambda folder: None):
    """The folder with the wheel's files whose names `wanted` accepts, after `finish`; it is kept for the next time. Unreachable if
    they cannot be had."""
    done = os.path.join(folder, ".complete")
    if os.path.exists(done):
        return folder
    try:
        remote = _Remote(_url(requirement))
        remote.fetch(max(0, remote.size - TAIL), remote.size)
        with zipfile.ZipFile(io.BufferedReader(remote)) as wheel:
            chosen = sorted(
                (one for one in wheel.infolist() if wanted(one.filename)), key=lambda one: one.header_offset
            )
            spans = []
            for one in chosen:
                first, end = one.header_offset, one.header_offset + one.compress_size + len(one.filename) + 512
                if spans and first - spans[-1][1] < GAP:
                    spans[-1][1] = max(end, spans[-1][1])
                else:
                    spans.append([first, end])
            for first, end in spans:
                remote.fetch(first, min(end, remote.size))
            shutil.rmtree(folder, ignore_errors=True)
            for one in chosen:
                wheel.extract(one, folder)
            finish(folder)
    except (OSError, zipfile.BadZipFile) as error:
        raise Unreachable(f"{requirement}: {error}") from error
    with open(done, "w"):
        return folder


def install(folder, requirements):
    """Installs packages, without what they need, into a folder, and returns it; it is kept for the next time. Unreachable if they
    cannot be had."""
    done, wanted = os.path.join(folder, ".complete"), "\n".join(requirements)
    if not _has_text(done, wanted):
        shutil.rmtree(folder, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
        made = subprocess.run([*command, "--target", folder, *requirements], capture_output=True, text=True)
        if made.returncode != 0:
            raise Unreachable(f"pip does not install {', '.join(requirements)}: {made.stderr.strip()[-300:]}")
        with open(done, "w") as file:
            file.write(wanted)
    return folder


def _has_text(path, text):
    try:
        with open(path) as file:
            return file.read() == text
    except OSError:
        return False

"""The guard of the C++ interface has the digest of the C++ headers, so that a program of other headers does not load.

Comments and spaces are left out. The C interface is ABI-stable, and has a list of its own: client/abi/check_c_abi.py. After a change
of a C++ header: test_interface_guard.py --record.
"""

import glob
import hashlib
import os
import re
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "../.."))
GUARD = os.path.join(ROOT, "client/include/tandem/interface_guard.h")
NAME = r"kInterface_[0-9a-f]{12}"


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def headers():
    """The headers whose contents a C++ program and the library must have alike. Others have C alone, or the guard itself."""
    found = []
    for folder in ("client/include/tandem", "common/include/tandem"):
        found += glob.glob(os.path.join(ROOT, folder, "*.h"))
    ours = re.compile(r"/(tandem|version|interface_guard|c_[a-z]+)\.h$")
    return sorted(path for path in found if not ours.search(path))


def digest(texts):
    whole = "\0".join(re.sub(r"//[^\n]*|/\*.*?\*/|\s+", "", text, flags=re.DOTALL) for text in texts)
    return "kInterface_" + hashlib.sha256(whole.encode()).hexdigest()[:12]


class InterfaceGuard(unittest.TestCase):
    def test_has_the_digest_of_the_headers(self):
        recorded = re.search(NAME, read(GUARD)).group()
        self.assertEqual(recorded, digest(read(path) for path in headers()), "a C++ header has changed: --record")

    def test_every_header_with_handles_has_the_guard(self):
        self.assertIn('#include "tandem/interface_guard.h"', read(os.path.join(ROOT, "client/include/tandem/client.h")))
        self.assertGreater(len(headers()), 8)

    def test_comments_and_spaces_do_not_count(self):
        self.assertEqual(digest(["int a;  // one\nint b;"]), digest(["int a; /* 1\n2 */\n\nint   b;"]))
        self.assertNotEqual(digest(["int a;"]), digest(["int b;"]))


if __name__ == "__main__":
    if sys.argv[1:] == ["--record"]:
        text = re.sub(NAME, digest(read(path) for path in headers()), read(GUARD))
        with open(GUARD, "w", encoding="utf-8") as out:
            out.write(text)
    else:
        unittest.main()

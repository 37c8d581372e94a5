"""The C interface from end to end: two ranks written in C, each a separate process (c_client/main.c)."""

import os
import subprocess
import unittest

from harness import BIN, TandemTest, host_only, wait_until


@host_only("it registers memory and fills it as the host backend has it")
class CInterface(TandemTest):
    gpus = 2

    def test_two_ranks(self):
        ranks = [
            subprocess.Popen(
                [os.path.join(BIN, "tandem-test-c-client"), self.daemon.runtime_dir, str(rank)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(2)
        ]
        try:
            outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], "\n".join(outputs))
        wait_until(lambda: self.daemon.ctl_json("stats")["sessions"] == 0, 60, "sessions stay")


if __name__ == "__main__":
    unittest.main()

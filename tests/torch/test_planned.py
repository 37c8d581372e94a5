"""Eight compiled layers share their memory: Inductor plans the outputs of collectives, and these share the group's workspace, which
lies at the same place in every step."""

import unittest

from node import CUDA, Daemon, Ranks

CALL_SITES = 4 * 8 - 1  # a gather and a scatter a layer, forward and backward; the first layer's input has no gradient


class Planned(unittest.TestCase):
    def test_eight_layers_share_memory(self):
        daemon = Daemon(gpus=2)
        self.addCleanup(daemon.stop)
        env = {"TANDEM_TEST_PATIENCE": "120", "TANDEM_TORCH_KERNELS": "python"}
        for told in Ranks(daemon, 2, "rank_planned.py", env=env).results(300):
            self.assertEqual(len(told["fused"]), CALL_SITES)
            self.assertNotIn("", told["fused"])
            self.assertEqual((told["filled"], told["allocates"]), (CALL_SITES, 0), "outputs that no op allocates")
            self.assertGreaterEqual(told["reused"], 8, "layers take each other's buffers")
            first, *later = told["steps"]
            self.assertEqual(len(first), CALL_SITES)
            for step in later:
                self.assertEqual(step, first, "the same plans at the same offsets of the same memory")
            for held in told["segments"][1:]:
                self.assertEqual(held, told["segments"][0])
            plans = {plan for _, plan, _, _ in first}
            self.assertLess(len(plans), 8, "layers share their plans, too")
            each = sum(workspace for _, _, workspace, _ in first)
            print(f"\n{told['workspace']} bytes of workspace; one buffer a call site: {each}", flush=True)
            if not CUDA:
                self.assertLess(4 * told["workspace"], each)


if __name__ == "__main__":
    unittest.main()

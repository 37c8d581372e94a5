"""PyTorch's own tests of symmetric memory and async-TP, and the checks here that show the same of Tandem. Programs move over by that
list, so that every name in it must be there."""

import os
import re
import unittest

from node import HERE

# test/distributed/test_symmetric_memory.py, test/distributed/tensor/parallel/test_micro_pipeline_tp.py and
# test/distributed/test_inductor_collectives.py of PyTorch: its test, and ours.
OURS = {
    "SymmetricMemoryTest.test_is_symm_mem_tensor": "rank_memory.test_peers_buffers",
    "SymmetricMemoryTest.test_get_signal_pad": "rank_memory.test_own_words_of_the_pad_do_not_touch_data",
    "SymmetricMemoryTest.test_allow_overlapping_devices": "rank_ops.test_it_is_served_by_tandem",  # two engines a GPU
    "SymmetricMemoryTest.test_low_contention_all_gather": "rank_overlapped.test_low_contention",
    "SymmetricMemoryTest.test_low_contention_reduce_scatter": "rank_overlapped.test_low_contention",
    "SymmetricMemoryTest.test_subgroup": "rank_memory.test_several_groups",
    "SymmetricMemoryTest.test_rendezvous_on_overlapping_subgroups": "rank_memory.test_several_groups",
    "SymmetricMemoryTest.test_get": "rank_memory.test_peers_buffers",
    "SymmetricMemoryTest.test_stream_serialization_concurrent_threads": "rank_kernels.test_threads_share_the_table",
    "SymmetricMemoryTest.test_stream_serialization_cuda_graph_capture": "rank_captured.test_every_op",
    "AsyncTPTest.test_fused_all_gather_matmul": "rank_install.test_fused_all_gather_matmul",
    "AsyncTPTest.test_fused_all_gather_matmul_native": "rank_overlapped.test_chunks_that_arrive_while_the_product_runs",
    "AsyncTPTest.test_fused_all_gather_scaled_matmul": "rank_install.test_fused_all_gather_scaled_matmul",
    "AsyncTPTest.test_fused_matmul_reduce_scatter": "rank_install.test_fused_matmul_reduce_scatter",
    "AsyncTPTest.test_fused_scaled_matmul_reduce_scatter": "rank_install.test_fused_scaled_matmul_reduce_scatter",
    "SymmMemEmptySetDeviceTest.test_empty_strided_p2p_persistent": "rank_memory.test_persistent_names",
    "SymmMemEmptySetDeviceTest.test_rendezvous_after_group_name_recycled": "rank_plans.test_subgroups_and_recycled_names",
    "SymmMemNegativeTest.test_barrier_timeout": "rank_memory.test_a_barrier_without_a_rank_ends",
    "SymmMemNegativeTest.test_put_signal_timeout": "rank_memory.test_signals_and_their_limits",
    "SymmMemNegativeTest.test_wait_signal_timeout": "rank_memory.test_signals_and_their_limits",
    "SymmMemCollectiveTest.test_one_shot_all_reduce": "rank_install.test_all_reduces",
    "SymmMemCollectiveTest.test_two_shot_all_reduce": "rank_install.test_all_reduces",
    "SymmMemCollectiveTest.test_multimem_all_reduce": "rank_install.test_all_reduces",
    "SymmMemCollectiveTest.test_reduce_scatter": "rank_ops.test_collectives_of_all_types",
    "SymmMemCollectiveTest.test_multimem_all_gather": "rank_ops.test_collectives_of_all_types",
    "LoweringTest.test_lowering_one_shot_all_reduce": "rank_pass.test_small_all_reduces",
    "LoweringTest.test_comm_buffer_reuse": "test_planned.test_eight_layers_share_memory",
    "LoweringTest.test_output_buffer_reuse": "test_planned.test_eight_layers_share_memory",
    "SymmMemSingleProcTest.test_stream_write_value32": "rank_memory.test_words_in_stream_order",
    "SymmMemSingleProcTest.test_memset32": "rank_memory.test_words_in_stream_order",
    "SymmMemPoolTest.test_mempool_tensor_factory": "rank_memory.test_mem_pool",
    "SymmMemPoolTest.test_mempool_compute_ops": "rank_memory.test_mem_pool",
    "SymmMemPoolTest.test_mempool_storage_reuse": "rank_memory.test_mem_pool",
    "MicroPipelineTPTest.test_find_all_gather_patterns": "rank_pass.test_gather_then_product",
    "MicroPipelineTPTest.test_find_reduce_scatter_patterns": "rank_pass.test_product_then_scatter",
    "MicroPipelineTPTest.test_fuse_all_gather_matmul": "rank_pass.test_gather_for_several_products",
    "MicroPipelineTPTest.test_fuse_all_gather_scaled_matmul": "rank_pass.test_fp8_products_behind_a_gather",
    "MicroPipelineTPTest.test_fuse_matmul_reduce_scatter": "rank_pass.test_product_then_scatter",
    "MicroPipelineTPTest.test_fuse_scaled_matmul_reduce_scatter": "rank_pass.test_fp8_products",
    "MicroPipelineTPTest.test_fuse_scaled_matmul_reduce_scatter_rowwise_scales_reshape_mm_reshape": (
        "rank_pass.test_fp8_products_that_are_scattered_inside"
    ),
    "MicroPipelineTPTest.test_dtensor_seq_par": "rank_pass.test_dtensor_sequence_parallel",
    "MicroPipelineTP4GPUTest.test_extra_collectives": "rank_pass.test_every_collective_that_stays_has_its_reason",
    "TestCollectivesMultiProc.test_allreduce_inductor_cudagraph_trees": "rank_captured.test_reduce_overhead",
    "TestCollectivesMultiProc.test_allgather_output_buffer_reuse": "test_planned.test_eight_layers_share_memory",
    "TestCollectivesMultiProc.test_eager_allreduce_inductor_wait": "rank_ops.test_functional_collectives_compose",
}


class Upstream(unittest.TestCase):
    def test_each_has_a_check_here(self):
        for theirs, ours in OURS.items():
            program, check = ours.split(".")
            with open(os.path.join(HERE, program + ".py")) as file:
                self.assertRegex(file.read(), rf"(?m)^ *def {check}\(", theirs)

    def test_each_program_is_run(self):
        with open(os.path.join(HERE, "test_ops.py")) as file:
            run = set(re.findall(r'program = "(\w+)\.py"', file.read()))
        programs = {ours.split(".")[0] for ours in OURS.values()}
        self.assertEqual({one for one in programs if one.startswith("rank_")} - run, set())


if __name__ == "__main__":
    unittest.main()

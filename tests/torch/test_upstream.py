"""PyTorch's own tests of symmetric memory, async-TP and compiled collectives: for each the checks here of the same behaviour, or why
Tandem has none. Programs move over by these tables, so that every name in them must be there, and be run."""

import os
import re
import unittest

from node import HERE

# PyTorch's test (test/distributed/test_symmetric_memory.py, tensor/parallel/test_micro_pipeline_tp.py and
# test_inductor_collectives.py), and ours. A comment says where ours differs.
OURS = {
    "SymmetricMemoryTest.test_is_symm_mem_tensor": "rank_memory.test_peers_buffers",
    "SymmetricMemoryTest.test_large_alloc": "rank_handles.test_two_gibibytes",
    "SymmetricMemoryTest.test_get_signal_pad": "rank_handles.test_signal_pads_are_tensors",
    # run_cuda puts two ranks on a GPU.
    "SymmetricMemoryTest.test_allow_overlapping_devices": "rank_handles.test_elements_of_a_peer",
    "SymmetricMemoryTest.test_rendezvous_custom_backend": "rank_handles.test_a_backend_that_torch_does_not_know",
    "SymmetricMemoryTest.test_pg_rendezvous_abort_after": "rank_handles.test_memory_after_its_process_group",
    "SymmetricMemoryTest.test_low_contention_all_gather": "rank_install.test_low_contention",
    "SymmetricMemoryTest.test_low_contention_reduce_scatter": "rank_install.test_low_contention",
    "SymmetricMemoryTest.test_subgroup": "rank_handles.test_a_tensor_in_a_subgroup_and_in_all",
    "SymmetricMemoryTest.test_rendezvous_after_strict_subgroup": "rank_handles.test_groups_that_leave_ranks_out",
    "SymmetricMemoryTest.test_rendezvous_on_overlapping_subgroups": "rank_handles.test_groups_that_leave_ranks_out",
    "SymmetricMemoryTest.test_get": ("rank_handles.test_elements_of_a_peer", "rank_handles.test_views_have_handles"),
    "SymmetricMemoryTest.test_stream_serialization_barrier_two_streams": "rank_streams.test_barriers_on_two_streams",
    "SymmetricMemoryTest.test_stream_serialization_put_wait_two_streams": "rank_streams.test_signals_on_two_streams",
    "SymmetricMemoryTest.test_stream_serialization_waits_on_pad_kernel_only": (
        "rank_streams.test_a_barrier_waits_for_its_own_stream_alone"
    ),
    "SymmetricMemoryTest.test_stream_serialization_concurrent_threads": (
        "rank_handles.test_threads_meet_at_one_barrier",
        "rank_streams.test_threads_with_streams_of_their_own",
    ),
    "SymmetricMemoryTest.test_stream_serialization_one_shot_all_reduce": "rank_streams.test_one_plan_on_two_streams",
    # Ours of ops: barriers cannot be captured.
    "SymmetricMemoryTest.test_stream_serialization_capture_without_replay": (
        "rank_captured.test_a_capture_that_is_not_replayed"
    ),
    "SymmetricMemoryTest.test_stream_serialization_cuda_graph_forked_streams": (
        "rank_captured.test_streams_that_part_in_a_capture"
    ),
    "AsyncTPTest.test_fused_all_gather_matmul": "rank_install.test_fused_all_gather_matmul",
    # The daemon chooses the kernel.
    "AsyncTPTest.test_fused_all_gather_matmul_native": "rank_install.test_products_of_many_rows",
    "AsyncTPTest.test_fused_all_gather_matmul_native_graph_capture": "rank_captured.test_every_op",
    "AsyncTPTest.test_fused_all_gather_scaled_matmul": "rank_install.test_fused_all_gather_scaled_matmul",
    "AsyncTPTest.test_fused_matmul_reduce_scatter": "rank_install.test_fused_matmul_reduce_scatter",
    "AsyncTPTest.test_fused_matmul_reduce_scatter_bfloat16_custom_reduce": (
        "rank_ops.test_matmul_reduce_scatter",
        "rank_captured.test_every_op",
    ),
    "AsyncTPTest.test_fused_scaled_matmul_reduce_scatter": "rank_install.test_fused_scaled_matmul_reduce_scatter",
    "AsyncTPTest.test_optimal_layout": (
        "rank_install.test_fused_all_gather_matmul",
        "rank_install.test_fused_matmul_reduce_scatter",
    ),
    # Theirs also without torch.cuda.set_device(); ours is on the current device.
    "SymmMemEmptySetDeviceTest.test_empty_strided_p2p": "rank_handles.test_a_handle_outlives_its_tensor",
    # A second tensor of a name shares the memory of the first; theirs raises.
    "SymmMemEmptySetDeviceTest.test_empty_strided_p2p_persistent": "rank_handles.test_named_memory_has_handles",
    "SymmMemEmptySetDeviceTest.test_rendezvous_after_group_name_recycled": (
        "rank_handles.test_names_that_later_groups_have_again"
    ),
    "SymmMemNegativeTest.test_barrier_timeout": "rank_memory.test_a_barrier_without_a_rank_ends",
    "SymmMemNegativeTest.test_put_signal_timeout": "rank_memory.test_signals_and_their_limits",
    "SymmMemNegativeTest.test_wait_signal_timeout": "rank_memory.test_signals_and_their_limits",
    "SymmMemNegativeTest.test_barrier_channel_out_of_bounds": "rank_handles.test_bounds_of_signals",
    "SymmMemNegativeTest.test_put_wait_signal_channel_out_of_bounds": "rank_handles.test_bounds_of_signals",
    "SymmMemNegativeTest.test_put_wait_signal_rank_out_of_bounds": "rank_handles.test_bounds_of_signals",
    "SymmMemCollectiveTest.test_multimem_all_reduce": (
        "rank_install.test_all_reduces_are_bit_equal_and_stay_in_their_tensor"
    ),
    "SymmMemCollectiveTest.test_multimem_one_shot_all_reduce": (
        "rank_install.test_all_reduces_are_bit_equal_and_stay_in_their_tensor"
    ),
    "SymmMemCollectiveTest.test_one_shot_all_reduce": (
        "rank_install.test_all_reduces",
        "rank_install.test_all_reduces_are_bit_equal_and_stay_in_their_tensor",
    ),
    "SymmMemCollectiveTest.test_two_shot_all_reduce": (
        "rank_install.test_all_reduces_are_bit_equal_and_stay_in_their_tensor"
    ),
    "SymmMemCollectiveTest.test_reduce_scatter": "rank_install.test_scatters_and_gathers_of_parts",
    # Ours takes parts that are no multiple of 16 bytes.
    "SymmMemCollectiveTest.test_reduce_scatter_corner_cases": "rank_install.test_scatters_and_gathers_of_parts",
    "SymmMemCollectiveTest.test_multimem_all_gather": "rank_install.test_scatters_and_gathers_of_parts",
    # Ours also takes a graph's input.
    "LoweringTest.test_lowering_one_shot_all_reduce": "rank_patterns.test_small_all_reduces_of_all_sources",
    "LoweringTest.test_comm_buffer_reuse": "rank_lowered.test_layers_share_buffers",
    "LoweringTest.test_output_buffer_reuse": (
        "rank_lowered.test_layers_share_buffers",
        "test_planned.test_eight_layers_share_memory",
    ),
    "LoweringTest.test_output_buffer_reuse_copy_variant": (
        "rank_patterns.test_all_reduces_of_symm_mem",
        "rank_lowered.test_nothing_is_overwritten_that_is_used_again",
    ),
    # Inputs are read where they lie.
    "LoweringTest.test_external_allocation_fallback": "rank_lowered.test_nothing_is_overwritten_that_is_used_again",
    "LoweringTest.test_comm_buffer_inplace_prevention": "rank_lowered.test_nothing_is_overwritten_that_is_used_again",
    "SymmMemCleanupTest.test_free_waits_for_pending_work": "rank_streams.test_memory_goes_behind_its_last_kernel",
    "SymmMemSingleProcTest.test_stream_write_value32": (
        "rank_memory.test_words_in_stream_order",
        "rank_handles.test_bounds_of_words",
    ),
    "SymmMemSingleProcTest.test_memset32": "rank_handles.test_bounds_of_words",
    "SymmMemSingleProcTest.test_is_symm_mem_enabled_for_group": "rank_handles.test_groups_without_memory",
    "SymmMemPoolTest.test_mempool_tensor_factory": "rank_pooled.test_torchs_own_ops_in_the_pool",
    "SymmMemPoolTest.test_mempool_compute_ops": "rank_pooled.test_torchs_own_ops_in_the_pool",
    "SymmMemPoolTest.test_mempool_recycled_alloc_signal_pad": (
        "rank_handles.test_memory_that_is_used_again_has_clear_pads",
        "rank_pooled.test_pieces_of_the_pool_that_are_used_again",
    ),
    "SymmMemPoolTest.test_mempool_large_alloc_barrier": "rank_pooled.test_pieces_of_the_pool_that_are_used_again",
    "SymmMemPoolTest.test_mempool_storage_reuse": "rank_memory.test_mem_pool",
    "SymmMemPoolTest.test_symm_mem_empty_storage_reuse": "rank_handles.test_named_memory_has_handles",
    "MicroPipelineTPTest.test_find_all_gather_patterns": (
        "rank_patterns.test_every_gathered_dimension",
        "rank_patterns.test_fp8_that_is_put_together_as_bytes",
    ),
    "MicroPipelineTPTest.test_find_reduce_scatter_patterns": "rank_patterns.test_every_scattered_dimension",
    "MicroPipelineTPTest.test_fuse_all_gather_matmul": "rank_patterns.test_every_gathered_dimension",
    "MicroPipelineTPTest.test_fuse_all_gather_scaled_matmul": "rank_patterns.test_fp8_that_is_put_together_as_bytes",
    "MicroPipelineTPTest.test_fuse_matmul_reduce_scatter": "rank_patterns.test_every_scattered_dimension",
    "MicroPipelineTPTest.test_fuse_scaled_matmul_reduce_scatter": (
        "rank_pass.test_fp8_products",
        "rank_patterns.test_fp8_products_of_viewed_rows_are_scattered",
    ),
    "MicroPipelineTPTest.test_fuse_scaled_matmul_reduce_scatter_rowwise_scales_reshape_mm_reshape": (
        "rank_patterns.test_fp8_products_of_viewed_rows_are_scattered"
    ),
    "MicroPipelineTPTest.test_dtensor_seq_par": "rank_pass.test_dtensor_sequence_parallel",
    "MicroPipelineTP4GPUTest.test_extra_collectives": "rank_patterns.test_only_the_named_group_is_fused",
    "TestCollectivesMultiProc.test_allreduce_inductor": (
        "rank_patterns.test_products_that_are_put_together_before_the_sum"
    ),
    "TestCollectivesMultiProc.test_allreduce_inductor_cudagraph_trees": "rank_captured.test_graph_trees_with_the_pass",
    "TestCollectivesMultiProc.test_c10d_functional_tagged_pt2_compliant": (
        "rank_patterns.test_the_ops_are_marked_for_tracing"
    ),
    "TestCollectivesMultiProc.test_eager_allreduce_inductor_wait": (
        "rank_patterns.test_waits_on_either_side_of_a_graph"
    ),
    "TestCollectivesMultiProc.test_inductor_allreduce_eager_wait": (
        "rank_patterns.test_waits_on_either_side_of_a_graph"
    ),
    "TestCollectivesMultiProc.test_eager_async_allreduce_inductor_wait": (
        "rank_patterns.test_waits_on_either_side_of_a_graph"
    ),
    "TestCollectivesMultiProc.test_allreduce_input_buffer_reuse": (
        "rank_lowered.test_nothing_is_overwritten_that_is_used_again"
    ),
    # From here on collectives without a product, which the pass leaves as they are.
    "TestCollectivesMultiProc.test_permute_tensor": "rank_patterns.test_collectives_beside_products_stay_right",
    "TestCollectivesMultiProc.test_allgather_output_buffer_reuse": (
        "rank_patterns.test_collectives_beside_products_stay_right"
    ),
    # gloo gathers no scalars of a graph: ours is of one element.
    "TestCollectivesMultiProc.test_allgather_scalar_tensor_input": (
        "rank_patterns.test_collectives_beside_products_stay_right"
    ),
    "TestCollectivesMultiProc.test_allgather_contiguous_input": (
        "rank_patterns.test_collectives_beside_products_stay_right"
    ),
    "TestCollectivesMultiProc.test_allgather_into_tensor_inductor": (
        "rank_patterns.test_collectives_beside_products_stay_right"
    ),
    "TestCollectivesMultiProc.test_reduce_scatter_tensor_inductor": "rank_pass.test_product_then_scatter",
    "TestCollectivesMultiProc.test_all_to_all_single_inductor": (
        "rank_patterns.test_collectives_beside_products_stay_right"
    ),
    "TestCollectivesMultiProc.test_all_to_all_single_inductor_split_sizes_none": (
        "rank_programs.test_other_collectives_have_their_reason"
    ),
    "TestCollectivesInductor.test_inductor_single_op": "rank_lowered.test_nothing_is_overwritten_that_is_used_again",
    "TestCollectivesInductor.test_inductor_steal_buffer": "rank_lowered.test_nothing_is_overwritten_that_is_used_again",
    "TestCollectivesInductor.test_inductor_doesnt_mutate_shared": (
        "rank_lowered.test_nothing_is_overwritten_that_is_used_again"
    ),
    "TestCollectivesInductor.test_inductor_all_gather_coalesced": (
        "rank_patterns.test_collectives_beside_products_stay_right"
    ),
    "TestCollectivesInductor.test_inductor_reduce_scatter_coalesced": (
        "rank_patterns.test_collectives_beside_products_stay_right"
    ),
    "TestCollectivesInductor.test_dynamo_rewrite_dist_all_gather": (
        "rank_patterns.test_collectives_that_write_their_arguments"
    ),
    "TestCollectivesInductor.test_dynamo_rewrite_dist_reduce_scatter": (
        "rank_patterns.test_collectives_that_write_their_arguments"
    ),
    "TestCollectivesInductor.test_dynamo_rewrite_dist_allreduce": (
        "rank_patterns.test_collectives_that_write_their_arguments"
    ),
    "TestCollectivesInductor.test_meta": "rank_patterns.test_the_ops_are_marked_for_tracing",
    "TestCollectivesInductor.test_all_gather_bucket": "rank_lowered.test_collectives_that_stay_are_bucketed",
    "TestCollectivesInductor.test_reduce_scatter_bucket": "rank_lowered.test_collectives_that_stay_are_bucketed",
    "TestCollectivesInductor.test_all_reduce_bucket": "rank_lowered.test_collectives_that_stay_are_bucketed",
    "TestCollectivesInductor.test_reorder_respects_wait_dep": "rank_patterns.test_a_gather_of_what_was_gathered",
}

# Why there is nothing of the kind, and PyTorch's tests of it.
NOT_OURS = {
    "NVLink multicast is not used": (
        "SymmetricMemoryTest.test_has_multicast_support",
        "SymmetricMemoryTest.test_low_contention_all_gather_ce_multicast",
        "SymmetricMemoryTest.test_low_contention_all_gather_ce_multicast_out",
        "SymmetricMemoryTest.test_cuda_multimem_barrier_kernel",
        "AsyncTPTest.test_multimem_all_gather_matmul",
        "SymmetricMemoryTestCudaGraph.test_low_contention_all_gather_ce_multicast_cuda_graph",
        "LoweringTest.test_low_contention_all_gather_planned_output_codegen",
    ),
    "the backend is the daemon's": ("SymmetricMemoryTest.test_get_backend",),
    "the daemon finds the links: tandemctl topology": ("SymmetricMemoryTest.test_cuda_nvlink_connectivity_detection",),
    "pads have one size; a handle has it": (
        "SymmetricMemoryTest.test_get_signal_pad_size",
        "SymmetricMemoryTest.test_set_signal_pad_size",
        "SymmetricMemoryTest.test_set_signal_pad_size_with_allocation",
    ),
    "empty() and rendezvous() put no work on a stream": (
        "SymmetricMemoryTest.test_alloc_rendezvous_on_current_stream",
    ),
    "ranks meet over the group's store and the daemon, not by collectives": (
        "SymmetricMemoryTest.test_rendezvous_via_pg_allgather",
    ),
    "handles are objects of Python": ("SymmetricMemoryTest.test_dispatcher_torchbind_symmetric_memory",),
    "a capture takes no barriers: rank_streams.test_a_capture_takes_no_signals": (
        "SymmetricMemoryTest.test_stream_serialization_graph_dependency",
        "SymmetricMemoryTest.test_stream_serialization_cuda_graph_capture",
    ),
    "no reduction has its result on one rank alone": ("SymmMemCollectiveTest.test_multimem_one_shot_reduce_out",),
    "the pass makes no low-contention collectives": (
        "LoweringTest.test_low_contention_all_gather_out_rewrite_preserves_out",
    ),
    "ops take any tensors: none is made symmetric for them": ("LoweringTest.test_custom_op_symm_mem_realization",),
    "generated code has no allocations of symmetric memory": (
        "LoweringTest.test_symm_mem_alloc_id_no_collision_after_reseed",
    ),
    "not tried: a failed context ends the rank's group": ("SymmMemCleanupTest.test_free_after_device_assert",),
    "not tried: groups of torchcomms": ("TorchCommsCudaSymmMemTest.test_cuda_symm_mem_rendezvous_nccl",),
    "communicators of NCCL are the daemon's own": (
        "ExternalNcclCommRegistrationTest.test_register_unregister_real_comm",
        "ExternalNcclCommRegistrationTest.test_register_holds_and_drops_comm_ref",
        "ExternalNcclCommRegistrationTest.test_context_manager_real_comm",
        "ExternalNcclCommRegistrationTest.test_register_null_pointer_raises",
    ),
    "every collective with a product is fused, also one that computation could hide": (
        "MicroPipelineTPTest.test_get_unexposed_collectives",
    ),
    "torch's own, before the pass: Dynamo's tracing and the partition into forward and backward": (
        "TestCollectivesMultiProc.test_all_to_all_recompute_is_always_banned",
        "TestCollectivesInductor.test_dynamo_trace_allreduce",
        "TestCollectivesInductor.test_dynamo_trace_all_gather_tensor",
        "TestCollectivesInductor.test_dynamo_trace_all_gather_tensor_pg",
        "TestCollectivesInductor.test_dynamo_rewrite_dist_all_gather_list",
        "TestCollectivesInductor.test_dynamo_rewrite_dist_all_gather_args_match",
        "TestCollectivesInductor.test_dynamo_rewrite_dist_all_to_all_single",
        "TestCollectivesInductor.test_dynamo_rewrite_dist_allreduce_reduce_op",
        "TestCollectivesInductor.test_dynamo_get_world_group",
        "TestCollectivesInductor.test_dynamo_support_collective_op_with_async_op_False",
        "TestCollectivesInductor.test_dynamo_graphbreaks_unsupported_async_op",
        "TestCollectivesInductor.test_dynamo_pg_var",
        "TestCollectivesInductor.test_dynamo_trace_reduce_scatter_tensor",
        "TestCollectivesInductor.test_dynamo_trace_allgather_coalesced",
        "TestCollectivesInductor.test_backwards",
        "TestSyncDecisionCrossRanks.test_sync_decision_cross_ranks",
    ),
    "torch's own, behind the pass: Inductor's buckets, order and estimates of what stays": (
        "TestCollectivesInductor.test_inductor_doesnt_mutate_shared_graph_partition",
        "TestCollectivesInductor.test_reorder_peak_memory",
        "TestCollectivesInductor.test_all_gather_bucket_path",
        "TestCollectivesInductor.test_all_gather_bucket_multidtype",
        "TestCollectivesInductor.test_reorder_peak_memory_bucketed",
        "TestSyncDecisionCrossRanks.test_all_gather_comm_analysis",
        "TestSyncDecisionCrossRanks.test_reduce_scatter_comm_analysis",
        "TestSyncDecisionCrossRanks.test_all_reduce_comm_analysis",
        "TestSyncDecisionCrossRanks.test_all_to_all_comm_analysis",
    ),
}


def checks():
    """(their test, our program, our check) of the first table."""
    for theirs, ours in OURS.items():
        for one in (ours,) if isinstance(ours, str) else ours:
            yield theirs, *one.split(".")


# They run the programs.
MODULES = ("test_ops", "test_compile")


def text_of(name):
    with open(os.path.join(HERE, name)) as file:
        return file.read()


class Upstream(unittest.TestCase):
    def test_each_has_a_check_here(self):
        for theirs, program, check in checks():
            marked = r"@(?:check|once)\n" if program.startswith("rank_") else " *"
            found = re.search(rf"(?m)^{marked}def {check}\(", text_of(program + ".py"))
            self.assertIsNotNone(found, f"{theirs}: no {program}.{check}")

    def test_each_program_is_run(self):
        run = {
            program for module in MODULES for program in re.findall(r'program = "(\w+)\.py"', text_of(module + ".py"))
        }
        programs = {program for _, program, _ in checks() if program.startswith("rank_")}
        self.assertEqual(programs - run, set())

    def test_those_of_gpus_alone_are_run_there(self):
        alone = r'skipUnless\(CUDA, "needs GPUs"\)\nclass (\w+)\(Checks, unittest.TestCase\)'
        kinds = [(module, kind) for module in MODULES for kind in re.findall(alone, text_of(module + ".py"))]
        self.assertGreater(len(kinds), 1)
        parts = text_of("run_cuda")
        for module, kind in kinds:
            self.assertRegex(parts, rf'"[^"]*\b{module}\.{kind}\b[^"]*"')

    def test_each_of_theirs_is_in_one_table(self):
        others = [theirs for tests in NOT_OURS.values() for theirs in tests]
        self.assertEqual(len(others), len(set(others)))
        self.assertEqual(set(others) & set(OURS), set())
        for reason in NOT_OURS:
            for program, check in re.findall(r"\b(rank_\w+)\.(test_\w+)", reason):
                self.assertIn(f"\ndef {check}(", text_of(program + ".py"))


if __name__ == "__main__":
    unittest.main()

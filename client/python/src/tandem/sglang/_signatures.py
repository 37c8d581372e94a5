"""The functions of SGLang that Tandem stands around or relies on, as SGLang's versions have them.

A test compares the table with each version's wheel. At run time the version does not count: Tandem stands around methods that have
one of these signatures, and around none where one has another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _recorded

__all__ = ["GATE", "GROUP", "NORM", "RECORDED", "difference", "function_difference"]

GROUP = "srt.distributed.parallel_state.GroupCoordinator."
NORM = "srt.layers.flashinfer_comm_fusion.flashinfer_allreduce_residual_rmsnorm"
GATE = "srt.layers.layer_boundary.residual.add_norm.flashinfer_ar_fusion_applies"

RECORDED: _recorded.Table = {
    "0.5.23": {
        GROUP + "all_reduce": "self, input_",
        GROUP + "_all_reduce_out_place": "self, input_, outplace_all_reduce_method",
        GROUP + "_all_reduce_in_place": "self, input_",
        GROUP + "_all_gather_into_tensor": "self, output, input",
        GROUP + "_reduce_scatter_tensor": "self, output, input",
        GROUP + "destroy": "self",
        NORM: "input_tensor, residual, weight, eps=1e-06, max_token_num=2048, use_oneshot=None, "
        "trigger_completion_at_end=False, fp32_acc=True, use_attn_tp_group=True",
        GATE: "batch_size",
        "srt.layers.flashinfer_comm_fusion.resolve_fusion_group": "*, use_attn_tp_group",
        "srt.layers.flashinfer_comm_fusion.uses_cutedsl_ar_fusion": "",
        "srt.layers.dp_attention.is_dp_attention_enabled": "",
        "srt.layers.layernorm._forward_with_allreduce_fusion": "norm_module, x, residual, post_residual_addition, weight, "
        "use_attn_tp_group=True",
        "srt.plugins.load_plugins": "",
        "srt.plugins.hook_registry.HookRegistry.register": "cls, target, hook, hook_type=HookType.AFTER, *, source=None",
    },
}


def function_difference(name: str, function: Callable[..., Any]) -> str:
    """How a function of this name differs from all that are recorded; "" where it is as one of them."""
    return _recorded.difference(name, function, _recorded.recorded(RECORDED, name))


def difference(kind: type, names: tuple[str, ...]) -> str:
    """How a class of groups differs from all that are recorded, in its methods of these names; "" where it is as one of them."""
    return _recorded.class_difference(kind, names, lambda name: _recorded.recorded(RECORDED, GROUP + name))

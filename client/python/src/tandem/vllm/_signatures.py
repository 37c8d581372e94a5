"""The functions of vLLM that Tandem overrides or relies on, as vLLM's versions have them.

A test compares the table with each version's wheel. At run time the version does not count: a class whose methods have one of these
signatures is served, and another one stays vLLM's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _recorded

__all__ = ["RECORDED", "difference", "function_difference"]

_BASE = "distributed.device_communicators.base_device_communicator.DeviceCommunicatorBase."
_CPU = "distributed.device_communicators.cpu_communicator.CpuCommunicator."
_CUDA = "distributed.device_communicators.cuda_communicator.CudaCommunicator."
_STATE = "distributed.parallel_state."

_GEMMA_NORM = "model_executor.layers.fused_allreduce_gemma_rms_norm.fused_allreduce_gemma_rms_norm"
_NORM = "models.common.ops.fused_allreduce_rms_norm.fused_allreduce_rms_norm"
_NORM_BEFORE = "models.deepseek_v32.nvidia.fused_ops.fused_allreduce_rms_norm"

_QUANT = "model_executor.layers.quantization.input_quant_fp8.QuantFP8."

_INIT = "self, cpu_group, device=None, device_group=None, unique_name=''"
_ANY_INIT = _INIT + ", global_ranks=None, global_world_size=None"
_DIM = "self, input_, dim=-1"
_NORMED = "hidden_states, residual, norm"
_SLEEPING = ("suspend", "resume", "checkpoint_prepare", "checkpoint_restore")

_IN_ALL = {
    _BASE + "all_reduce": "self, input_",
    _BASE + "all_gather": _DIM,
    _BASE + "reduce_scatter": _DIM,
    _BASE + "destroy": "self",
    _CPU + "all_reduce": "self, input_",
    _CPU + "all_gather": _DIM,
    _CUDA + "all_reduce": "self, input_",
    _CUDA + "all_gather": _DIM,
    _CUDA + "reduce_scatter": _DIM,
    _CUDA + "destroy": "self",
    _STATE + "GroupCoordinator.all_reduce": "self, input_",
    _STATE + "GroupCoordinator.all_gather": _DIM,
    _STATE + "GroupCoordinator.reduce_scatter": _DIM,
    "platforms.cpu.CpuPlatform.get_device_communicator_cls": "cls",
    "platforms.cuda.CudaPlatformBase.get_device_communicator_cls": "cls",
    "plugins.load_general_plugins": "",
    "utils.import_utils.resolve_obj_by_qualname": "qualname",
    "config.vllm.get_current_vllm_config_or_none": "",
    "distributed.parallel_state.get_tp_group": "",
    _GEMMA_NORM: _NORMED,
    "compilation.passes.pass_manager.PostGradPassManager.configure": "self, config",
    "compilation.passes.vllm_inductor_pass.VllmInductorPass.__init__": "self, config",
    "distributed.parallel_state.all_reduce": "tensor, group_name",
    "_custom_ops.scaled_fp8_quant": "input, scale=None, num_token_padding=None, scale_ub=None, use_per_token_if_dynamic=False, "
    "output=None, group_shape=None",
    _QUANT + "forward_cuda": "self, x, scale=None, scale_ub=None, use_triton=False",
    _QUANT + "forward_native": "self, x, scale=None, scale_ub=None, use_triton=False",
    "ir.ops.layernorm.fused_add_rms_norm": "x, x_residual, weight, epsilon, variance_size=None",
    "platforms.cpu.CpuPlatform.check_and_update_config": "cls, vllm_config",
    "platforms.cuda.CudaPlatformBase.check_and_update_config": "cls, vllm_config",
}

RECORDED: _recorded.Table = {
    "0.25.1": {
        **_IN_ALL,
        _BASE + "__init__": _ANY_INIT,
        _CPU + "__init__": _INIT,
        _CUDA + "__init__": _ANY_INIT + ", tcp_store_group=None",
        _NORM_BEFORE: _NORMED,
    },
    "0.33.0": {
        **_IN_ALL,
        _BASE + "__init__": _ANY_INIT + ", use_all2all=False",
        _CPU + "__init__": _INIT + ", use_all2all=False",
        _CUDA + "__init__": _ANY_INIT + ", tcp_store_group=None, use_all2all=False",
        _CUDA + "custom_all_gather": "self, input_",
        _CUDA + "custom_reduce_scatter": "self, input_",
        **{kind + name: "self" for kind in (_BASE, _CUDA) for name in _SLEEPING},
        _STATE + "suspend_device_comms": "",
        _STATE + "resume_device_comms": "",
        _STATE + "_apply_to_device_comms": "action",
        _NORM: _NORMED,
    },
}

_OVERRIDDEN = ("all_reduce", "all_gather", "reduce_scatter", "destroy")
_OPTIONAL = ("custom_all_gather", "custom_reduce_scatter", *_SLEEPING)


def _known(name: str) -> set[str]:
    """The signatures that a method of communicators has in any version and class."""
    return {text for table in RECORDED.values() for full, text in table.items() if full.endswith(f"Communicator.{name}")} | (
        _recorded.recorded(RECORDED, _BASE + name)
    )


def function_difference(name: str, function: Callable[..., Any]) -> str:
    """How a function or method of this name differs from all that are recorded; "" where it is as one of them."""
    return _recorded.difference(name, function, _recorded.recorded(RECORDED, name))


def difference(kind: type) -> str:
    """How a class of communicators differs from all that are recorded; "" where it is as one of them."""
    return _recorded.class_difference(kind, _OVERRIDDEN, _known, _OPTIONAL)

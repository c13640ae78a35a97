"""Parameters whose elements SGLang put in another order after loading: bytes of a checkpoint must not go there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

_EXPERTS = ("w13_weight", "w2_weight")


def rearranged_names(model: torch.nn.Module, *, moved: bool) -> frozenset[str]:
    """The names of those parameters, which nothing else about them may tell; ``moved``: see :func:`experts_move`."""
    return frozenset(
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        for name in _names(module, moved=moved)
    )


def experts_move() -> bool:
    """Whether an expert's place in this server's stacks may be another than its number."""
    from sglang.srt.runtime_context import get_exec  # type: ignore[import-not-found]

    moe = get_exec().moe
    return bool(moe.enable_eplb or moe.ep_num_redundant_experts or moe.init_expert_location != "trivial")


def _names(module: Any, *, moved: bool) -> Iterator[str]:
    own = [name for name, _ in module.named_parameters(recurse=False)]
    if getattr(module, "use_intel_amx_backend", False):  # packed for the matrix units of the processor
        yield from own
        return
    method = getattr(module, "quant_method", None)
    interleaved = getattr(method, "w13_swiglu_interleaved", False)
    blocked = getattr(method, "use_flashinfer_trtllm_moe", False) or getattr(method, "_aiter_runner", None) is not None
    if moved or interleaved or blocked:
        yield from (name for name in own if name in _EXPERTS)

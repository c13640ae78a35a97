"""Stands in for SGLang's kernels, which PyPI has for CUDA only.

SGLang imports these by name on every CPU and calls them in speculative decoding alone, which its attention without AMX
cannot do either. It asks torch.ops for all other kernels, finds none and takes its own torch code.
"""

from __future__ import annotations

from typing import Any, NoReturn

__version__ = "0.4.10"


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError("speculative decoding does not run on a CPU; leave --speculative-algorithm out")


assign_draft_cache_locs_contiguous_cpu = _refuse
assign_extend_cache_locs_cpu = _refuse
assign_req_to_token_pool_cpu = _refuse
build_tree_kernel_efficient_cpu = _refuse
copy_all_layer_kv_cache_cpu = _refuse
fill_accept_out_cache_loc_cpu = _refuse
fill_bonus_tokens_cpu = _refuse
rotate_input_ids_cpu = _refuse
verify_tree_greedy_cpu = _refuse

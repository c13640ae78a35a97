"""How SGLang names, fuses and divides the tensors of a decoder, for bridges to combine."""

from __future__ import annotations

from miles_core.api import NameMapping, Part, Rule

_LAYER = "model.layers.{layer}"

# the vocabulary is rounded up everywhere, and the MLP's width on CPUs
_EMBEDDINGS = (
    Rule("model.embed_tokens.weight", (Part("model.embed_tokens.weight", split=0),), padded=True),
    Rule("lm_head.weight", (Part("lm_head.weight", split=0),), padded=True),
)
_ATTENTION = (
    Rule(
        f"{_LAYER}.self_attn.qkv_proj.{{kind}}",
        (
            Part(f"{_LAYER}.self_attn.q_proj.{{kind}}", split=0, units="num_attention_heads"),
            Part(f"{_LAYER}.self_attn.k_proj.{{kind}}", split=0, units="num_key_value_heads"),
            Part(f"{_LAYER}.self_attn.v_proj.{{kind}}", split=0, units="num_key_value_heads"),
        ),
    ),
    # its bias, where it has one, is whole on each rank
    Rule(f"{_LAYER}.self_attn.o_proj.weight", (Part(f"{_LAYER}.self_attn.o_proj.weight", split=1),)),
)
_MLP = (
    Rule(
        f"{_LAYER}.mlp.gate_up_proj.{{kind}}",
        (Part(f"{_LAYER}.mlp.gate_proj.{{kind}}", split=0), Part(f"{_LAYER}.mlp.up_proj.{{kind}}", split=0)),
        padded=True,
    ),
    Rule(f"{_LAYER}.mlp.down_proj.weight", (Part(f"{_LAYER}.mlp.down_proj.weight", split=1),), padded=True),
)
_EXPERT = f"{_LAYER}.mlp.experts.{{expert}}"
_EXPERTS = (
    Rule(
        f"{_LAYER}.mlp.experts.w13_weight",
        (Part(f"{_EXPERT}.gate_proj.weight", split=0), Part(f"{_EXPERT}.up_proj.weight", split=0)),
        stacked=True,
        padded=True,
    ),
    Rule(
        f"{_LAYER}.mlp.experts.w2_weight",
        (Part(f"{_EXPERT}.down_proj.weight", split=1),),
        stacked=True,
        padded=True,
    ),
)
_TIED = {"lm_head.weight": "model.embed_tokens.weight"}

DENSE = NameMapping((*_EMBEDDINGS, *_ATTENTION, *_MLP), _TIED)
"""Llama, Qwen3 and what is built like them."""

EXPERTS = NameMapping((*_EMBEDDINGS, *_ATTENTION, *_MLP, *_EXPERTS), _TIED)
"""Qwen3-MoE."""

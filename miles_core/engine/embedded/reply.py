"""The reply of ``POST /generate`` for one finished generation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.engine.embedded.routing import encode_routing

if TYPE_CHECKING:
    from miles_core.engine.embedded.request import Generated
    from miles_core.types import RoutingSpec


def to_wire(generated: Generated, tokenizer: Any, routing: RoutingSpec | None) -> dict[str, Any]:
    """SGLang's reply object; a request that was aborted while it waited has the short ``meta_info``."""
    spec = generated.spec
    output_ids = generated.output_ids.tolist()
    meta: dict[str, Any] = {
        "id": spec.rid,
        "finish_reason": generated.finish_reason,
        "completion_tokens": len(output_ids),
        "weight_version": generated.version,
    }
    if spec.return_logprob:
        pairs = zip(generated.logprobs.tolist(), output_ids, strict=True)
        meta["input_token_logprobs"] = []
        meta["output_token_logprobs"] = [[logprob, token, None] for logprob, token in pairs]
        meta["output_token_logprobs_length"] = len(output_ids)
    if generated.finish_reason is not None:
        meta["weight_versions"] = [
            {"version": version, "start": start, "end": end} for version, start, end in generated.spans
        ]
    if generated.ran:
        meta["prompt_tokens"] = len(spec.prompt)
        meta["cached_tokens"] = generated.cached_tokens
        meta["num_retractions"] = generated.retractions
    if generated.routing is not None and routing is not None:
        meta["routed_experts"] = encode_routing(generated.routing, spec.routed_experts_start_len, routing)
    reply = {"text": _text(generated, tokenizer), "output_ids": output_ids, "meta_info": meta}
    if spec.return_prompt_token_ids:
        reply["prompt_token_ids"] = spec.prompt.tolist()
    return reply


def _text(generated: Generated, tokenizer: Any) -> str:
    """The decoded output up to what stopped it, and with that if ``no_stop_trim`` is set."""
    sampling = generated.spec.sampling
    matched = (generated.finish_reason or {}).get("matched")
    ids = generated.output_ids
    if isinstance(matched, int) and not sampling.no_stop_trim:
        ids = ids[:-1]
    text: str = tokenizer.decode(ids.tolist(), skip_special_tokens=sampling.skip_special_tokens)
    if isinstance(matched, str) and matched in text:
        return text[: text.index(matched) + (len(matched) if sampling.no_stop_trim else 0)]
    # the last token may be the first bytes of a character
    return text if generated.finish_reason is not None else text.rstrip("\ufffd")

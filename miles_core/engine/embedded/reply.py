"""The reply of ``POST /generate`` for one finished generation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.engine.embedded.routing import encode_routing

if TYPE_CHECKING:
    from miles_core.engine.embedded.request import Finished
    from miles_core.types import RoutingSpec


def to_wire(finished: Finished, tokenizer: Any, routing: RoutingSpec | None) -> dict[str, Any]:
    """SGLang's reply object; a request that never ran has the short ``meta_info``."""
    spec = finished.spec
    output_ids = finished.output_ids.tolist()
    meta: dict[str, Any] = {
        "id": spec.rid,
        "finish_reason": finished.finish_reason,
        "prompt_tokens": len(spec.prompt),
        "completion_tokens": len(output_ids),
    }
    if finished.version is not None:
        meta["cached_tokens"] = finished.cached_tokens
        meta["weight_version"] = finished.version
        meta["weight_versions"] = [
            {"version": version, "start": start, "end": end} for version, start, end in finished.spans
        ]
        if spec.return_logprob:
            pairs = zip(finished.logprobs.tolist(), output_ids, strict=True)
            meta["output_token_logprobs"] = [[logprob, token, None] for logprob, token in pairs]
        if finished.routing is not None and routing is not None:
            meta["routed_experts"] = encode_routing(finished.routing, spec.routed_experts_start_len, routing)
    return {"text": _text(finished, tokenizer), "output_ids": output_ids, "meta_info": meta}


def _text(finished: Finished, tokenizer: Any) -> str:
    """The decoded output, without what stopped it unless ``no_stop_trim`` is set."""
    sampling = finished.spec.sampling
    matched = None if sampling.no_stop_trim else finished.finish_reason.get("matched")
    ids = finished.output_ids[:-1] if isinstance(matched, int) else finished.output_ids
    text: str = tokenizer.decode(ids.tolist(), skip_special_tokens=sampling.skip_special_tokens)
    if isinstance(matched, str) and matched in text:
        text = text[: text.index(matched)]
    return text

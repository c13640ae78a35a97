"""The worker of the router and session benchmarks: it reads a request and answers a fixed generation."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from miles_core.app.child import child_process
from miles_core.app.http_server import bind, run_server
from miles_core.errors import EngineError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


def reply(output_ids: list[int], routed_experts: str | None) -> bytes:
    """A whole generation that ends in the last of its tokens."""
    meta = {
        "id": "0",
        "finish_reason": {"type": "stop", "matched": output_ids[-1]},
        "prompt_tokens": 17,
        "completion_tokens": len(output_ids),
        "cached_tokens": 0,
        "weight_version": "0",
        "weight_versions": [{"version": "0", "start": 0, "end": len(output_ids)}],
        "output_token_logprobs": [[-0.25, token, None] for token in output_ids],
        "routed_experts": routed_experts,
    }
    return json.dumps({"text": "", "output_ids": output_ids, "meta_info": meta}).encode()


def answering(body: bytes) -> ASGIApp:
    """An app that reads the whole request, then answers ``body``."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


if __name__ == "__main__":
    with child_process():
        app = answering(reply(**json.loads(sys.argv[1])))
        run_server(app, bind("127.0.0.1", 0, EngineError, "worker"), lifespan="off")

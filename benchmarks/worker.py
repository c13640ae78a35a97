"""The trivial worker of the router benchmark: it reads a request and answers a fixed generation."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from miles_core.app.child import child_process
from miles_core.app.http_server import bind, run_server
from miles_core.errors import EngineError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

# As long as a turn of the quickstart: six tokens with logprobs, versions and the routing of 22 rows.
REPLY = json.dumps(
    {
        "text": "get c",
        "output_ids": [84, 82, 97, 13, 80, 2],
        "meta_info": {
            "id": "0",
            "finish_reason": {"type": "stop", "matched": 2},
            "prompt_tokens": 17,
            "completion_tokens": 6,
            "cached_tokens": 0,
            "weight_version": "0",
            "weight_versions": [{"version": "0", "start": 0, "end": 6}],
            "output_token_logprobs": [[-0.25, token, None] for token in (84, 82, 97, 13, 80, 2)],
            "routed_experts": "AAAAAAEAAAA" * 43,
        },
    }
).encode()
HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(REPLY)).encode())]


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the whole request, then answer."""
    assert scope["type"] == "http"
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": REPLY})


if __name__ == "__main__":
    with child_process():
        run_server(app, bind("127.0.0.1", 0, EngineError, "worker"), lifespan="off")

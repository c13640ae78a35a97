"""Streams of ``/generate``: what the events of one request add up to."""

from __future__ import annotations

import json
import re
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from miles_core.engine.http import describe, refusal, server_message
from miles_core.engine.parsing import check_sampled
from miles_core.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from miles_core.types import Generation

# Quotes inside of JSON strings are escaped, so these match keys only.
_UNFINISHED = re.compile(rb'"finish_reason"\s*:\s*null')
_OUTPUT_IDS = re.compile(rb'"output_ids"\s*:\s*\[([^\[\]]*)\]')
_COMPLETION_TOKENS = re.compile(rb'"completion_tokens"\s*:\s*(\d+)')
_DONE = b"[DONE]"


class EventSplitter:
    """Server-sent events of one line each, cut out of chunks; lines may be megabytes long."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that end in ``chunk``."""
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._begun, lines[0]])
            self._begun = []
        self._begun.append(rest)
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


class StreamedReply:
    """Adds up the events of one request, and gives ids to ``on_tokens`` as they come.

    Events hold all there is so far, or what is new where a SGLang server was started with
    ``--incremental-streaming-output``. ``completion_tokens`` tells which, as it counts all.
    """

    def __init__(self, rid: str, vocab_size: int, on_tokens: Callable[[Sequence[int]], None]) -> None:
        self._rid = rid
        self._vocab_size = vocab_size
        self._on_tokens = on_tokens
        self._ids: list[int] = []
        self._logprobs: list[Any] = []
        self._reply: Mapping[str, Any] | None = None

    def add(self, data: bytes) -> None:
        """Take one event in.

        Raises:
            EngineRequestError: if it says that the request is invalid.
            EngineError: if it says that the engine failed, or is malformed.
        """
        if data == _DONE:
            return
        try:
            fresh = self._fresh_of_growing(data)
            if fresh is None:
                fresh = self._fresh(json.loads(data))
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise EngineError(
                f"the engine streamed a malformed event for {self._rid}: {describe(error)}: {data[:200]!r}",
                remedy="Check that the URL is that of an SGLang-compatible engine and that no proxy changes replies.",
            ) from error
        self._pass_on(fresh)

    def whole(self) -> Mapping[str, Any]:
        """The reply that the same request gets without a stream.

        Raises:
            EngineError: if the stream ended before the generation did.
        """
        if self._reply is None:
            raise EngineError(
                f"the stream of {self._rid} ended after {len(self._ids)} tokens without a finish reason",
                remedy="Check the engine's log, and that no proxy cuts or rewrites streams.",
            )
        return self._reply

    def finish(self, generation: Generation) -> None:
        """Pass on what came with the last event, now that the whole was checked.

        Raises:
            EngineError: if the stream showed other ids than its end says; an aborted one may keep fewer.
        """
        ids, shown = generation.output_ids.tolist(), self._ids
        kept = shown[: len(ids)] if generation.finish_reason.type == "abort" else shown
        if ids[: len(kept)] != kept:
            raise EngineError(
                f"the stream of {self._rid} must end with the tokens that it showed; it showed {len(shown)}, and the "
                f"{len(ids)} at its end are others",
                remedy="Check that speculative decoding and output rewriting are off.",
            )
        self._pass_on(ids[len(shown) :])

    def _fresh_of_growing(self, data: bytes) -> list[int] | None:
        """New ids of an event that holds all so far and more will follow; ``None`` for other events.

        Such events hold the logprobs of all tokens, too: to parse each would take quadratic time.
        """
        if not self._ids or not _UNFINISHED.search(data):
            return None
        ids, count = _OUTPUT_IDS.search(data), _COMPLETION_TOKENS.search(data)
        if ids is None or count is None or ids[1].count(b",") + 1 != int(count[1]) or not ids[1].strip():
            return None
        fresh = int(count[1]) - len(self._ids)
        return [int(each) for each in ids[1].rsplit(b",", fresh)[1:]] if fresh > 0 else []

    def _fresh(self, event: Any) -> list[int]:
        if "error" in event:
            code = event["error"].get("code") if isinstance(event["error"], dict) else None
            raise self._failure(code, server_message(json.dumps(event).encode()))
        meta, ids = event["meta_info"], event["output_ids"]
        logprobs, count = meta.get("output_token_logprobs") or [], int(meta["completion_tokens"])
        fresh = count - len(self._ids)
        if fresh > len(ids):
            raise ValueError(f"of {count} tokens, {len(self._ids)} came before; got {len(ids)} ids")
        if len(logprobs) >= count:
            self._logprobs = logprobs
        elif fresh > 0:
            self._logprobs += logprobs[-fresh:]
        new = [index(each) for each in ids[-fresh:]] if fresh > 0 else []
        if meta["finish_reason"] is None:
            return new
        self._end(event, ids if len(ids) == count else [*self._ids, *new])
        return []

    def _end(self, event: Mapping[str, Any], ids: Sequence[int]) -> None:
        meta = event["meta_info"]
        reason = meta["finish_reason"]
        # without a stream, SGLang answers such aborts with this status
        if reason.get("type") == "abort" and (reason.get("status_code") or 0) >= 400:
            raise self._failure(reason["status_code"], reason.get("message"))
        if meta.get("output_token_logprobs") is not None:
            meta = {**meta, "output_token_logprobs": self._logprobs}
        self._reply = {**event, "output_ids": list(ids), "meta_info": meta}

    def _failure(self, code: Any, message: Any) -> EngineError:
        said = f"the stream of {self._rid} failed after {len(self._ids)} tokens: {message}"
        # what began to generate was no invalid request
        return refusal(code, said) if isinstance(code, int) and not self._ids else EngineError(said)

    def _pass_on(self, fresh: Sequence[int]) -> None:
        if not fresh:
            return
        check_sampled(np.array(fresh), self._vocab_size, self._rid)
        self._ids += fresh
        self._on_tokens(fresh)

"""A session: prepares prompts, generates turns and turns the conversation into a training sample."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from miles_core.errors import SessionError
from miles_core.kinds.sessions import Prompt, Turn
from miles_core.session.tito import TokenInTokenOut
from miles_core.session.tree import SessionTree, TurnNode
from miles_core.types import GenerateRequest, RoutingTrace, Sample, VersionSpan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.kinds.engines import EngineClient
    from miles_core.session.tokenizer import ChatTokenizer
    from miles_core.types import Generation, Message, Reward, RoutingSpec, SamplingParams, Status, TurnRecord


class TokenSession:
    """One conversation of one trajectory; see :class:`miles_core.kinds.sessions.Session`."""

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        client: EngineClient,
        routing: RoutingSpec | None,
        *,
        task_id: str,
        group_id: str,
        trajectory_id: str,
        agent_id: str = "policy",
    ) -> None:
        self._tito = TokenInTokenOut(tokenizer)
        self._stop_token_ids = tokenizer.stop_token_ids
        self._client = client
        self._spec = routing
        self._task_id, self._group_id = task_id, group_id
        self._trajectory_id, self._agent_id = trajectory_id, agent_id
        self._calls = count()
        self.tree = SessionTree()

    def prepare(self, messages: Sequence[Message]) -> Prompt:
        """Attach ``messages`` to the deepest stored turn and tokenize only what is new."""
        if not messages:
            raise SessionError("a conversation needs at least one message; got none")
        if any(not isinstance(message.content, str) for message in messages):
            raise SessionError(
                "this session takes text messages; got a message of parts",
                remedy="Images are not supported by this version: send text.",
            )
        node, rest = self.tree.deepest(messages)
        if node is None:
            ids = self._tito.initial(messages)
            return Prompt(tuple(messages), tuple(ids), len(ids))
        fresh = self._tito.continuation(list(node.messages()), rest, stop=node.stop)
        return Prompt(tuple(messages), (*node.tokens().tolist(), *fresh), len(fresh), parent=node)

    async def generate(self, prompt: Prompt, sampling: SamplingParams) -> Turn:
        """Generate the turn after a prompt that this session prepared and store it, whatever was stored since.

        Raises:
            EngineError: if the engine failed.
            RoutingError: if the reply's routing rows do not fit.
        """
        parent = prompt.parent
        if not isinstance(parent, TurnNode | None):
            raise SessionError(
                f"a prompt's parent must be a stored turn; got {type(parent).__name__}",
                remedy="Pass what this session's prepare() returned.",
            )
        sampling = replace(sampling, stop_token_ids=self._stop_token_ids)
        trace = None if self._spec is None else _trace_before(parent, self._spec)
        request = GenerateRequest(
            input_ids=prompt.input_ids,
            sampling=sampling,
            rid=f"{self._trajectory_id}-{next(self._calls)}",
            return_routed_experts=trace is not None,
            routed_experts_start_len=0 if trace is None else trace.rows,
        )
        generation = await self._client.generate(request)
        node = self._node(parent, prompt, sampling, generation, trace)
        self.tree.append(node)
        return Turn(node.response, generation)

    def _node(
        self,
        parent: TurnNode | None,
        prompt: Prompt,
        sampling: SamplingParams,
        generation: Generation,
        trace: RoutingTrace | None,
    ) -> TurnNode:
        reason = generation.finish_reason
        if not len(generation.output_ids) and reason.type != "abort":
            raise SessionError(f"the engine finished with {reason.type!r} but generated no token")
        # By the token, not by the reason: a stop token sampled exactly at the limit is reported as "length".
        last = int(generation.output_ids[-1]) if len(generation.output_ids) else None
        stop = last if last in self._stop_token_ids else None
        total = len(prompt.input_ids) + len(generation.output_ids)
        if trace is not None and generation.routed_experts is not None and self._spec is not None:
            trace = trace.extended(generation.routed_experts, trace.rows, self._spec, tokens=total)
        return TurnNode(
            parent=parent,
            appended=prompt.messages[sum(1 for _ in parent.messages()) if parent else 0 :],
            response=self._tito.message(generation.output_ids.tolist(), stop),
            context_ids=np.asarray(prompt.input_ids[len(prompt.input_ids) - prompt.appended_tokens :], dtype=np.int32),
            output_ids=generation.output_ids,
            logprobs=generation.logprobs,
            versions=generation.versions,
            sampling=sampling,
            stop=stop,
            routing=trace,
        )

    def sample(self, *, status: Status, turns: Sequence[TurnRecord], reward: Reward | None = None) -> Sample:
        """The conversation that ends in the last stored turn, as one training sequence."""
        path = self.tree.nodes[-1].path() if self.tree.nodes else []
        tokens, mask, logprobs, versions, at = [_INT], [_MASK], [_FLOAT], list[VersionSpan](), 0
        for node in path:
            context, output = len(node.context_ids), len(node.output_ids)
            tokens += [node.context_ids, node.output_ids]
            mask += [np.zeros(context, np.uint8), np.ones(output, np.uint8)]
            logprobs += [np.zeros(context, np.float32), node.logprobs]
            at += context
            versions += [VersionSpan(span.version, at + span.start, at + span.end) for span in node.versions]
            at += output
        return Sample(
            task_id=self._task_id,
            group_id=self._group_id,
            trajectory_id=self._trajectory_id,
            agent_id=self._agent_id,
            tokens=np.concatenate(tokens),
            loss_mask=np.concatenate(mask),
            logprobs=np.concatenate(logprobs),
            versions=tuple(versions),
            turns=tuple(turns),
            status=status,
            routing=_whole_trace(path, at, status),
            reward=reward,
        )


_INT = np.zeros(0, np.int32)
_MASK = np.zeros(0, np.uint8)
_FLOAT = np.zeros(0, np.float32)


def _whole_trace(path: Sequence[TurnNode], tokens: int, status: Status) -> RoutingTrace | None:
    """The trace of a path; an aborted reply may lack its last rows, and its sample is never trained."""
    trace = path[-1].routing if path else None
    if trace is not None and not status.trainable and trace.rows != tokens - 1:
        return None
    return trace


def _trace_before(parent: TurnNode | None, spec: RoutingSpec) -> RoutingTrace:
    if parent is None or parent.routing is None:
        return RoutingTrace.empty(spec)
    return parent.routing

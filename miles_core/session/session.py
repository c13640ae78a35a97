"""A session: prepares prompts, generates turns and turns the conversation into a training sample."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from miles_core.errors import RoutingError, SessionError
from miles_core.kinds.sessions import Conversation, Prompt, Turn
from miles_core.session.joining import join_generations
from miles_core.session.matching import exact
from miles_core.session.picking import ask_pick, last
from miles_core.session.tito import TokenInTokenOut
from miles_core.session.tree import SessionTree, TurnNode
from miles_core.types import GenerateRequest, RoutingTrace, Sample, VersionSpan
from miles_core.types.routing import expert_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from miles_core.kinds.engines import EngineClient
    from miles_core.kinds.sessions import MessageMatch, TurnPick
    from miles_core.session.tokenizer import ChatTokenizer
    from miles_core.types import Generation, Message, Reward, RoutingSpec, SamplingParams, Status, TurnRecord


class TokenSession:
    """One conversation of one trajectory; see :class:`miles_core.kinds.sessions.Session`.

    ``match`` and ``pick`` are what ``[session]`` names.
    """

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
        match: MessageMatch = exact,
        pick: TurnPick = last,
    ) -> None:
        self._tito = TokenInTokenOut(tokenizer)
        self._stop_token_ids = tokenizer.stop_token_ids
        self._client = client
        self._spec = routing
        self._task_id, self._group_id = task_id, group_id
        self._trajectory_id, self._agent_id = trajectory_id, agent_id
        self._calls = count()
        self._pick = pick
        self.tree = SessionTree(match)

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
        generation = await self._generate(prompt.input_ids, sampling, parent.rows if parent else 0)
        appended = prompt.messages[sum(1 for _ in parent.messages()) if parent else 0 :]
        context = prompt.input_ids[len(prompt.input_ids) - prompt.appended_tokens :]
        return self._store(parent, appended, np.asarray(context, dtype=np.int32), sampling, generation)

    async def resume(self, turn: Turn) -> Turn:
        """Continue an aborted turn from its last token; see :meth:`miles_core.kinds.sessions.Session.resume`.

        Raises:
            SessionError: if the turn is not this session's, was not aborted, or has no room left.
            EngineError: if the engine failed.
            RoutingError: if the reply's routing rows do not fit.
        """
        node, reason = self._node(turn), turn.generation.finish_reason.type
        if reason != "abort":
            raise SessionError(f"only an aborted turn can be resumed; this one ended with {reason!r}")
        left = node.sampling.max_new_tokens - len(node.output_ids)
        if left <= 0:
            raise SessionError(
                f"the aborted turn has all of its {node.sampling.max_new_tokens} tokens: nothing is left to generate"
            )
        sampling = replace(node.sampling, max_new_tokens=left)
        rest = await self._generate(tuple(node.tokens().tolist()), sampling, node.rows)
        whole = join_generations(turn.generation, rest, self._spec)
        return self._store(node.parent, node.appended, node.context_ids, node.sampling, whole)

    def _node(self, turn: Turn) -> TurnNode:
        for node in self.tree.nodes:
            if node is turn.stored:
                return node
        raise SessionError(
            "only a turn of this session can be resumed or picked", remedy="Pass what generate() returned."
        )

    async def _generate(self, input_ids: tuple[int, ...], sampling: SamplingParams, rows: int) -> Generation:
        """Generate from ids whose first ``rows`` routing rows are known."""
        request = GenerateRequest(
            input_ids=input_ids,
            sampling=sampling,
            # SGLang aborts by prefix: the full stop keeps call 1 from being a prefix of call 10
            rid=f"{self._trajectory_id}-{next(self._calls)}.",
            return_routed_experts=self._spec is not None,
            routed_experts_start_len=rows if self._spec is not None else 0,
        )
        generation = await self._client.generate(request)
        if not len(generation.output_ids) and generation.finish_reason.type != "abort":
            raise SessionError(f"the engine finished with {generation.finish_reason.type!r} but generated no token")
        if self._spec is not None:
            _check_rows(generation, self._spec, start=rows, tokens=len(input_ids) + len(generation.output_ids))
        return generation

    def _store(
        self,
        parent: TurnNode | None,
        appended: tuple[Message, ...],
        context_ids: NDArray[np.int32],
        sampling: SamplingParams,
        generation: Generation,
    ) -> Turn:
        # By the token, not by the reason: a stop token sampled exactly at the limit is reported as "length".
        last = int(generation.output_ids[-1]) if len(generation.output_ids) else None
        stop = last if last in self._stop_token_ids else None
        node = TurnNode(
            parent=parent,
            appended=appended,
            response=self._tito.message(generation.output_ids.tolist(), stop),
            context_ids=context_ids,
            output_ids=generation.output_ids,
            logprobs=generation.logprobs,
            versions=generation.versions,
            sampling=sampling,
            stop=stop,
            routing=generation.routed_experts,
        )
        self.tree.append(node)
        return Turn(node.response, generation, node)

    def picked(self, turn: Turn | None = None) -> Conversation:
        """The conversation that is trained; see :meth:`miles_core.kinds.sessions.Session.picked`."""
        if turn is None and not self.tree.nodes:
            return Conversation((), ())
        node = ask_pick(self._pick, self.tree.nodes) if turn is None else self._node(turn)
        return Conversation(tuple(node.messages()), tuple(node.path()))

    def sample(
        self,
        *,
        status: Status,
        turns: Sequence[TurnRecord],
        reward: Reward | None = None,
        conversation: Conversation | None = None,
    ) -> Sample:
        """A conversation as one training sequence; see :meth:`miles_core.kinds.sessions.Session.sample`."""
        stored = (conversation or self.picked()).turns
        path = [node for node in stored if isinstance(node, TurnNode)]
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
            routing=self._trace(path, at, status),
            reward=reward,
        )

    def _trace(self, path: Sequence[TurnNode], tokens: int, status: Status) -> RoutingTrace | None:
        """The trace of a path; what was aborted in the queue lacks its last rows, and its sample is never trained."""
        if self._spec is None or not path:
            return None
        if not status.trainable and path[-1].rows != tokens - 1:
            return None
        return RoutingTrace.joined([node.routing for node in path if node.routing is not None], self._spec)


_INT = np.zeros(0, np.int32)
_MASK = np.zeros(0, np.uint8)
_FLOAT = np.zeros(0, np.float32)


def _check_rows(generation: Generation, spec: RoutingSpec, *, start: int, tokens: int) -> None:
    """Rows abut: each reply holds those from the first one that is missing up to its last token but one."""
    rows = generation.routed_experts
    if rows is None and not len(generation.output_ids):
        return  # aborted in the queue
    expected = (max(0, tokens - 1 - start), len(spec.layer_ids), spec.top_k)
    if rows is None or rows.shape != expected or rows.dtype != expert_dtype(spec.num_experts):
        came = "none" if rows is None else f"{rows.dtype} {rows.shape}"
        raise RoutingError(
            f"{tokens} tokens of which {start} have their routing rows need {expert_dtype(spec.num_experts).__name__} "
            f"{expected} (rows, MoE layers, top-k); got {came}",
            remedy="Check that the engine serves the model that the trainer trains, and that no proxy cuts replies.",
        )

"""A session: prepares prompts, generates turns and turns its conversations into training samples."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from miles_core.errors import EngineError, RoutingError, SessionError
from miles_core.kinds.sessions import Conversation, GeneratedTurn, Prompt, Turn
from miles_core.lib.generations import join_generations, rest_of
from miles_core.session.decoding import TurnDecoder
from miles_core.session.matching import tool_arguments
from miles_core.session.parsing.turn import TurnParser
from miles_core.session.picking import ask_pick, leaves
from miles_core.session.rendering import RendererError
from miles_core.session.samples import SampleMaker
from miles_core.session.tito import TemplateRenderer
from miles_core.session.tree import SessionTree, TurnNode
from miles_core.types import MAIN_AGENT, GenerateRequest
from miles_core.types.routing import expert_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from miles_core.kinds.engines import EngineClient
    from miles_core.kinds.sessions import MessageMatch, OnTokens, Renderer, Tools, TurnPick
    from miles_core.session.parsing.reader import TurnReader
    from miles_core.session.tokenizer import ChatTokenizer
    from miles_core.types import Generation, Message, Reward, RoutingSpec, Sample, SamplingParams, Status, TurnRecord


class TokenSession:
    """The conversations of one agent of a trajectory; see :class:`miles_core.kinds.sessions.Session`.

    ``match``, ``pick``, ``renderer`` and ``parser`` are what ``[session]`` names: without a renderer prompts are
    derived from the tokenizer's chat template, which is told the time ``clock``, by default that of opening; without a
    parser turns are plain text. ``rid`` begins the ids of its requests, which no others may begin with.
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
        agent_id: str = MAIN_AGENT,
        match: MessageMatch = tool_arguments,
        pick: TurnPick = leaves,
        renderer: Renderer | None = None,
        parser: TurnParser | None = None,
        clock: datetime | None = None,
        rid: str | None = None,
    ) -> None:
        self.tree = SessionTree(match)
        self.renderer: Renderer = renderer or TemplateRenderer(tokenizer, clock or datetime.now())
        self._tokenizer = tokenizer
        self._client = client
        self._routing = routing
        self._maker = SampleMaker(task_id, group_id, trajectory_id, agent_id, routing)
        self._rid = rid or (trajectory_id if agent_id == MAIN_AGENT else f"{trajectory_id}-{agent_id}")
        self._decoder = TurnDecoder(tokenizer, parser or TurnParser(), self._rid)
        self._requests = count()
        self._pick = pick

    def characters_beyond(self, messages: Sequence[Message], tokens: int) -> int:
        """The characters of messages that cannot have so few tokens, told without tokenizing them; 0 if they may."""
        characters = sum(len(message.text) for message in messages)
        return 0 if self._tokenizer.may_fit(characters, tokens) else characters

    def prepare(self, messages: Sequence[Message], tools: Tools = ()) -> Prompt:
        """Attach ``messages`` to the deepest stored turn with these tools and tokenize only what is new."""
        if not messages:
            raise SessionError("a conversation needs at least one message; got none")
        if any(not isinstance(message.content, str) for message in messages):
            raise SessionError(
                "this session takes text messages; got a message of parts",
                remedy="Images are not supported by this version: send text.",
            )
        node, rest = self.tree.deepest(messages, tools)
        fresh = None if node is None else self._boundary(node, rest)
        if node is None or fresh is None:
            ids = np.asarray(self.renderer.prompt(messages, tools), np.int32)
            return Prompt(tuple(messages), ids, len(ids), tuple(tools))
        return Prompt(tuple(messages), np.concatenate([node.tokens(), fresh]), len(fresh), tuple(tools), parent=node)

    def _boundary(self, node: TurnNode, rest: Sequence[Message]) -> NDArray[np.int32] | None:
        """Ids that continue a stored turn; ``None`` where answers that are not the policy's need another branch."""
        try:
            return np.asarray(self.renderer.boundary(_generated(node), rest), np.int32)
        except SessionError as error:
            if isinstance(error, RendererError) or all(message.role != "assistant" for message in rest):
                raise
            return None

    async def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        on_tokens: OnTokens | None = None,
        keep_aborted: bool = True,
    ) -> Turn:
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
        sampling = replace(sampling, stop_token_ids=self._tokenizer.stop_token_ids)
        generation = await self._generate(prompt.input_ids, sampling, parent.rows if parent else 0, on_tokens)
        node = self._node(prompt, parent, sampling, generation)
        if keep_aborted or generation.finish_reason.type != "abort":
            self.tree.append(node)
        return Turn(node.response, generation, node)

    async def resume(self, turn: Turn) -> Turn:
        """Continue an aborted turn from its last token; see :meth:`miles_core.kinds.sessions.Session.resume`.

        Raises:
            SessionError: if the turn is not this session's, was not aborted, or has no room left.
            EngineError: if the engine failed.
            RoutingError: if the reply's routing rows do not fit.
        """
        node, reason = self._stored(turn), turn.generation.finish_reason.type
        if reason != "abort":
            raise SessionError(f"only an aborted turn can be resumed; this one ended with {reason!r}")
        left = node.sampling.max_new_tokens - len(node.output_ids)
        if left <= 0:
            raise SessionError(
                f"the aborted turn has all of its {node.sampling.max_new_tokens} tokens: nothing is left to generate"
            )
        rest = await self._generate(node.tokens(), rest_of(node.sampling, len(node.output_ids)), node.rows)
        whole = join_generations(turn.generation, rest, self._routing)
        resumed = replace(
            node,
            response=self._decoder.message(whole, calls=bool(node.tools)),
            output_ids=whole.output_ids,
            logprobs=whole.logprobs,
            versions=whole.versions,
            stop=self._decoder.stop(whole),
            finish_reason=whole.finish_reason,
            routing=whole.routed_experts,
        )
        self.tree.append(resumed)
        return Turn(resumed.response, whole, resumed)

    def reader(self, prompt: Prompt, stop: Sequence[str] = ()) -> TurnReader:
        """Reads the turn after a prompt as its tokens come; ``stop`` are texts that end it."""
        return self._decoder.reader(calls=_calls(prompt), stop=stop)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        return self._tokenizer.decode(ids)

    def conversations(self, turn: Turn | None = None) -> tuple[Conversation, ...]:
        """The conversations that are trained; see :meth:`miles_core.kinds.sessions.Session.conversations`."""
        return tuple(Conversation(tuple(node.messages()), tuple(node.path())) for node in self._picked(turn))

    def samples(
        self,
        *,
        status: Status,
        records: Mapping[object, TurnRecord] | None = None,
        reward: Reward | None = None,
        turn: Turn | None = None,
    ) -> tuple[Sample, ...]:
        """The conversations as training sequences; see :meth:`miles_core.kinds.sessions.Session.samples`."""
        return self._maker.samples([node.path() for node in self._picked(turn)], status, records or {}, reward)

    def _picked(self, turn: Turn | None) -> list[TurnNode]:
        if turn is not None:
            return [self._stored(turn)]
        return ask_pick(self._pick, self.tree.nodes) if self.tree.nodes else []

    def _stored(self, turn: Turn) -> TurnNode:
        for node in self.tree.nodes:
            if node is turn.stored:
                return node
        raise SessionError(
            "only a turn of this session can be resumed or picked", remedy="Pass what generate() returned."
        )

    async def _generate(
        self, input_ids: NDArray[np.int32], sampling: SamplingParams, rows: int, on_tokens: OnTokens | None = None
    ) -> Generation:
        """Generate from ids whose first ``rows`` routing rows are known."""
        request = GenerateRequest(
            input_ids=input_ids,
            sampling=sampling,
            # SGLang aborts by prefix: the full stop keeps call 1 from being a prefix of call 10
            rid=f"{self._rid}-{next(self._requests)}.",
            return_routed_experts=self._routing is not None,
            routed_experts_start_len=rows if self._routing is not None else 0,
        )
        streamed = {} if on_tokens is None else {"on_tokens": on_tokens}
        generation = await self._client.generate(request, **streamed)
        if not len(generation.output_ids) and generation.finish_reason.type != "abort":
            raise EngineError(f"the engine finished with {generation.finish_reason.type!r} but generated no token")
        if self._routing is not None:
            _check_rows(generation, self._routing, start=rows, tokens=len(input_ids) + len(generation.output_ids))
        return generation

    def _node(
        self, prompt: Prompt, parent: TurnNode | None, sampling: SamplingParams, generation: Generation
    ) -> TurnNode:
        return TurnNode(
            parent=parent,
            tools=prompt.tools,
            appended=prompt.messages[parent.count if parent else 0 :],
            response=self._decoder.message(generation, calls=_calls(prompt)),
            context_ids=prompt.input_ids[len(prompt.input_ids) - prompt.appended_tokens :].copy(),
            output_ids=generation.output_ids,
            logprobs=generation.logprobs,
            versions=generation.versions,
            sampling=sampling,
            stop=self._decoder.stop(generation),
            finish_reason=generation.finish_reason,
            cached_tokens=generation.cached_tokens,
            routing=generation.routed_experts,
        )


def _calls(prompt: Prompt) -> bool:
    """Whether calls in the answer are calls."""
    return bool(prompt.tools) and prompt.parse_calls


def _generated(node: TurnNode) -> GeneratedTurn:
    *before, response = node.messages()
    return GeneratedTurn(tuple(before), response, tuple(node.output_ids.tolist()), node.stop, node.tools)


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

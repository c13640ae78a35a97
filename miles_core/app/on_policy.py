"""True on-policy, checked: the logprobs that tokens were sampled from against those that the trainer computes.

What the engine replied with a token is compared, never a rescoring: a server that scores a sequence again does so in
another batch and by other kernels than those that sampled it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

import anyio
import anyio.lowlevel
import numpy as np

from miles_core.app.context import trajectory_tokens
from miles_core.app.engine_load import running_requests
from miles_core.app.on_policy_requests import LATE_TOKENS, RequestMaker
from miles_core.engine.client import HttpEngineClient
from miles_core.errors import EngineError, TrainError
from miles_core.lib.tasks import single_error
from miles_core.train.metrics import ON_POLICY_REMEDY
from miles_core.types import MAIN_AGENT, RoutingTrace, Sample, Status, TurnRecord, VersionSpan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    import aiohttp
    from numpy.typing import NDArray

    from miles_core.app.wiring import Wiring
    from miles_core.kinds.engines import EngineClient
    from miles_core.types import GenerateRequest, Generation, RoutingSpec

Mode = Literal["off", "report", "require"]
Case = Literal["batch_1", "batch_8", "admission"]

_CASES: Mapping[Case, str] = {"batch_1": "batch of 1", "batch_8": "batch of 8", "admission": "admission in the middle"}
_TRIES = 10
_START_SECONDS = 120.0


class ProximalTrainer(Protocol):
    """The trainer as the check needs it."""

    async def proximal_logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        """Logprobs of the samples' tokens by the present weights, ``[T]`` each."""


@dataclass(frozen=True, eq=False)
class CheckedEngine:
    """One engine, reached without the router; ``running()`` counts the requests that it decodes now."""

    client: EngineClient
    running: Callable[[], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest absolute difference over ``tokens`` sampled tokens, of which ``differing`` are not bit-equal."""

    largest: float
    tokens: int
    differing: int

    def __str__(self) -> str:
        if not self.differing:
            return f"bit-equal ({self.tokens} tokens)"
        return f"{self.largest:.3g} ({self.differing} of {self.tokens} tokens differ)"


@dataclass(frozen=True, slots=True)
class OnPolicyReport:
    """For each engine and case, how far its sampled logprobs are from the trainer's proximal ones."""

    differences: Mapping[str, Mapping[Case, Difference]]

    @property
    def text(self) -> str:
        """One line per engine, for a terminal."""
        lines = ["true on-policy: largest |proximal - sampled logprob|"]
        for engine, cases in self.differences.items():
            found = [f"{words} {cases.get(case, 'not seen, it answers too fast')}" for case, words in _CASES.items()]
            lines.append(f"  {engine}: " + "; ".join(found))
        return "\n".join(lines)

    @property
    def metrics(self) -> dict[str, float]:
        """``on_policy/<engine>/<case>_abs_diff_max``."""
        return {
            f"on_policy/{engine}/{case}_abs_diff_max": found.largest
            for engine, cases in self.differences.items()
            for case, found in cases.items()
        }

    def require_equal(self) -> None:
        """Check that all is bit-equal.

        Raises:
            TrainError: naming the largest difference, its engine and its case.
        """
        found = [(d, engine, case) for engine, cases in self.differences.items() for case, d in cases.items()]
        differing = [entry for entry in found if entry[0].differing]
        if differing:
            worst, engine, case = max(differing, key=lambda entry: np.nan_to_num(entry[0].largest, nan=np.inf))
            raise TrainError(
                f'run.true_on_policy = "require", but sampled and proximal logprobs differ in {len(differing)} of '
                f"{len(found)} cases; the most on {engine}, {_CASES[case]}: {worst}",
                remedy=ON_POLICY_REMEDY,
            )


async def check_run_on_policy(
    wiring: Wiring,
    urls: Mapping[str, str],
    http: aiohttp.ClientSession,
    trainer: ProximalTrainer,
    say: Callable[[str], None],
) -> dict[str, float]:
    """The check that ``run.true_on_policy`` asks for, on engines by name and URL; says the report, returns its metrics.

    Call it when engines and trainer hold the same weights and nothing else generates.

    Raises:
        TrainError: if it must be bit-equal and is not.
        EngineError: if an engine fails, or must be bit-equal and answers too fast for requests to be admitted.
    """
    config, model = wiring.config, wiring.model
    routing = model.routing if config.train.replay_routing else None
    engines = {
        name: CheckedEngine(
            HttpEngineClient(
                url, http, vocab_size=model.vocab_size, context_length=model.context_length, routing=routing
            ),
            partial(running_requests, url, http),
        )
        for name, url in urls.items()
    }
    maker = RequestMaker(
        vocab_size=model.vocab_size,
        context_length=trajectory_tokens(wiring),
        temperature=config.sampling.temperature,
        routing=routing,
        seed=config.run.seed,
    )
    report = await check_on_policy(config.run.true_on_policy, engines, trainer, maker, say)
    return {} if report is None else report.metrics


async def check_on_policy(
    mode: Mode,
    engines: Mapping[str, CheckedEngine],
    trainer: ProximalTrainer,
    maker: RequestMaker,
    say: Callable[[str], None],
) -> OnPolicyReport | None:
    """Sample from each engine alone, in a batch of 8, and with requests that are admitted while others decode.

    Raises:
        TrainError: in mode ``require``, if any logprob is not the trainer's bit by bit.
        EngineError: if an engine fails; in mode ``require``, if it answers too fast for requests to be admitted.
    """
    if mode == "off":
        return None
    differences: dict[str, dict[Case, Difference]] = {}
    too_fast: list[str] = []
    for name, engine in engines.items():
        samples: dict[Case, list[Sample]] = {
            "batch_1": await _together(engine, maker.requests(1), maker.routing),
            "batch_8": await _together(engine, maker.requests(8), maker.routing),
        }
        admitted = await _in_the_middle(name, engine, maker)
        if admitted is not None:
            samples["admission"] = admitted
        else:
            too_fast.append(name)
        logprobs = await trainer.proximal_logprobs([sample for group in samples.values() for sample in group])
        computed = iter(logprobs)
        differences[name] = {
            case: _difference(group, [next(computed) for _ in group]) for case, group in samples.items()
        }
    report = OnPolicyReport(differences)
    say(report.text)
    if mode == "require":
        report.require_equal()
        if too_fast:
            raise EngineError(
                f"{too_fast[0]} answered {maker.longest} tokens before requests could be admitted beside them, in "
                f"{_TRIES} tries",
                remedy='Raise rollout.max_context_tokens, or set run.true_on_policy = "report".',
            )
    return report


class _Calls:
    """Generations that run at once in a task group."""

    def __init__(self, engine: CheckedEngine, requests: Sequence[GenerateRequest]) -> None:
        self._engine = engine
        self._requests = requests
        self._generations: dict[int, Generation] = {}

    @property
    def done(self) -> bool:
        return len(self._generations) == len(self._requests)

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            for index in range(len(self._requests)):
                tasks.start_soon(self._generate, index)

    def samples(self, routing: RoutingSpec | None) -> list[Sample]:
        return [_sample(request, self._generations[i], routing) for i, request in enumerate(self._requests)]

    async def _generate(self, index: int) -> None:
        self._generations[index] = await self._engine.client.generate(self._requests[index])


async def _together(
    engine: CheckedEngine, requests: Sequence[GenerateRequest], routing: RoutingSpec | None
) -> list[Sample]:
    calls = _Calls(engine, requests)
    with single_error():
        await calls.run()
    return calls.samples(routing)


async def _in_the_middle(name: str, engine: CheckedEngine, maker: RequestMaker) -> list[Sample] | None:
    """Long requests, and short ones that come while those decode and end before them; ``None`` if it is too fast."""
    for attempt in range(_TRIES):
        tokens = maker.longest if attempt else maker.longest // 2
        long = _Calls(engine, maker.requests(4, tokens=tokens))
        late = _Calls(engine, maker.requests(4, tokens=LATE_TOKENS))
        with single_error():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(long.run)
                await _started(name, engine, long)
                admitted = not long.done
                await late.run()
                overlapped = admitted and not long.done
        if overlapped:
            return long.samples(maker.routing) + late.samples(maker.routing)
    return None


async def _started(name: str, engine: CheckedEngine, calls: _Calls) -> None:
    """Wait until the engine decodes one of ``calls``, or all are answered."""
    with anyio.move_on_after(_START_SECONDS) as waiting:
        while not calls.done and not await engine.running():
            await anyio.lowlevel.checkpoint()
    if waiting.cancelled_caught:
        raise EngineError(f"{name} reports no running request {_START_SECONDS:.0f} s after it got some")


def _sample(request: GenerateRequest, generation: Generation, routing: RoutingSpec | None) -> Sample:
    if generation.finish_reason.type == "abort" or not len(generation.output_ids):
        raise EngineError(f"request {request.rid} of the on-policy check was aborted: {generation.finish_reason}")
    prompt, length = len(request.input_ids), len(request.input_ids) + len(generation.output_ids)
    trace = None
    if routing is not None:
        assert generation.routed_experts is not None, "the client refuses replies without"
        trace = RoutingTrace(generation.routed_experts, routing.layer_ids)
    return Sample(
        task_id="on-policy",
        group_id="on-policy",
        trajectory_id=request.rid,
        agent_id=MAIN_AGENT,
        tokens=np.concatenate([np.asarray(request.input_ids, np.int32), generation.output_ids]),
        loss_mask=np.repeat(np.array([0, 1], np.uint8), [prompt, length - prompt]),
        logprobs=np.concatenate([np.zeros(prompt, np.float32), generation.logprobs]),
        versions=tuple(VersionSpan(s.version, prompt + s.start, prompt + s.end) for s in generation.versions),
        turns=(TurnRecord(prompt, length, request.sampling, generation.finish_reason.type),),
        status=Status.COMPLETED,
        routing=trace,
    )


def _difference(samples: Sequence[Sample], proximal: Sequence[NDArray[Any]]) -> Difference:
    """Over the sampled tokens; NaN counts as different."""
    sampled = np.concatenate([sample.logprobs[sample.loss_mask == 1] for sample in samples]).astype(np.float64)
    computed = np.concatenate([row[sample.loss_mask == 1] for sample, row in zip(samples, proximal, strict=True)])
    difference = np.abs(computed - sampled)
    return Difference(float(difference.max()), len(difference), int((difference != 0).sum()))

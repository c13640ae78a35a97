"""What is plotted: each chart's lines, from the metrics that a run reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from miles_core.telemetry.report.history import History

MAX_LINES = 8
_BOUNDS = ("_low", "_high")


@dataclass(frozen=True)
class Line:
    """Values over steps, with the bounds of their interval where the run reports them."""

    label: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    bounds: tuple[tuple[float, ...], tuple[float, ...]] | None = None


@dataclass(frozen=True)
class Chart:
    """One plot. A ``stacked`` one adds its lines up; a ``log`` one spans orders of magnitude."""

    title: str
    lines: tuple[Line, ...]
    stacked: bool = False
    log: bool = False
    main: bool = True


@dataclass(frozen=True)
class _Plan:
    title: str
    lines: Mapping[str, str] = field(default_factory=dict)
    prefix: str | None = None
    log: bool = False


_PLANS = (
    _Plan("Reward", {"all": "rollout/reward", "kept": "rollout/reward_kept"}),
    _Plan("Evaluation: reward", {"mean": "eval/reward"}),
    _Plan("Evaluation: pass@k", prefix="eval/pass@"),
    _Plan("Response length, tokens", {"mean": "rollout/response_length_mean", "max": "rollout/response_length_max"}),
    _Plan("Turns", {"mean": "rollout/turns"}),
    _Plan("Truncated trajectories, by reason", prefix="rollout/truncated/"),
    _Plan("Dropped, by reason", prefix="rollout/dropped/"),
    _Plan(
        "Logprob difference, trainer and engine",
        {"mean": "train/rollout_logprob_abs_diff", "max": "train/rollout_logprob_abs_diff_max"},
        log=True,
    ),
    _Plan("Rollout KL", {"k3": "train/rollout_kl"}, log=True),
    _Plan("Effective sample size, share of tokens", {"ess": "train/ess"}),
    _Plan("Replay mismatch, share of (token, layer)", {"mismatch": "replay/mismatch_fraction"}),
    _Plan("Staleness, policy versions", {"mean": "rollout/staleness_mean", "max": "rollout/staleness_max"}),
    _Plan("Entropy, nats", {"entropy": "train/entropy"}),
    _Plan("Loss", {"loss": "train/loss"}),
    _Plan("Gradient norm", {"norm": "train/grad_norm"}),
    _Plan("Learning rate", {"rate": "train/learning_rate"}),
    _Plan("Time per phase, seconds", prefix="perf/phase/"),
    _Plan("Tokens per second", {"generated": "perf/tokens_per_second"}),
)
_STACKED = ("rollout/truncated/", "rollout/dropped/", "perf/phase/")


def charts_of(history: History) -> list[Chart]:
    """The charts that a run has data for; metrics that no planned chart shows get one each, and are not ``main``."""
    charts, shown = [], {"weights/version"}
    for plan in _PLANS:
        names = _names(plan, history)
        shown.update(names.values())
        shown.update(f"{name}{bound}" for name in names.values() for bound in _BOUNDS)
        if names:
            charts.append(_chart(plan, names, history))
    rest = [_Plan(name, {"value": name}) for name in history.names if name not in shown]
    return [*charts, *(_chart(plan, plan.lines, history, main=False) for plan in rest)]


def _names(plan: _Plan, history: History) -> dict[str, str]:
    known = history.names
    if plan.prefix is None:
        return {label: name for label, name in plan.lines.items() if name in known}
    prefixed = [name for name in known if name.startswith(plan.prefix) and not name.endswith(_BOUNDS)]
    label_from = plan.prefix.rindex("/") + 1
    return {name[label_from:]: name for name in prefixed}


def _chart(plan: _Plan, names: Mapping[str, str], history: History, *, main: bool = True) -> Chart:
    stacked = plan.prefix in _STACKED
    if stacked:
        lines = _largest([Line(label, history.steps, history.filled(name)) for label, name in names.items()])
    else:
        lines = [Line(label, *history.series(name), _bounds(name, history)) for label, name in names.items()]
    return Chart(plan.title, tuple(lines), stacked, log=plan.log and _spans_magnitudes(lines), main=main)


def _bounds(name: str, history: History) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    steps, _ = history.series(name)
    (low_steps, low), (high_steps, high) = (history.series(name + bound) for bound in _BOUNDS)
    return (low, high) if low_steps == high_steps == steps and steps else None


def _largest(lines: Sequence[Line]) -> list[Line]:
    """The lines in their order; beyond ``MAX_LINES`` the smallest are added up as one."""
    if len(lines) <= MAX_LINES:
        return list(lines)
    ranked = sorted(lines, key=lambda line: sum(line.values), reverse=True)
    rest = ranked[MAX_LINES - 1 :]
    total = tuple(sum(values) for values in zip(*(line.values for line in rest), strict=True))
    kept = [line for line in lines if line in ranked[: MAX_LINES - 1]]
    return [*kept, Line(f"{len(rest)} others", rest[0].steps, total)]


def _spans_magnitudes(lines: Sequence[Line]) -> bool:
    positive = [value for value in _values(lines) if value > 0]
    return bool(positive) and max(positive) > 100 * min(positive)


def _values(lines: Sequence[Line]) -> Iterator[float]:
    for line in lines:
        yield from line.values

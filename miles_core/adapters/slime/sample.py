"""``Sample``: what slime's functions get and fill; a copy, whose changes reach nothing that is trained."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from miles_core.adapters.slime.versions import reply_versions
from miles_core.types import VersionSpan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_MODULES = ("slime.utils.types", "miles.utils.types")
_ENDINGS = {"stop": "completed", "length": "truncated", "abort": "aborted"}


@dataclass
class Sample:
    """A trajectory with the field names of slime's ``Sample``.

    ``prompt`` is the task's conversation as chat mappings; the text of it where a ``generate`` function gets it.
    ``tokens`` hold prompt and response, ``loss_mask`` and ``rollout_log_probs`` one entry per token of the response,
    ``weight_versions`` one text per generation. slime has neither ``messages``, the whole conversation, nor
    ``version_spans`` and ``replies``, which keep what generated which tokens.
    """

    class Status(Enum):
        """How far a sample is."""

        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: str | list[dict[str, Any]] = ""
    tokens: list[int] = field(default_factory=list)
    multimodal_inputs: dict[str, Any] | None = None
    multimodal_train_inputs: dict[str, Any] | None = None
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: Any = None
    loss_mask: list[int] | None = None
    weight_versions: list[Any] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    rollout_routed_experts: Any = None
    teacher_log_probs: list[float] | None = None
    remove_sample: bool = False
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    generate_function_path: str | None = None
    custom_rm_path: str | None = None
    train_metadata: dict[str, Any] | None = None
    session_id: str | None = None
    non_generation_time: float = 0.0
    messages: list[dict[str, Any]] = field(default_factory=list)
    version_spans: list[VersionSpan] = field(default_factory=list)
    replies: list[list[VersionSpan]] = field(default_factory=list)

    def get_reward_value(self, args: Any) -> Any:
        """The reward, or its entry ``args.reward_key`` where it is a mapping."""
        return self.reward[args.reward_key] if isinstance(self.reward, dict) else self.reward

    @property
    def effective_response_length(self) -> int:
        """How many tokens of the response are trained."""
        return self.response_length if self.loss_mask is None else sum(self.loss_mask)

    def append_response_tokens(
        self,
        args: Any = None,
        *,
        tokens: Sequence[int] | None = None,
        log_probs: Sequence[float] | None = None,
        trainable: bool = True,
        meta_info: Mapping[str, Any] | None = None,
        text: str | None = None,
        update_terminal_info: bool = True,
    ) -> None:
        """Append tokens that the policy generated, with their logprobs, or that an environment added.

        Raises:
            ValueError: if generated tokens come without one logprob each.
        """
        new = [int(token) for token in ([] if tokens is None else tokens)]
        sampled = [float(value) for value in ([] if log_probs is None else log_probs)]
        if trainable and len(sampled) != len(new):
            raise ValueError(f"{len(new)} generated tokens need as many log_probs; got {len(sampled)}")
        start = len(self.tokens)
        self.loss_mask = [*_or(self.loss_mask, [1] * self.response_length), *[int(trainable)] * len(new)]
        before = _or(self.rollout_log_probs, [math.nan] * self.response_length)  # 0 would be taken for a logprob
        self.rollout_log_probs = [*before, *(sampled if trainable else [0.0] * len(new))]
        self.tokens = [*self.tokens, *new]
        self.response_length += len(new)
        self.response += text or ""
        if meta_info is not None and trainable:
            for span in reply_versions(meta_info, len(new)):
                end = min(span.end, len(new))  # what the function cut off is not there
                self.version_spans.append(VersionSpan(span.version, start + span.start, start + end))
        if meta_info is not None and update_terminal_info:
            self.update_from_meta_info(args, meta_info)

    def update_from_meta_info(self, args: Any, meta_info: Mapping[str, Any]) -> None:
        """Take the weight version and how the generation ended from an engine's reply."""
        del args
        spans = reply_versions(meta_info)
        self.replies.append(spans)
        self.weight_versions += [str(span.version) for span in spans]
        self.status = self.Status(_ENDINGS[meta_info["finish_reason"]["type"]])


def sample_class(function: Callable[..., Any]) -> type[Any]:
    """The class that a function expects: slime's or Miles' own where it imported one, else :class:`Sample`.

    Status values of different classes are never equal, so a function that imports one must get that.
    """
    loaded = [sys.modules[name].Sample for name in _MODULES if hasattr(sys.modules.get(name), "Sample")]
    named = getattr(function, "__globals__", {}).values()
    return next((cls for cls in loaded if any(value is cls for value in named)), loaded[0] if loaded else Sample)


def _or(values: list[Any] | None, default: list[Any]) -> list[Any]:
    return default if values is None else values

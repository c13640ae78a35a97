"""Stored tokens against a fresh render of the same messages, with what differs classified."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import numpy as np

from miles_core.errors import SessionError
from miles_core.session.audit_spans import Kind, Vocabulary, compare
from miles_core.session.template.encoding import TextEncoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.kinds.sessions import Renderer
    from miles_core.session.tokenizer import ChatTokenizer
    from miles_core.session.tree import TurnNode

KINDS: tuple[Kind, ...] = get_args(Kind)
BUGS: tuple[Kind, ...] = ("special_tokens", "other_text")
"""What no template and no model explains: tokens of the prompt are not those that the template writes."""

_SHOWN_TOKENS = 40


@dataclass(frozen=True, slots=True)
class Difference:
    """Tokens of turn ``turn`` that differ, from token ``position`` of its conversation on, as texts."""

    turn: int
    kind: Kind
    position: int
    stored: str
    fresh: str


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What was found in one session: at most one difference of a kind for each turn, by turn.

    ``refused`` are turns whose messages the renderer does not take as a first prompt, with its reason: these could not
    be compared.
    """

    turns: int
    differences: tuple[Difference, ...]
    refused: tuple[tuple[int, str], ...]

    @property
    def counts(self) -> dict[Kind, int]:
        """How many turns have a difference of each kind."""
        found = Counter(each.kind for each in self.differences)
        return {kind: found[kind] for kind in KINDS}

    @property
    def clean(self) -> bool:
        """Whether no difference is a bug."""
        return not any(self.counts[kind] for kind in BUGS)


def audit(turns: Sequence[TurnNode], renderer: Renderer, tokenizer: ChatTokenizer) -> AuditReport:
    """Compare the prompt of every turn with a fresh render of the messages before it.

    ``turns`` are all turns of a session, in the order stored. What was generated is never expected to be what a render
    gives: templates rewrite earlier answers, and a tokenizer may cut the same text in another way. Cost grows with the
    square of the length of a conversation.
    """
    number = {node: index for index, node in enumerate(turns)}
    vocabulary = Vocabulary(special_ids(tokenizer), tokenizer.decode)
    found: dict[tuple[int, Kind], Difference] = {}
    refused: list[tuple[int, str]] = []
    for node in turns:
        *before, _ = node.messages()
        try:
            fresh = np.asarray(renderer.prompt(before, node.tools), np.int32)
        except SessionError as error:
            refused.append((number[node], error.message))
            continue
        span = compare(node, fresh, vocabulary)
        if span is not None:
            texts = [tokenizer.decode(ids[:_SHOWN_TOKENS].tolist()) for ids in (span.stored, span.fresh)]
            turn = number[span.node]
            found.setdefault((turn, span.kind), Difference(turn, span.kind, span.position, *texts))
    return AuditReport(len(turns), tuple(found[key] for key in sorted(found)), tuple(refused))


def special_ids(tokenizer: ChatTokenizer) -> frozenset[int]:
    """Ids of tokens that no text in a message may become."""
    theirs = tokenizer.tokenizer
    encoder = TextEncoder(theirs, str(theirs.chat_template))
    added = theirs.added_tokens_decoder.items()
    return frozenset(number for number, token in added if encoder.specials(token.content) == [token.content])


def audit_metrics(reports: Sequence[AuditReport]) -> dict[str, float]:
    """What the audited sessions of a step add to its metrics; nothing where none was audited."""
    if not reports:
        return {}
    totals: dict[str, float] = {
        f"session/audit/{kind}": float(sum(report.counts[kind] for report in reports)) for kind in KINDS
    }
    return {"session/audit/conversations": float(len(reports)), **totals}

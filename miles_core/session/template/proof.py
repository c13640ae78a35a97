"""The proof at start-up: which messages a template can append, found on conversations of our own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from miles_core.errors import SessionError
from miles_core.session.template.dummies import dummies
from miles_core.session.template.forms import CALL_ID, tool
from miles_core.session.template.ids import IdDeriver
from miles_core.session.template.independence import Independence
from miles_core.session.template.pieces import common_start
from miles_core.session.template.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.session.template.boundary import Deriver
    from miles_core.session.template.encoding import TextEncoder
    from miles_core.session.template.forms import Forms
    from miles_core.session.template.render import Chat

_ANSWER = "two"
APPENDS: dict[str, tuple[Chat, ...]] = {
    "user": ({"role": "user", "content": "next"},),
    "tool": ({"role": "tool", "content": "result", "tool_call_id": CALL_ID.format(0), "name": "call"},),
    "tool tool": tuple(
        {"role": "tool", "content": f"result{index}", "tool_call_id": CALL_ID.format(index), "name": "call"}
        for index in range(2)
    ),
    "tool user": (
        {"role": "tool", "content": "result", "tool_call_id": CALL_ID.format(0), "name": "call"},
        {"role": "user", "content": "next"},
    ),
    "system user": ({"role": "system", "content": "rule"}, {"role": "user", "content": "next"}),
}
"""What is tried, by the roles that follow a generated turn."""


@dataclass(frozen=True)
class Append:
    """Whether messages of these roles can follow a generated turn.

    ``suffix`` is what follows a cut turn after one question; ``same`` whether it is that after every history;
    ``reason`` says why they cannot; ``rewrites`` is the first place where a fresh render differs from what is kept.
    """

    roles: str
    suffix: str | None = None
    same: bool = True
    reason: str | None = None
    rewrites: str | None = None

    @property
    def allowed(self) -> bool:
        """Whether the messages can be appended."""
        return self.suffix is not None


@dataclass(frozen=True)
class Proof:
    """What was found out about a template with these stop tokens.

    ``token_difference`` says where pieces of ids differ from those of the whole text; ``None`` where they do not, or
    where no tokenizer is given.
    """

    forms: Forms
    stops: tuple[str, ...]
    generation_prompt: str
    close: str
    appends: tuple[Append, ...]
    token_difference: str | None = None

    def of(self, roles: str) -> Append:
        """What was found for these roles."""
        return next(each for each in self.appends if each.roles == roles)

    @property
    def holds(self) -> bool:
        """Whether anything can be appended at all."""
        return any(each.allowed for each in self.appends)


def prove(
    deriver: Deriver,
    stops: Sequence[str] = (),
    encoder: TextEncoder | None = None,
    independence: Independence | None = None,
) -> Proof:
    """Derive every append after varied histories, for a cut turn and for each of ``stops``.

    What is found out of histories is remembered in ``independence``.

    Raises:
        SessionError: if the template takes no conversation at all.
    """
    question = _question(deriver)
    prompt = deriver.prompt(question)
    bare = deriver.template.render(deriver.forms.messages(question), deriver.forms.of_tools(None), prompt=False)
    independence = independence or Independence(deriver)
    appends = tuple(
        prove_append(deriver, independence, messages, stops, tools="tool" in roles)
        for roles, messages in APPENDS.items()
    )
    user = next((each.suffix for each in appends if each.roles == "user"), None) or ""
    header = prompt[len("".join(common_start(prompt, bare))) :]
    tokens = token_difference(deriver, encoder, stops[0]) if encoder is not None and stops and user else None
    return Proof(deriver.forms, tuple(stops), header, user.partition("next")[0], appends, tokens)


def _question(deriver: Deriver) -> tuple[Chat, ...]:
    """The shortest conversation that the template takes, such as one that starts with a system message."""
    refused: SessionError | None = None
    for question in dummies():
        try:
            deriver.prompt(question)
        except SessionError as error:
            refused = refused or error
        else:
            return question
    raise refused or SessionError("the template takes no conversation")


def prove_append(
    deriver: Deriver, independence: Independence, messages: tuple[Chat, ...], stops: Sequence[str], *, tools: bool
) -> Append:
    """Derive what follows varied histories, for a cut turn and for each of ``stops``; with ``tools`` or without."""
    roles = " ".join(str(message["role"]) for message in messages)
    declared = (tool("call"),) if tools else ()
    suffixes: list[str] = []
    reason: SessionError | None = None
    turns = [Turn((), _ANSWER + (stop or ""), stop, messages, declared) for stop in (None, *stops)]
    for history in dummies():
        try:
            deriver.prompt(history, declared)
        except SessionError:
            continue  # the template takes no such conversation, with or without an append
        try:
            cut, *_ = [deriver.boundary(replace(turn, messages=history)).suffix for turn in turns]
            suffixes.append(cut)
        except SessionError as error:
            reason = reason or error
    if not suffixes or reason is not None:
        return Append(roles, reason=reason.message if reason else "the template takes no conversation to append to")
    same = all(independence.of(turn).stand_in is not None for turn in turns)
    return Append(roles, suffixes[0], same, None, _rewrites(deriver, messages, suffixes[0]))


def token_difference(deriver: Deriver, encoder: TextEncoder, stop: str) -> str | None:
    """Where pieces of ids differ from those of the whole text, for a question after an answer; ``None`` if nowhere."""
    question = _question(deriver)
    ids, turn = IdDeriver(deriver, encoder), Turn(question, _ANSWER + stop, stop, APPENDS["user"])
    boundary = ids.boundary(turn)
    said = turn.spoken if boundary.drop_stop else turn.generated
    pieces = [*ids.prompt(question), *ids.generated(said), *boundary.ids]
    whole = encoder.whole(deriver.prompt(question) + said + deriver.boundary(turn).suffix, {})
    if pieces == whole:
        return None
    at = next((i for i, (a, b) in enumerate(zip(pieces, whole, strict=False)) if a != b), min(len(pieces), len(whole)))
    return f"from token {at} on pieces give {pieces[at : at + 5]}, the whole text {whole[at : at + 5]}"


def _rewrites(deriver: Deriver, messages: tuple[Chat, ...], suffix: str) -> str | None:
    """Where a fresh render of the conversation differs from prompt, answer and suffix; ``None`` if nowhere."""
    question = _question(deriver)
    if messages[0]["role"] == "tool":
        return None  # how calls are written is known to the model only
    try:
        fresh = deriver.prompt([*question, {"role": "assistant", "content": _ANSWER}, *messages])
    except SessionError:
        return None
    kept = deriver.prompt(question) + _ANSWER + suffix
    at = next((i for i, (a, b) in enumerate(zip(fresh, kept, strict=False)) if a != b), min(len(fresh), len(kept)))
    if fresh == kept:
        return None
    return f"at character {at} kept {kept[at : at + 30]!r}, fresh {fresh[at : at + 30]!r}"

"""Answers to rows of ``miles tito next``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.errors import ConfigError, SessionError
from miles_core.session.template.boundary import Deriver
from miles_core.session.template.encoding import TextEncoder
from miles_core.session.template.ids import IdDeriver
from miles_core.session.template.load import load_template
from miles_core.session.template.render import CLOCK_ARGUMENT, ChatTemplate
from miles_core.session.template.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from miles_core.session.template.rows import Row


class Answerer:
    """Answers rows; templates and tokenizers are loaded once.

    ``folders`` are where relative paths are looked up; in the same places ``NAME.jinja`` answers to a name.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = tuple(folders)
        self._templates: dict[Path | str, tuple[ChatTemplate, frozenset[str]]] = {}
        self._derivers: dict[str, Deriver] = {}
        self._encoders: dict[Path, TextEncoder | None] = {}

    def answer(self, row: Row) -> dict[str, Any]:
        """``prompt`` and, where the model has a tokenizer, ``ids``; or ``refused`` with the reason.

        Raises:
            ConfigError: if the template or model is not there.
        """
        path = None if row.template is not None and _is_source(row.template) else self._path(row)
        try:
            deriver = self._deriver(row, path)
            turn = Turn(
                messages=tuple(row.messages),
                generated=row.generated,
                stop=row.stop,
                appended=tuple(row.appended),
                tools=tuple(row.tools),
                calls=tuple(row.calls),
            )
            found = deriver.boundary(turn)
            said = turn.spoken if found.drop_stop else turn.generated
            answer: dict[str, Any] = {"prompt": deriver.prompt(row.messages, row.tools) + said + found.suffix}
            if (
                path is not None
                and row.model is not None
                and (encoder := self._encoder(path, deriver.template.source)) is not None
            ):
                answer["ids"] = _ids(IdDeriver(deriver, encoder), turn, row.generated_ids)
        except SessionError as error:
            return {"refused": error.message}
        return answer

    def _deriver(self, row: Row, path: Path | None) -> Deriver:
        bare, reads = self._bare(path, row.template or "")
        arguments, clock = row.pinned(reads_clock=CLOCK_ARGUMENT in reads)
        variables = {**bare.variables, **arguments}
        if "eos_token" not in variables and "eos_token" in reads:
            if row.stop is None:
                raise SessionError("the template writes an eos_token, and none is given: put it in template_kwargs")
            variables["eos_token"] = row.stop
        key = repr((bare.source, sorted(variables.items(), key=lambda item: item[0]), clock))
        if key not in self._derivers:
            self._derivers[key] = Deriver(ChatTemplate(bare.source, variables, clock))
        return self._derivers[key]

    def _bare(self, path: Path | None, source: str) -> tuple[ChatTemplate, frozenset[str]]:
        """A template without arguments of the row, and the names that it reads."""
        key = path or source
        if key not in self._templates:
            template = ChatTemplate(source, {"bos_token": ""}) if path is None else load_template(path, {})
            self._templates[key] = (template, template.reads())
        return self._templates[key]

    def _path(self, row: Row) -> Path:
        name = row.template if row.template is not None else row.model or ""
        tried = [folder / each for folder in self._folders for each in (name, f"{name}.jinja")]
        for path in tried:
            if path.exists():
                return path
        kind = "template" if row.template is not None else "model"
        raise ConfigError(
            f"there is no {kind} {name!r}; looked for {', '.join(map(str, tried))}",
            remedy="Name an existing path, or the folder of the templates with --templates.",
        )

    def _encoder(self, path: Path, template: str) -> TextEncoder | None:
        if path not in self._encoders:
            encoder = None
            if (path / "tokenizer.json").is_file():
                from miles_core.session.tokenizer import ChatTokenizer

                encoder = TextEncoder(ChatTokenizer.load(path).tokenizer, template)
            self._encoders[path] = encoder
        return self._encoders[path]


def _is_source(template: str) -> bool:
    return "{{" in template or "{%" in template


def _ids(deriver: IdDeriver, turn: Turn, generated: list[int] | None) -> list[int]:
    boundary = deriver.boundary(turn)
    said = list(generated if generated is not None else deriver.generated(turn.generated))
    if boundary.drop_stop:
        said = said[:-1]
    return [*deriver.prompt(turn.messages, turn.tools), *said, *boundary.ids]

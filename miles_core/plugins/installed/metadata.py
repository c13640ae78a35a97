"""What a distribution's metadata files say of it, however broken they are."""

from __future__ import annotations

import json
from dataclasses import dataclass
from email import message_from_string
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from importlib.metadata import Distribution

    from packaging.requirements import Requirement

UNKNOWN = "unknown"
"""The version where the metadata has none."""

_LINKS = ("documentation", "docs", "homepage", "repository", "source")


@dataclass(frozen=True, slots=True)
class Facts:
    """The headers that matter here; empty where the file is missing, unreadable or lacks them."""

    name: str = ""
    version: str = UNKNOWN
    requires: tuple[str, ...] = ()
    summary: str = ""
    url: str = ""


def read_facts(distribution: Distribution) -> Facts:
    """Read ``METADATA``, or ``PKG-INFO``, once: `importlib.metadata` parses it again for every question."""
    text = read_text(distribution, "METADATA") or read_text(distribution, "PKG-INFO") or ""
    headers = message_from_string(text.partition("\n\n")[0])  # without the description, which may be long
    return Facts(
        name=str(headers.get("Name") or "").strip(),
        version=str(headers.get("Version") or UNKNOWN).strip(),
        requires=tuple(" ".join(str(line).split()) for line in headers.get_all("Requires-Dist") or ()),
        summary=str(headers.get("Summary") or "").strip().partition("\n")[0],
        url=_link([str(line) for line in headers.get_all("Project-URL") or ()]) or str(headers.get("Home-page") or ""),
    )


def read_text(distribution: Distribution, file: str) -> str | None:
    """A metadata file; ``None`` if it is missing or cannot be read."""
    try:
        return distribution.read_text(file)
    except (OSError, ValueError):
        return None


def requirement_of(text: str) -> Requirement | None:
    """The requirement; ``None`` if its marker excludes this machine, or it belongs to an extra.

    Raises:
        ValueError: if it is malformed, or its marker cannot be evaluated.
    """
    from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(text)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName) as error:
        raise ValueError(str(error).splitlines()[0]) from None
    return requirement if applies else None


def editable_folder(distribution: Distribution) -> Path | None:
    """The source folder of an editable install; ``None`` for others."""
    try:
        origin = json.loads(read_text(distribution, "direct_url.json") or "{}")
        url = urlsplit(str(origin["url"]))
        is_editable = url.scheme == "file" and origin["dir_info"]["editable"] is True
        return Path(unquote(url.path)).resolve() if is_editable else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _link(lines: list[str]) -> str:
    links = {label.strip().lower(): url.strip() for label, _, url in (line.partition(",") for line in lines)}
    return next((links[label] for label in _LINKS if label in links), next(iter(links.values()), ""))

"""What the engines of a run serve now: ``weights/manifest.json`` in its folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from miles_core.app.version_mark import FOLDER
from miles_core.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from miles_core.weights.publish import PublishResult

FILE = "manifest.json"


@dataclass(frozen=True, slots=True)
class EngineRecord:
    """An engine that runs, and whether it ``holds`` the committed version; one that does not serves nothing."""

    name: str
    url: str
    holds: bool


@dataclass(frozen=True, slots=True)
class WeightsRecord:
    """One committed version.

    ``transport``, ``path`` and ``seconds`` are those of the update that brought it to the engines, ``nbytes`` what each
    of them got at most. ``checksums`` are the xxh3-128 of what the trainer sent, by ``label:dtype`` of each box; a
    version that engines have loaded from a checkpoint by themselves has none.
    """

    version: int
    engines: tuple[EngineRecord, ...]
    transport: str = ""
    path: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    tensors: int = 0
    nbytes: int = 0
    checksums: Mapping[str, str] = field(default_factory=dict)

    def updated(self, result: PublishResult) -> WeightsRecord:
        """The record with another update of the same or a later version; engines that came up may have other boxes."""
        manifest = result.manifest
        before = self.checksums if manifest.version == self.version else {}
        return WeightsRecord(
            version=manifest.version,
            engines=self.engines,
            transport=result.transport,
            path=result.path,
            seconds=dict(result.seconds),
            tensors=manifest.tensors,
            nbytes=manifest.nbytes,
            checksums={**before, **manifest.checksums},
        )


def write_record(run_dir: Path, record: WeightsRecord) -> None:
    """Replace the record of a run; whoever reads sees a whole one.

    Raises:
        OSError: if it cannot be written.
    """
    folder = run_dir / FOLDER
    folder.mkdir(exist_ok=True)
    beside = folder / f".{FILE}.new"
    flat = {each.name: getattr(record, each.name) for each in fields(record)}
    flat["engines"] = [asdict(engine) for engine in record.engines]
    # one box a line; not by `indent`, which takes ten times as long
    beside.write_text(json.dumps(flat, separators=(",\n", ": ")) + "\n", "utf-8")
    beside.replace(folder / FILE)


def read_record(run_dir: Path) -> WeightsRecord:
    """The record of a run.

    Raises:
        CheckpointError: if there is none, or it is damaged.
    """
    path = run_dir / FOLDER / FILE
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        engines = tuple(EngineRecord(**one) for one in found.pop("engines"))
        return WeightsRecord(engines=engines, **found)
    except FileNotFoundError:
        raise CheckpointError(
            f"the run {run_dir} has no {FOLDER}/{FILE}: its engines have no weights yet",
            remedy="Wait until the first step begins.",
        ) from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {type(error).__name__}: {error}",
            remedy="Wait for the next step, which writes it anew.",
        ) from error

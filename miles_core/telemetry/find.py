"""From what a person types to the folder of a run."""

from __future__ import annotations

from pathlib import Path

from miles_core.errors import DataError

LATEST = "latest"
_RECENT = 5


def find_run(reference: str, runs: Path = Path("runs")) -> Path:
    """The folder that ``reference`` means: a path, an id below ``runs``, or ``latest``.

    The latest run is the one that was started or resumed last.

    Raises:
        DataError: listing recent runs, if it is no run.
    """
    if reference == LATEST:
        recent = recent_runs(runs)
        if not recent:
            raise DataError(
                f"there is no run in {runs.resolve()}",
                remedy="Give the folder of a run, or call this where `miles train` was started.",
            )
        return recent[0]
    for candidate in (Path(reference).expanduser(), runs / reference):
        if is_run(candidate):
            return candidate.resolve()
    raise _no_run(reference, runs)


def is_run(folder: Path) -> bool:
    """Whether a folder holds the records of a run."""
    return (folder / "config.toml").is_file() and any(
        (folder / name).exists() for name in ("plugins.json", "metrics.jsonl", "checkpoints")
    )


def recent_runs(runs: Path) -> list[Path]:
    """The runs in a folder, the one that was started or resumed last first."""
    found = [folder.resolve() for folder in runs.iterdir() if is_run(folder)] if runs.is_dir() else []
    return sorted(found, key=lambda folder: ((folder / "config.toml").stat().st_mtime_ns, folder.name), reverse=True)


def _no_run(reference: str, runs: Path) -> DataError:
    there = (runs / reference).exists() or Path(reference).expanduser().exists()
    problem = "it has no config.toml beside plugins.json or metrics.jsonl" if there else "there is no such folder"
    recent = [folder.name for folder in recent_runs(runs)]
    listed = f"recent runs in {runs}/: {', '.join(recent[:_RECENT])}" if recent else f"there are no runs in {runs}/"
    return DataError(
        f"{reference!r} is no run: {problem}; {listed}",
        remedy=f"Give the folder of a run, its id below {runs}/, or `{LATEST}`.",
    )

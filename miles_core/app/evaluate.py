"""An evaluation alone: engines on a checkpoint, no trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyio import to_thread

from miles_core.app.evaluator import Evaluator
from miles_core.app.planes import build_evaluation, load_tokenizer
from miles_core.app.serving import serving
from miles_core.app.supervise import supervised

if TYPE_CHECKING:
    from pathlib import Path

    from miles_core.app.wiring import Wiring
    from miles_core.telemetry.progress import TrainingProgress


async def evaluate(
    wiring: Wiring, config_file: Path, model_path: Path, step: int, progress: TrainingProgress
) -> dict[str, float]:
    """Serve a checkpoint and run the config's evaluation on it; returns metrics.

    Raises:
        MilesError: the first cause of a failure; every process is gone by then.
    """
    tokenizer = await to_thread.run_sync(load_tokenizer, wiring)
    progress.phase("starting engines")
    async with serving(wiring, config_file, model_path) as served:
        evaluation = build_evaluation(wiring, served.client, tokenizer)
        evaluator = Evaluator(evaluation, wiring.hub, wiring.run_dir, progress)
        return await supervised(served.children, lambda: evaluator.evaluate(step))

"""An evaluation alone: engines on a checkpoint, no trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyio import to_thread

from miles_core.app.evaluator import Evaluator
from miles_core.app.planes import build_evaluation, load_tokenizer
from miles_core.app.serving import serving
from miles_core.app.session_server import session_server
from miles_core.app.supervise import supervised
from miles_core.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

    from miles_core.app.fleet import Fleet
    from miles_core.app.wiring import Wiring
    from miles_core.telemetry.progress import TrainingProgress


async def evaluate(
    wiring: Wiring, config_file: Path, model_path: Path, step: int, progress: TrainingProgress
) -> dict[str, float]:
    """Serve a checkpoint and run the config's evaluation on it; returns metrics.

    Raises:
        MilesError: the first cause of a failure; every process is gone by then.
    """
    await wiring.hooks.observe("miles_process_started", role="driver", rank=0)
    tokenizer = await to_thread.run_sync(load_tokenizer, wiring)
    progress.phase("starting engines")
    async with (
        session_server(wiring) as sessions,
        serving(wiring, config_file, model_path, progress) as served,
    ):
        _refuse_foreign_weights(served.fleet, model_path)
        url = served.router.ready["url"]
        evaluation = build_evaluation(wiring, served.client, tokenizer, router_url=url, endpoints=sessions)
        evaluator = Evaluator(evaluation, wiring.hooks, wiring.run_dir, progress)
        return await supervised([served.router, served.fleet], lambda: evaluator.evaluate(step))


def _refuse_foreign_weights(fleet: Fleet, model_path: Path) -> None:
    """No trainer is here that could bring the checkpoint's weights to engines that run already."""
    if fleet.behind:
        raise EngineError(
            f"engine {fleet.behind[0]} ran before this command, so it may serve other weights than {model_path}",
            remedy="Let miles start the engine.",
        )

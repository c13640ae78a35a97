"""Trackers and weight transports by import path; router middlewares have tests of their own."""

from __future__ import annotations

import json

from miles_core.app.checks import check_run
from miles_core.app.tracking import open_trackers


def test_a_tracker(wired, theirs, tmp_path) -> None:
    module = theirs(
        """
import json

class File:
    def __init__(self, config, context): self.path = context.run_dir / "mine.json"
    def log(self, step, metrics): self.path.write_text(json.dumps({"step": step, **metrics}))
    def close(self): ...
"""
    )
    trackers = open_trackers(wired(f'trackers=[{{use="{module}:File"}}]'), print, None)
    trackers.log(3, {"train/loss": 0.5})
    trackers.close()
    assert json.loads((tmp_path / "mine.json").read_text()) == {"step": 3, "train/loss": 0.5}


def test_a_weight_transport_is_in_the_lock_of_the_run(wired, theirs) -> None:
    module = theirs(
        """
class Nowhere:
    def __init__(self, config, context): ...
    def send(self, bucket, payload): return {}
    def release(self, delivery): ...
    def receive(self, delivery, bucket, held): return b""
    def close(self): ...
"""
    )
    lock = check_run(wired(f"weights.use={module}:Nowhere"))
    assert [row["target"] for row in lock if row["kind"] == "weight_transports"] == [f"{module}:Nowhere"]

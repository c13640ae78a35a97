"""Whether the engines of a live run hold what its trainer sent, tensor by tensor."""

from miles_core.app.verify.report import CheckpointFinding, Difference, EngineFinding, VerifyReport
from miles_core.app.verify.run import verify_run

__all__ = ["CheckpointFinding", "Difference", "EngineFinding", "VerifyReport", "verify_run"]

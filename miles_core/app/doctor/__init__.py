"""What this machine can run: each check is a function that returns findings, and nothing is downloaded or changed."""

from miles_core.app.doctor.examine import examine
from miles_core.app.doctor.finding import Finding

__all__ = ["Finding", "examine"]

"""The memory transport with places where a drill can hold an end, make it fail, or spoil what it brings.

A drill puts files into the folder ``$DRILL_FOLDER``; ``$DRILL_NAME`` says which process this is.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from miles_core.api import WeightSyncError
from miles_plugins.transports.memory import Memory


class Drill(Memory):
    def send(self, bucket, payload):
        at(f"send-{bucket.index}")
        return super().send(bucket, payload)

    def receive(self, delivery, bucket, held):
        at(f"receive-{bucket.index}")
        data = bytearray(super().receive(delivery, bucket, held))
        if there(f"spoil-{bucket.index}"):
            data[len(data) // 2] ^= 1
        return data


def at(point: str) -> None:
    """Fail here if asked to; note that this point is reached, and stay while held."""
    if there(f"{point}.fail"):
        raise WeightSyncError(f"the drill fails at {point}")
    if there(f"{point}.hold"):
        place(f"{point}.reached").touch()
        while there(f"{point}.hold"):
            time.sleep(0.002)


def there(what: str) -> bool:
    return place(what).exists()


def place(what: str) -> Path:
    return Path(os.environ["DRILL_FOLDER"]) / f"{os.environ.get('DRILL_NAME', 'trainer')}.{what}"

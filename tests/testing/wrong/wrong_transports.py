"""Weight transports that break one rule each; the kind's suite also asks for them in processes of their own."""

from __future__ import annotations

import base64
import os
import pickle
import re
import secrets
from pathlib import Path

from miles_core.api import WeightSyncError
from miles_core.testing import WeightTransportSuite


class Right:
    """Files in the run's folder, named after the process that wrote them."""

    def __init__(self, config, context):
        self.folder = Path(context.run_dir or ".") / "buckets"
        self.held = []
        self.kept = None

    def send(self, bucket, payload):
        self.folder.mkdir(exist_ok=True)
        if not self.held:
            self.tidy()
        path = self.folder / f"{os.getpid()}-{secrets.token_hex(4)}"
        path.write_bytes(self.packed(bucket, payload))
        self.held.append(path)
        return self.delivery(bucket, path)

    def tidy(self):
        for path in self.folder.iterdir():
            if not Path("/proc", path.name.partition("-")[0]).exists():
                path.unlink()

    def packed(self, bucket, payload):
        return bytes(payload)

    def delivery(self, bucket, path):
        return {"file": path.name}

    def release(self, delivery):
        path = self.folder / delivery["file"]
        self.held.remove(path)
        path.unlink()

    def receive(self, delivery, bucket, held):
        if not re.fullmatch(r"\d+-[0-9a-f]{8}", str(delivery.get("file"))):
            raise WeightSyncError("a foreign delivery")
        data = self.read(self.folder / delivery["file"])
        if len(data) != bucket.nbytes:
            raise WeightSyncError(f"{len(data)} bytes came of {bucket.nbytes}")
        return data

    def read(self, path):
        try:
            return path.read_bytes()
        except OSError as error:
            raise WeightSyncError(str(error)) from error

    def close(self):
        while self.held:
            self.held.pop().unlink(missing_ok=True)


class NoOddSizes(Right):
    """Takes four bytes at a time."""

    def packed(self, bucket, payload):
        data = bytearray(payload)
        if len(data) % 4:
            data[-(len(data) % 4) :] = bytes(len(data) % 4)
        return bytes(data)


class InMemory(Right):
    """Keeps the bytes where only its own process finds them."""

    shelf = {}  # noqa: RUF012 - that is what is wrong with it

    def send(self, bucket, payload):
        name = f"1-{secrets.token_hex(4)}"
        self.shelf[name] = bytes(payload)
        return {"file": name}

    def release(self, delivery):
        del self.shelf[delivery["file"]]

    def read(self, path):
        if path.name not in self.shelf:
            raise WeightSyncError("no such bucket")
        return self.shelf[path.name]


class ReadOnce(Right):
    """Removes a file that was read."""

    def read(self, path):
        data = super().read(path)
        path.unlink()
        return data

    def release(self, delivery):
        self.held.remove(self.folder / delivery["file"])

    def receive(self, delivery, bucket, held):
        path = self.folder / str(delivery.get("file"))
        if path in self.folder.glob("*-*") and path.stat().st_size != bucket.nbytes:
            raise WeightSyncError("another size")
        return super().receive(delivery, bucket, held)


class Stale(Right):
    """Sends the first payload of each bucket again and again."""

    def packed(self, bucket, payload):
        self.kept = self.kept or {}
        return self.kept.setdefault(bucket.index, bytes(payload))


class Blind(Right):
    """Sends changes of what it sent last, whatever the receivers hold."""

    def packed(self, bucket, payload):
        self.kept = self.kept or {}
        before, self.kept[bucket.index] = self.kept.get(bucket.index, bytes(bucket.nbytes)), bytes(payload)
        return bytes(a ^ b for a, b in zip(before, bytes(payload), strict=True))

    def receive(self, delivery, bucket, held):
        data = super().receive(delivery, bucket, held)
        return bytes(a ^ b for a, b in zip(data, held(), strict=True))


class Keeping(Right):
    """Frees nothing before the end."""

    def release(self, delivery):
        assert self.folder / delivery["file"] in self.held


class Trusting(Right):
    """Reads any file that a delivery names."""

    def receive(self, delivery, bucket, held):
        data = self.read(self.folder / delivery["file"])
        if Path(delivery["file"]).name == delivery["file"] and len(data) != bucket.nbytes:
            raise WeightSyncError("another size")
        return data


class Filling(Right):
    """Fills up what is missing."""

    def receive(self, delivery, bucket, held):
        if not re.fullmatch(r"\d+-[0-9a-f]{8}", str(delivery.get("file"))):
            raise WeightSyncError("a foreign delivery")
        if delivery["nbytes"] != bucket.nbytes:
            raise WeightSyncError("another size")
        return self.read(self.folder / delivery["file"]).ljust(bucket.nbytes, b"\0")

    def delivery(self, bucket, path):
        return {"file": path.name, "nbytes": bucket.nbytes}


class Pickling(Right):
    """Describes the bucket by a pickle."""

    def delivery(self, bucket, path):
        return {"file": path.name, "bucket": base64.b64encode(pickle.dumps({"index": bucket.index})).decode()}


class Forgetful(Right):
    """Closes without a look."""

    def close(self):
        pass


class Untidy(Right):
    """Leaves the files of the dead."""

    def tidy(self):
        pass


class Spilling(Right):
    """Writes whole parameters, by itself."""

    def offer(self, tensors):
        self.tensors = tensors
        return {}

    def receive(self, delivery, bucket, held):
        from miles_core.weights.buffers import byte_view

        data = super().receive(delivery, bucket, held)
        if bucket.index == 2:
            byte_view(self.tensors["large"]).fill_(1)
        return data


class TestRight(WeightTransportSuite):
    plugin = "wrong_transports:Right"
    breaks = ()


class TestNoOddSizes(WeightTransportSuite):
    plugin = NoOddSizes
    ruins = True
    breaks = ("carries_every_type_and_size",)


class TestInMemory(WeightTransportSuite):
    plugin = "wrong_transports:InMemory"
    breaks = ("reaches_another_process",)


class TestReadOnce(WeightTransportSuite):
    plugin = ReadOnce
    breaks = (
        "one_delivery_serves_several_receivers",
        "versions_follow_each_other",
        "a_receiver_that_joins_late_gets_everything",
    )


class TestStale(WeightTransportSuite):
    plugin = Stale
    breaks = ("versions_follow_each_other", "a_receiver_that_joins_late_gets_everything")


class TestBlind(WeightTransportSuite):
    plugin = Blind
    breaks = ("a_receiver_that_joins_late_gets_everything",)


class TestKeeping(WeightTransportSuite):
    plugin = Keeping
    breaks = ("release_frees",)


class TestTrusting(WeightTransportSuite):
    plugin = Trusting
    breaks = ("refuses_foreign_deliveries",)


class TestFilling(WeightTransportSuite):
    plugin = Filling
    breaks = ("refuses_what_was_cut",)


class TestPickling(WeightTransportSuite):
    plugin = Pickling
    breaks = ("deliveries_hold_no_code",)


class TestForgetful(WeightTransportSuite):
    plugin = Forgetful
    breaks = ("close_removes_what_is_left",)


class TestUntidy(WeightTransportSuite):
    plugin = "wrong_transports:Untidy"
    breaks = ("nothing_stays_of_a_killed_sender",)


class TestSpilling(WeightTransportSuite):
    plugin = Spilling
    breaks = ("writes_what_the_update_names",)

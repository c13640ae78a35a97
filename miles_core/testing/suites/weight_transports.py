"""What every weight transport must keep."""

from __future__ import annotations

import base64
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from miles_core.errors import WeightSyncError
from miles_core.testing.leftovers import Leftovers
from miles_core.testing.suites.base import PluginSuite
from miles_core.testing.weight_model import make_buckets, payload_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from miles_core.testing.transport_ends import ReceivingEnd, SendingEnd
    from miles_core.testing.transport_peer import TransportPeer
    from miles_core.types import Bucket

_PICKLE = tuple(b"\x80" + bytes([protocol]) for protocol in range(2, 6))


class WeightTransportSuite(PluginSuite):
    """Conformance of weight transports, on parameters of every type; both ends run on this machine.

    ``places`` are folders outside the run's where a transport may leave something. A transport that only SGLang's own
    endpoints take, or that cannot be used here, is only loaded and made.
    """

    kind = "weight_transports"
    places: ClassVar[Sequence[str]] = ("/dev/shm",)  # noqa: S108 - shared memory, not a place for temporary files
    time_limit: ClassVar[float] = 60.0

    def test_carries_every_type_and_size(self) -> None:
        """All bytes arrive: every type, boxes that begin anywhere, a scalar, no byte at all, a bucket of 1 MiB."""
        with self.ends() as (sender, (receiver,)):
            sender.publish(1, [receiver])
            self._check_held(receiver, 1, "after one update")

    def test_reaches_another_process(self) -> None:
        """A delivery that went through JSON is enough for an engine in a process of its own."""
        with self.ends(receivers=0) as (sender, _), self.peer() as peer:
            sender.open(1, [peer.ask("offer")], [None])
            for bucket in make_buckets():
                peer.ask("receive", bucket.index, sender.send(bucket, 1))
                sender.release()
            wrong = peer.ask("wrong", 1)
        self.check(not wrong, expected="all bytes in the other process", got=f"others in {wrong}", remedy=_SHARE)

    def test_one_delivery_serves_several_receivers(self) -> None:
        """Each receiver of a stream gets the same delivery, before it is released."""
        with self.ends(receivers=3) as (sender, receivers):
            sender.publish(1, receivers)
            for number, receiver in enumerate(receivers):
                self._check_held(receiver, 1, f"in receiver {number} of 3")

    def test_versions_follow_each_other(self) -> None:
        """Each version arrives on top of the one before, also where only few bytes have changed."""
        with self.ends(receivers=2) as (sender, receivers):
            for version in (1, 2, 4):
                sender.publish(version, receivers)
                for receiver in receivers:
                    self._check_held(receiver, version, f"of version {version}")

    def test_a_receiver_that_joins_late_gets_everything(self) -> None:
        """One that holds nothing, or an older version, is never sent changes of what it does not hold."""
        with self.ends(receivers=3) as (sender, receivers):
            sender.publish(1, receivers[:2])
            sender.publish(2, receivers[:1])
            sender.publish(3, receivers)
            for number, receiver in enumerate(receivers):
                self._check_held(receiver, 3, f"in receiver {number}, which held version {(2, 1, None)[number]}")

    def test_release_frees(self) -> None:
        """What is released makes room: files and shared memory do not become more from update to update."""
        before, kept = self.leftovers.present(), 0
        with self.ends() as (sender, (receiver,)):
            for version in (1, 2, 3):
                self._update(sender, receiver, version)
                kept = max(kept, len(self.leftovers.present() - before))
            for version in (4, 5, 6):
                self._update(sender, receiver, version)
            later = self.leftovers.left(before, at_most=kept)
        self.check(
            len(later) <= kept,
            expected=f"at most {kept} files and folders after six updates, as after three",
            got=_shown(later),
            remedy="Remove in release() what send() made, or use it again.",
        )

    def test_refuses_foreign_deliveries(self) -> None:
        """A delivery comes over HTTP: one that lacks everything, or is of another bucket, is a WeightSyncError."""
        small, _, other, large = make_buckets()
        with self.ends() as (sender, (receiver,)):
            sender.open(1, [receiver.offer()], [None])
            delivery, wrong = sender.send(small, 1), sender.send(large, 1)
            for what, given in (("an empty delivery", {}), ("that of another bucket", wrong), *_forged(delivery)):
                self._check_refused(receiver, small, given, what)
            self._check_refused(receiver, other, delivery, "that of another bucket")
            receiver.receive(small, delivery)
            sender.release()

    def test_refuses_what_was_cut(self) -> None:
        """A file, or a segment of shared memory, that lacks its end is a WeightSyncError and not half a bucket."""
        large = make_buckets()[-1]
        with self.ends() as (sender, (receiver,)):
            sender.open(1, [receiver.offer()], [None])
            before = self.leftovers.present()
            delivery = sender.send(large, 1)
            files = [
                path for path in self.leftovers.present() - before if path.is_file() and path.stat().st_size >= 1000
            ]
            if not files:
                pytest.skip("a delivery lies in no file that could be cut")
            for path in files:
                with path.open("r+b") as file:
                    file.truncate(path.stat().st_size // 2)
            self._check_refused(receiver, large, delivery, f"a bucket whose {files[0].name} was cut")

    def test_deliveries_hold_no_code(self) -> None:
        """Deliveries, offers and files are data: no pickle, which runs what its sender likes when it is read."""
        with self.ends() as (sender, (receiver,)):
            before = self.leftovers.present()
            offer = receiver.offer()
            sender.open(1, [offer], [None])
            for bucket in make_buckets():
                delivery = sender.send(bucket, 1)
                texts = [text for text in (*_texts(offer), *_texts(delivery)) if _is_pickle(text)]
                self.check(not texts, expected="plain data", got=f"a pickle: {texts[:1]!r:.60}", remedy=_PLAIN)
                files = [
                    path for path in self.leftovers.present() - before if path.is_file() and _begins_as_pickle(path)
                ]
                self.check(not files, expected="plain data", got=f"a pickle in {_shown(files)}", remedy=_PLAIN)

    def test_close_removes_what_is_left(self) -> None:
        """After close() nothing stays of deliveries that no one released."""
        before = self.leftovers.present()
        with self.ends() as (sender, (receiver,)):
            sender.open(1, [receiver.offer()], [None])
            for bucket in make_buckets():
                sender.send(bucket, 1)
        left = self.leftovers.left(before)
        self.check(not left, expected="nothing after close()", got=_shown(left), remedy="Remove all that is held.")

    def test_nothing_stays_of_a_killed_sender(self) -> None:
        """What a trainer left that was killed in an update is gone when the next one has begun and ended."""
        before = self.leftovers.present()
        with self.ends() as (sender, (receiver,)), self.peer() as peer:
            peer.ask("send", 1, [receiver.offer()], [None])
            peer.kill()
            receiver.base = None
            sender.publish(2, [receiver])
            self._check_held(receiver, 2, "after the second trainer's update")
        left = self.leftovers.left(before)
        self.check(not left, expected="nothing of the killed one", got=_shown(left), remedy=_KILLED)

    def test_writes_what_the_update_names(self) -> None:
        """A transport that writes by itself changes the boxes of its buckets, and no byte beside them."""
        with self.ends() as (sender, (receiver,)):
            if not receiver.writes_by_itself:
                pytest.skip("it does not write into the parameters by itself")
            offered = receiver.offer()
            sender.open(1, [offered], [None])
            sent = make_buckets()[2]
            delivery = sender.send(sent, 1)
            receiver.receive(sent, delivery)
            sender.release()
            wrong = receiver.wrong(1)
            others = [bucket.index for bucket in make_buckets() if bucket.nbytes and bucket.index != sent.index]
            written = [index for index in others if any(receiver.held(make_buckets()[index]))]
        self.check(
            sent.index not in wrong and -1 not in wrong and not written,
            expected=f"the bytes of bucket {sent.index} alone",
            got=f"wrong or strange bytes in {sorted({*written, *({sent.index, -1} & set(wrong))})}",
            remedy="Write each box at its parameter, offset and strides.",
        )

    @contextmanager
    def ends(self, receivers: int = 1) -> Iterator[tuple[SendingEnd, list[ReceivingEnd]]]:
        """A trainer's end and engines' ends, closed after the block."""
        self._skip_unless_usable()
        from miles_core.testing.transport_ends import ReceivingEnd, SendingEnd

        with ExitStack() as stack:
            made = [self.make() for _ in range(receivers + 1)]
            for transport in made:
                stack.callback(transport.close)
            yield SendingEnd(made[0]), [ReceivingEnd(transport) for transport in made[1:]]

    def peer(self) -> AbstractContextManager[TransportPeer]:
        """Both ends in a process of their own."""
        from miles_core.testing.transport_peer import transport_peer

        if self.ref.factory is not None:
            pytest.skip("it is given as an object, so another process cannot import it")
        assert self._run_dir is not None
        return transport_peer(self.ref.qualified_name, self.options, self._run_dir, time_limit=self.time_limit)

    @property
    def leftovers(self) -> Leftovers:
        """The folders where a transport may leave something."""
        assert self._run_dir is not None
        return Leftovers(self._run_dir, self.places)

    def _update(self, sender: SendingEnd, receiver: ReceivingEnd, version: int) -> None:
        """One in which nothing is released before all is sent."""
        sender.open(version, [receiver.offer()], [receiver.base])
        for bucket in make_buckets():
            receiver.receive(bucket, sender.send(bucket, version))
        sender.release()
        receiver.base = version

    def _skip_unless_usable(self) -> None:
        plugin: Any = self.hub.load(self.ref)
        if not getattr(plugin, "receivers", True):
            pytest.skip("only SGLang's own endpoints take it")
        why = getattr(plugin, "unavailable", None)
        if why is not None and (unavailable := why()) is not None:
            pytest.skip(f"it cannot be used here: {unavailable}")

    def _check_held(self, receiver: ReceivingEnd, version: int, where: str) -> None:
        wrong = receiver.wrong(version)
        self.check(
            not wrong,
            expected=f"every byte {where}",
            got=f"others in {', '.join(f'bucket {index}' if index >= 0 else 'a parameter beside' for index in wrong)}",
            remedy="Return the bytes of `bucket`, in the order of its placements.",
        )

    def _check_refused(self, receiver: ReceivingEnd, bucket: Bucket, delivery: dict[str, Any], what: str) -> None:
        """``WeightSyncError``, or the right bytes, where what was forged does not matter."""
        try:
            data = receiver.transport.receive(delivery, bucket, lambda: bytearray(bucket.nbytes))
        except WeightSyncError:
            return
        except Exception as error:  # noqa: BLE001 - whatever else it raises is what is wrong
            got = f"{type(error).__name__}: {error}"
        else:
            if data is not None and bytes(data) == payload_of(bucket, 1):
                return
            got = "bytes that are not the bucket's"
        self.check(False, expected=f"a WeightSyncError for {what}", got=got, remedy="Check it before it is used.")


_SHARE = "Let a delivery say all that another process needs."
_PLAIN = "Send JSON and raw bytes."
_KILLED = "Remove what dead processes left when you begin, such as files whose lock is free."


def _forged(delivery: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The delivery with each name in it replaced by that of another file, or of none."""
    for key, value in delivery.items():
        if isinstance(value, str):
            for forged in ("/etc/hostname", "../../../../etc/hostname", "no-such-thing", ""):
                yield f"the {key} {forged!r}", {**delivery, key: forged}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from (key, *_texts(inner))
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _is_pickle(text: str) -> bool:
    """Whether a text holds one, as it is or in base64 or hex."""
    found = [text.encode("latin-1", "replace")]
    with suppress(ValueError):
        found.append(base64.b64decode(text, validate=True))
    with suppress(ValueError):
        found.append(bytes.fromhex(text))
    return any(data.startswith(_PICKLE) and data.endswith(b".") for data in found)


def _begins_as_pickle(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) in _PICKLE
    except OSError:  # a folder, or gone by now
        return False


def _shown(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths[:3])) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")

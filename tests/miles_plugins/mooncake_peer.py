"""An engine's end in a process of its own: parameters, and JSON commands on stdin that it answers on stdout."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

import torch

from miles_core.api import Bucket, PluginContext
from miles_plugins.transports.mooncake import Mooncake


class Peer:
    def __init__(self):
        self.end = Mooncake(Mooncake.Config(host="127.0.0.1"), PluginContext())
        self.tensors = {}

    def make(self, parameters):
        """Zeros, in new memory; the old ones stay alive so that they have another address."""
        self.old = self.tensors
        self.tensors = {
            name: torch.zeros(shape, dtype=getattr(torch, dtype)) for name, (dtype, shape) in parameters.items()
        }

    def tie(self, name, to):
        self.tensors[name] = self.tensors[to]

    def offer(self):
        return self.end.offer(self.tensors)

    def held(self):
        return {name: bytes(tensor.view(-1).view(torch.uint8).numpy()).hex() for name, tensor in self.tensors.items()}

    def sum(self):
        return {name: int(tensor.sum()) for name, tensor in self.tensors.items()}

    def receive(self, delivery, bucket):
        return self.end.receive(delivery, Bucket.from_json(bucket), bytearray)

    def close(self):
        self.end.close()

    def signal_when_written(self, name, number):
        """Send itself a signal as soon as the first byte of a parameter is no longer zero."""
        first = self.tensors[name].view(-1).view(torch.uint8)[:1].numpy()

        def watch():
            while not first[0]:
                pass
            os.kill(os.getpid(), number)

        threading.Thread(target=watch, daemon=True).start()


def main():
    peer = Peer()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        sys.stdout.write(json.dumps(getattr(peer, name)(*arguments)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

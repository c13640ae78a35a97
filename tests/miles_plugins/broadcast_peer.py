"""A rank that joins a group as SGLang 0.5.23 does (``init_custom_process_group``), without SGLang.

Arguments: port, rank, world size, name, then the bytes of each broadcast. It says ``started``, and joins. For each
broadcast it says ``ready``, waits for a line, receives, and says the SHA-256.
"""

import hashlib
import sys

import torch
from torch.distributed.distributed_c10d import (
    Backend,
    PrefixStore,
    _new_process_group_helper,
    _world,
    default_pg_timeout,
    rendezvous,
)


def main() -> None:
    port, rank, size, name, *counts = sys.argv[1:]
    print("started", flush=True)
    store, _, _ = next(rendezvous(f"tcp://127.0.0.1:{port}", int(rank), int(size), timeout=default_pg_timeout))
    store.set_timeout(default_pg_timeout)
    group, _ = _new_process_group_helper(
        int(size),
        int(rank),
        [],
        Backend("gloo"),
        PrefixStore(name, store),
        group_name=name,
        backend_options=None,
        timeout=default_pg_timeout,
    )
    _world.pg_group_ranks[group] = {i: i for i in range(int(size))}
    for count in counts:
        tensor = torch.empty(int(count), dtype=torch.uint8)
        print("ready", flush=True)
        sys.stdin.readline()
        torch.distributed.broadcast(tensor, src=0, group=group)
        print(hashlib.sha256(tensor.numpy()).hexdigest(), flush=True)


if __name__ == "__main__":
    main()

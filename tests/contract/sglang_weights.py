"""Sends weights to servers in SGLang's own ways; runs in SGLang's environment, given the folder of its stand-ins.

Each line of standard input is a JSON object: ``way`` (tensor, bucket or gloo), ``url``, ``checkpoint``, ``version``.
Each line of standard output is the list of what the server answered to each call, as ``[path, status, reply]``.
"""

import json
import socket
import sys
import threading
import urllib.error
import urllib.request

sys.path.insert(0, sys.argv[1])
import stand_ins

stand_ins.install()

import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from sglang.srt.utils import MultiprocessingSerializer  # noqa: E402
from sglang.srt.utils.common import init_custom_process_group  # noqa: E402
from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorBucket  # noqa: E402

# the server opens shared memory by its name; file descriptors would need a socket and a key that both know
torch.multiprocessing.set_sharing_strategy("file_system")


class Calls:
    """POSTs to one server, and what it answered."""

    def __init__(self, url):
        self.url, self.answers = url, []

    def post(self, path, **body):
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                status, raw = reply.status, reply.read()
        except urllib.error.HTTPError as error:
            status, raw = error.code, error.read()
        self.answers.append([path, status, json.loads(raw)])


def tensor(calls, weights, version):
    payload = MultiprocessingSerializer.serialize(list(weights.items()), output_str=True)
    calls.post("/update_weights_from_tensor", serialized_named_tensors=[payload], weight_version=version)


def bucket(calls, weights, version):
    made = FlattenedTensorBucket(named_tensors=list(weights.items()))
    content = {"flattened_tensor": made.get_flattened_tensor(), "metadata": made.get_metadata()}
    payload = MultiprocessingSerializer.serialize(content, output_str=True)
    options = {"load_format": "flattened_bucket", "weight_version": version}
    calls.post("/update_weights_from_tensor", serialized_named_tensors=[payload], **options)


def gloo(calls, weights, version):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    name = f"contract-{port}"
    joins = {"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1, "world_size": 2, "backend": "gloo"}
    joining = threading.Thread(
        target=calls.post, args=("/init_weights_update_group",), kwargs={**joins, "group_name": name}
    )
    joining.start()
    group = init_custom_process_group(
        backend="gloo", init_method=f"tcp://127.0.0.1:{port}", world_size=2, rank=0, group_name=name
    )
    joining.join()
    described = {
        "names": list(weights),
        "dtypes": [str(one.dtype).removeprefix("torch.") for one in weights.values()],
        "shapes": [list(one.shape) for one in weights.values()],
    }
    options = {**described, "group_name": name, "weight_version": version}
    updating = threading.Thread(target=calls.post, args=("/update_weights_from_distributed",), kwargs=options)
    updating.start()
    for one in weights.values():
        torch.distributed.broadcast(one.contiguous(), src=0, group=group)
    updating.join()
    torch.distributed.destroy_process_group(group)
    calls.post("/destroy_weights_update_group", group_name=name)


def main():
    for line in sys.stdin:
        asked = json.loads(line)
        calls = Calls(asked["url"])
        weights = load_file(f"{asked['checkpoint']}/model.safetensors")
        calls.post("/begin_weight_update")
        {"tensor": tensor, "bucket": bucket, "gloo": gloo}[asked["way"]](calls, weights, asked["version"])
        calls.post("/end_weight_update")
        sys.stdout.write(json.dumps(calls.answers) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

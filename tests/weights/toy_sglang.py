"""The endpoints of SGLang that a weight update calls, over a model without generation; it answers as 0.5.23 does."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import xxhash
from safetensors import SafetensorError, safe_open
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from miles_core.lib.layout import build_layout, parameter_table, view
from miles_plugins.bridges.qwen3_moe import Qwen3Moe


class ToySglang:
    """``calls`` are paths and bodies in order; ``answers[path]`` is a response to give instead, or what makes one."""

    def __init__(self, model):
        self.model = model
        self.weight_version = "default"
        self.model_path = "cold"
        self.paused = None
        self.busy = False
        self.server_info = {"dtype": "auto", "tp_size": 1}
        self.calls = []
        self.answers = {}
        layout = build_layout(Qwen3Moe.mapping, parameter_table(model.state_dict()), model.config.to_dict())
        self._placements = {placement.tensor.name: placement for placement in layout.placements}

    @property
    def paths(self):
        return [path for path, _ in self.calls]

    def logits(self, ids):
        with torch.no_grad():
            return self.model(torch.tensor([ids])).logits.float()

    @property
    def app(self):
        endpoints = {
            "pause_generation": self._pause,
            "continue_generation": self._continue,
            "update_weights_from_disk": self._update,
            "flush_cache": self._flush,
            "update_weight_version": self._version,
            "model_info": self._model_info,
            "server_info": self._server_info,
            "weights_checker": self._checksum,
        }

        def answering(name, endpoint):
            async def answer(request):
                body = json.loads(await request.body() or "null")
                self.calls.append((f"/{name}", body))
                instead = self.answers.get(f"/{name}")
                if instead is None:
                    return endpoint(body)
                return instead if isinstance(instead, Response) else await instead(self, body)

            return Route(f"/{name}", answer, methods=["GET", "POST"])

        return Starlette(routes=[answering(name, endpoint) for name, endpoint in endpoints.items()])

    def _pause(self, body):
        self.paused = body["mode"]
        return JSONResponse({"status": "ok"})

    def _continue(self, _):
        self.paused = None
        return JSONResponse({"status": "ok"})

    def _update(self, body):
        try:
            self.load(Path(body["model_path"]))
        except (OSError, SafetensorError, RuntimeError) as error:
            return JSONResponse({"success": False, "message": f"Failed to update weights: {error}"}, status_code=400)
        self.model_path = body["model_path"]
        return JSONResponse({"success": True, "message": "Succeeded to update model weights."})

    def load(self, folder):
        """As the real one: names that it does not know are skipped, and those that are missing keep their values."""
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        files = sorted(set(index["weight_map"].values()))
        if missing := [name for name in files if not (folder / name).is_file()]:
            raise RuntimeError(f"index references missing shards: {missing}")
        parameters = self.model.state_dict(keep_vars=True)
        for name in files:
            with safe_open(folder / name, framework="pt") as file, torch.no_grad():
                for tensor in file.keys():  # noqa: SIM118 - it is no mapping
                    if tensor in self._placements:
                        view(parameters, self._placements[tensor]).copy_(file.get_tensor(tensor))

    def _flush(self, _):
        if self.busy:
            return PlainTextResponse("Flush cache failed.\n", status_code=400)
        return PlainTextResponse("Cache flushed.\n")

    def _version(self, body):
        self.weight_version = body["new_version"]
        return JSONResponse({"success": True, "new_version": body["new_version"]})

    def _model_info(self, _):
        return JSONResponse({"model_path": self.model_path, "weight_version": self.weight_version})

    def _server_info(self, _):
        return JSONResponse(self.server_info)

    def _checksum(self, _):
        sums = {
            name: xxhash.xxh3_64_hexdigest(t.detach().view(-1).view(torch.uint8).numpy()) for name, t in self._state()
        }
        total = xxhash.xxh3_64_hexdigest(json.dumps(sums, sort_keys=True).encode())
        return JSONResponse({"success": True, "ranks": [{"checksums": sums}], "per_engine_checksum": total})

    def _state(self):
        return self.model.state_dict(keep_vars=True).items()

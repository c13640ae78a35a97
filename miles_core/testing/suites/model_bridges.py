"""What every model bridge must keep."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from miles_core.testing.suites.base import PluginSuite
from miles_core.testing.tiny_config import tiny_config, write_config
from miles_core.types import RoutingSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import torch

    from miles_core.kinds.model_bridges import ReplayPoint

_IDS = (1, 2, 3, 5, 8, 13, 21, 34)


class ModelBridgeSuite(PluginSuite):
    """Conformance of model bridges, on a tiny model of their architecture with random weights.

    ``architecture`` is by default the plugin's name. ``hf_config`` is a whole tiny ``config.json``; by default it is
    that of transformers with tiny sizes and ``config_changes``.
    """

    kind = "model_bridges"
    architecture: ClassVar[str | None] = None
    hf_config: ClassVar[Mapping[str, Any] | None] = None
    config_changes: ClassVar[Mapping[str, Any]] = {}
    time_limit: ClassVar[float] = 60.0

    _folder: Path

    @pytest.fixture(autouse=True)
    def _use_folder(self, tmp_path: Path) -> None:
        self._folder = tmp_path

    @property
    def config(self) -> dict[str, Any]:
        """The tiny model's config."""
        if self.hf_config is not None:
            return dict(self.hf_config)
        return tiny_config(self.architecture or self.ref.name, self.config_changes)

    def built(self, *, seed: int = 0, dtype: str = "float32", folder: Path | None = None) -> Any:
        """A model whose weights are drawn, all of them, or those that ``folder`` holds."""
        import torch

        if folder is not None:
            return self.make().build(str(folder), dtype=dtype, init="pretrained", seed=seed)
        directory = write_config(self._folder / "random", self.config)
        model = self.make().build(str(directory), dtype=dtype, init="random", seed=seed)
        noise = torch.Generator().manual_seed(1000 + seed)
        with torch.no_grad():  # biases and norms start alike: names that are mixed up would not show
            for tensor in model.state_dict().values():
                if tensor.is_floating_point():
                    tensor.add_(0.1 * torch.randn(tensor.shape, generator=noise).to(tensor.dtype))
        return model

    def saved(self, model: Any, name: str = "saved") -> Path:
        """The checkpoint that transformers itself writes."""
        folder = self._folder / name
        model.save_pretrained(folder)
        if not (folder / "config.json").exists():
            write_config(folder, self.config)
        return folder

    def logits(self, model: Any) -> torch.Tensor:
        """What the model says about a few tokens."""
        import torch

        with torch.no_grad():
            logits: torch.Tensor = model(input_ids=torch.tensor([_IDS]), use_cache=False).logits
        return logits

    def test_random_weights_follow_the_seed(self) -> None:
        """``build(init="random")`` draws from ``seed`` alone, and leaves torch's own generator as it was."""
        import torch

        directory = str(write_config(self._folder / "seeds", self.config))
        state = torch.get_rng_state()
        one, same, other = (
            self.make().build(directory, dtype="float32", init="random", seed=seed).state_dict() for seed in (1, 1, 2)
        )
        self.check(_equal(one, same), expected="equal weights from one seed", got="others", remedy="Use the seed.")
        self.check(
            not _equal(one, other), expected="other weights from another seed", got="equal ones", remedy="Use the seed."
        )
        self.check(
            torch.equal(state, torch.get_rng_state()),
            expected="torch's generator as it was",
            got="another state",
            remedy="Build inside torch.random.fork_rng().",
        )

    def test_builds_the_dtype(self) -> None:
        """Parameters have the ``dtype`` that was asked for; few may stay float32, as router biases do."""
        for dtype in ("float32", "bfloat16"):
            kinds = [str(parameter.dtype).removeprefix("torch.") for parameter in self.built(dtype=dtype).parameters()]
            self.check(
                set(kinds) <= {dtype, "float32"} and 2 * kinds.count(dtype) > len(kinds),
                expected=f"parameters of {dtype}",
                got=sorted(set(kinds)),
                remedy="Pass dtype on.",
            )

    def test_the_mapping_claims_every_tensor_once(self) -> None:
        """Each parameter and persistent buffer fills checkpoint tensors of its own; none is left out."""
        from miles_core.errors import WeightSyncError

        try:
            layout = self._layout(self.built().state_dict())
        except WeightSyncError as error:
            self.check(False, expected="names of its own for each parameter", got=str(error), remedy="See the mapping.")
            return
        self.check(
            not layout.unclaimed,
            expected="every parameter in the mapping",
            got=f"none for {', '.join(layout.unclaimed[:3])}",
            remedy="Correct the `parts` of its Rule: its entries must divide into them.",
        )

    def test_exports_what_transformers_writes(self) -> None:
        """Names, shapes, types and every bit are those of ``save_pretrained``."""
        import torch
        from safetensors.torch import load_file

        from miles_core.lib.layout import view

        for dtype in ("float32", "bfloat16"):
            model = self.built(dtype=dtype)
            folder = self.saved(model, f"saved-{dtype}")
            expected = {key: value for file in folder.glob("*.safetensors") for key, value in load_file(file).items()}
            tensors = model.state_dict()
            found = {p.tensor.name: view(tensors, p) for p in self._layout(tensors).placements}
            missing, extra = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
            self.check(
                not missing and not extra,
                expected="the checkpoint's names",
                got=f"missing {missing[:3]}, not in it {extra[:3]}",
                remedy="Add a Rule to the mapping.",
            )
            wrong = [n for n, t in found.items() if t.dtype != expected[n].dtype or not torch.equal(t, expected[n])]
            self.check(
                not wrong,
                expected="the bits of the checkpoint",
                got=f"others in {', '.join(wrong[:3])}",
                remedy="Check the order of `parts`, and which dimension they divide.",
            )

    def test_loads_what_is_exported(self) -> None:
        """``build(init="pretrained")`` fills a model with every bit of a checkpoint."""
        model = self.built()
        loaded = self.built(folder=self.saved(model), seed=9)
        differing = _differing(model.state_dict(), loaded.state_dict())
        self.check(
            not differing,
            expected="the weights of the checkpoint",
            got=f"others in {', '.join(differing[:3])}",
            remedy="Load each tensor by its name, and refuse a checkpoint that lacks one.",
        )

    def test_logits_are_those_of_transformers(self) -> None:
        """The model of a checkpoint computes what ``AutoModelForCausalLM`` does."""
        import torch
        import transformers

        model = self.built()
        folder = self.saved(model)
        plain: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype="float32", attn_implementation=model.config._attn_implementation
        )
        one, other = self.logits(self.built(folder=folder)), self.logits(plain.eval())
        self.check(
            torch.equal(one, other),
            expected="the logits of transformers",
            got=f"a difference of {float((one - other).abs().max()):.3g}",
            remedy="Build the model in evaluation mode, with the checkpoint's config.",
        )

    def test_routing_spec_agrees_with_the_replay_points(self) -> None:
        """``routing_spec`` names the MoE layers, in order, that ``replay_points`` finds in the model."""
        spec, points = self.make().routing_spec(self.config), self.points(self.built())
        layers = tuple(point.layer_id for point in points)
        if spec is None:
            self.check(not layers, expected="no replay points: routing_spec is None", got=layers, remedy="Name them.")
            return
        self.check(
            isinstance(spec, RoutingSpec) and spec.layer_ids == layers == tuple(sorted(set(layers))),
            expected=f"replay points of the layers {getattr(spec, 'layer_ids', spec)}, ascending",
            got=layers,
            remedy="Return one ReplayPoint per MoE layer, in order.",
        )
        logits, weights, indices = points[0].router(self._hidden())
        self.check(
            (logits.shape[-1], indices.shape[-1], weights.shape) == (spec.num_experts, spec.top_k, indices.shape),
            expected=f"logits of {spec.num_experts} experts, weights and indices of {spec.top_k}",
            got=f"logits {tuple(logits.shape)}, weights {tuple(weights.shape)}, indices {tuple(indices.shape)}",
            remedy="Point `router` at the module that returns (logits, weights, indices).",
        )

    def test_replay_weights_are_the_routers_own(self) -> None:
        """``weights(logits, indices)`` of the router's own choice is what it returned, also in another order."""
        import torch

        for point in self._moe_points(self.built()):
            with torch.no_grad():
                logits, weights, indices = point.router(self._hidden())
            for order, given, expected in (
                ("its own order", indices, weights),
                ("reverse order", indices.flip(-1), weights.flip(-1)),
            ):
                found = point.weights(logits, given)
                self.check(
                    torch.equal(found, expected),
                    expected=f"the weights of layer {point.layer_id}'s router for its indices in {order}",
                    got=f"a difference of {float((found - expected).abs().max()):.3g}",
                    remedy="Compute them as the router does: same function, same order, same type.",
                )

    def test_replayed_experts_are_used(self) -> None:
        """Experts that a replay names change what the model says, and the router still learns."""
        import torch

        model = self.built()
        plain = self.logits(model)
        for point in self._moe_points(model):

            def replay(module: Any, arguments: Any, output: Any, point: ReplayPoint = point) -> Any:
                forced = (output[2] + 1) % output[0].shape[-1]
                return output[0], point.weights(output[0], forced), forced

            with point.router.register_forward_hook(replay):
                other = model(input_ids=torch.tensor([_IDS]), use_cache=False).logits
                other.square().sum().backward()
            gradient = sum(float(p.grad.abs().sum()) for p in point.router.parameters() if p.grad is not None)
            self.check(
                not torch.equal(other.detach(), plain) and gradient > 0,
                expected=f"other logits when layer {point.layer_id} uses other experts, and a gradient at its router",
                got=f"equal logits: {torch.equal(other.detach(), plain)}, gradient {gradient:.3g}",
                remedy="Point `router` at the module whose output the experts use.",
            )
            model.zero_grad()

    def test_routing_spec_needs_no_torch(self) -> None:
        """Mapping and routing shape are known without torch: driver, router and `doctor` ask for them."""
        import subprocess

        if self.ref.factory is not None:
            pytest.skip("it is given as an object, so it cannot be imported anew")
        code = (
            "import json, sys\n"
            "from miles_core.testing.make import make_plugin\n"
            "name, options, config = json.loads(sys.argv[1])\n"
            "made = make_plugin('model_bridges', name, options)\n"
            "made.mapping, made.routing_spec(config)\n"
            "sys.exit('torch' in sys.modules)"
        )
        argument = json.dumps([self.ref.qualified_name, dict(self.options), self.config])
        done = subprocess.run([sys.executable, "-c", code, argument], capture_output=True, text=True, check=False)
        self.check(
            done.returncode == 0,
            expected="mapping and routing_spec() without torch",
            got=done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "an import of torch",
            remedy="Import torch and transformers inside build() and replay_points().",
        )

    def points(self, model: Any) -> Sequence[ReplayPoint]:
        """The bridge's replay points in a model."""
        points: Sequence[ReplayPoint] = self.make().replay_points(model)
        return points

    def _moe_points(self, model: Any) -> Sequence[ReplayPoint]:
        points = self.points(model)
        if not points:
            pytest.skip("it is dense: no layer is routed")
        return points

    def _hidden(self) -> torch.Tensor:
        import torch

        size = self.config["hidden_size"]
        return torch.randn(7, size, generator=torch.Generator().manual_seed(1))

    def _layout(self, tensors: Mapping[str, torch.Tensor]) -> Any:
        from miles_core.lib.layout import build_layout, parameter_table

        return build_layout(self.make().mapping, parameter_table(tensors), {})


def _equal(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and not _differing(one, other)


def _differing(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> list[str]:
    import torch

    return [
        name
        for name in sorted(one.keys() | other.keys())
        if name not in one
        or name not in other
        or one[name].dtype != other[name].dtype
        or not torch.equal(one[name], other[name])
    ]

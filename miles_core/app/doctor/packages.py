"""Checks of Python and its packages."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement

from miles_core.app.doctor.finding import Finding
from miles_core.app.doctor.probe import probe
from miles_core.engine.sglang.cpu.environment import cpu_environment
from miles_core.engine.sglang.version import check_version
from miles_core.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.plugins.hub import Hub

DISTRIBUTION = "miles-hub"
TORCH_FACTS = """
gpus = [found.cuda.get_device_properties(i) for i in range(found.cuda.device_count())]
facts.update(threads=found.get_num_threads(), cuda=found.version.cuda, gpus=[[g.name, g.total_memory] for g in gpus])
"""


def python() -> list[Finding]:
    """The interpreter, and the packages that the core declares."""
    return [
        Finding("python", "ok", f"{platform.python_version()} in {sys.prefix}", required=True),
        _dependencies(DISTRIBUTION),
    ]


def _dependencies(distribution: str) -> Finding:
    try:
        declared = [Requirement(text) for text in metadata.requires(distribution) or ()]
    except metadata.PackageNotFoundError:
        return Finding(
            "dependencies", "problem", f"{distribution} is not installed", "Run `pip install -e .`.", required=True
        )
    needed = [requirement for requirement in declared if requirement.marker is None or requirement.marker.evaluate()]
    wrong = [
        f"{requirement} ({version or 'not installed'})"
        for requirement in needed
        if not (version := version_of(requirement.name))
        or not requirement.specifier.contains(version.partition("+")[0], prereleases=True)
    ]
    if wrong:
        return Finding(
            "dependencies", "problem", f"needs {', '.join(wrong)}", f"Run `pip install {distribution}`.", required=True
        )
    found = f"{len(needed)} packages of {distribution} {version_of(distribution)}"
    return Finding("dependencies", "ok", found, required=True)


def version_of(distribution: str) -> str | None:
    """The installed version, from metadata; ``None`` if there is none."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def torch() -> list[Finding]:
    """PyTorch, and the GPUs that it sees."""
    version = version_of("torch")
    result = probe("torch", TORCH_FACTS)
    if version is None or result.failure:
        found = result.failure if version else "not installed"
        return [Finding("torch", "problem", found, "Run `pip install --force-reinstall torch`.", required=True)]
    facts = result.facts
    build = f"CUDA {facts['cuda']}" if facts["cuda"] else "CPU build"
    return [
        Finding("torch", "ok", f"{version}, {build}, {facts['threads']} CPU threads", required=True),
        _gpus(facts),
    ]


def _gpus(facts: dict[str, Any]) -> Finding:
    if facts["gpus"]:
        return Finding("gpu", "ok", "; ".join(f"{name}, {size / 2**30:.0f} GiB" for name, size in facts["gpus"]))
    remedy = "None is needed: the embedded engine and the torch trainer run on the CPU."
    if not facts["cuda"]:
        remedy += " To use one, install a CUDA build of torch."
    return Finding("gpu", "missing", "torch sees no GPU", remedy)


@dataclass(frozen=True, slots=True)
class Package:
    """An optional package: what is imported, what installs it, and which plugin of which kind would use it."""

    distribution: str
    module: str
    extra: str
    plugin: tuple[str, str] | None = None
    code: str = ""


OPTIONAL = (
    Package("megatron-core", "megatron.core", "megatron", ("train_backends", "megatron")),
    Package("ray", "ray", "ray"),
    Package("pyarrow", "pyarrow.parquet", "data", ("data_sources", "parquet")),
    Package("datasets", "datasets", "data", ("data_sources", "huggingface")),
    Package("tensorboard", "tensorboard.compat.proto.event_pb2", "trackers", ("trackers", "tensorboard")),
    Package("wandb", "wandb", "trackers", ("trackers", "wandb")),
    Package("mlflow-skinny", "mlflow.tracking", "trackers", ("trackers", "mlflow")),
)


def transformers() -> list[Finding]:
    """What builds models and tokenizers; its model code is what breaks where versions do not fit."""
    version = version_of("transformers")
    result = probe("transformers.modeling_utils")
    if version is None or result.failure:
        found = result.failure if version else "not installed"
        remedy = "Run `pip install --force-reinstall transformers`."
        return [Finding("transformers", "problem", found, remedy, required=True)]
    return [Finding("transformers", "ok", version, required=True)]


def optional(package: Package, hub: Hub) -> list[Finding]:
    """One optional package: installed, importable, and whether this version has a use for it."""
    version = version_of(package.distribution)
    unused = "" if _is_used(package, hub) else "no installed plugin uses it"
    if version is None:
        remedy = f"Run `pip install '{DISTRIBUTION}[{package.extra}]'`."
        if unused:
            remedy = f"Not needed, since {unused}. For a plugin of your own: {remedy[0].lower()}{remedy[1:]}"
        return [Finding(package.distribution, "missing", "not installed", remedy)]
    result = probe(package.module, package.code)
    if result.failure:
        remedy = f"Run `pip install --force-reinstall {package.distribution}`."
        return [Finding(package.distribution, "problem", f"{version}; {result.failure}", remedy)]
    return [Finding(package.distribution, "ok", f"{version} ({unused})" if unused else version)]


def sglang() -> list[Finding]:
    """SGLang in this environment, and the one that is set up for machines without a GPU."""
    return [_sglang_here(), _sglang_on_cpu()]


def _sglang_here() -> Finding:
    version = version_of("sglang")
    if version is None:
        remedy = (
            f"Not needed here. For GPUs, run `pip install '{DISTRIBUTION}[sglang]'` in a virtual environment of its "
            "own and set engine.python to its interpreter."
        )
        return Finding("sglang", "missing", "not installed here", remedy)
    result = probe("sglang.srt.server_args")
    if result.failure:
        remedy = "SGLang needs a GPU and the package versions that it pins: give it a virtual environment of its own."
        return Finding("sglang", "problem", f"{version}; {result.failure}", remedy)
    return Finding("sglang", "ok", f"{version}, importable")


def _sglang_on_cpu() -> Finding:
    python = cpu_environment()
    if python is None:
        remedy = "Not needed: the embedded engine serves on the CPU. To serve with SGLang there, run `make sglang-cpu`."
        return Finding("sglang on cpu", "missing", "not set up", remedy)
    try:
        version = check_version(str(python))
    except EngineError as error:
        remedy = f"Remove {python.parent.parent} and run `make sglang-cpu`."
        return Finding("sglang on cpu", "problem", error.message, remedy)
    return Finding("sglang on cpu", "ok", f"{version} in {python.parent.parent}")


def plugins(hub: Hub) -> list[Finding]:
    """What discovery says about plugins; a broken one harms a run only if the run uses it."""
    rows = [
        Finding("plugin", "problem", problem, "Run `miles plugins doctor`, which also loads every plugin.")
        for problem in hub.problems
    ]
    return [Finding("plugins", "ok", f"{len(hub.refs())} found"), *rows]


def _is_used(package: Package, hub: Hub) -> bool:
    return package.plugin is not None and package.plugin[1] in _names(hub, package.plugin[0])


def _names(hub: Hub, kind: str) -> Sequence[str]:
    return sorted({ref.name for ref in hub.refs(kind)})

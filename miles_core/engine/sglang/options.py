"""The options of the ``sglang`` engine: keys of ``[engine]`` beside the host's own."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

OWNED = {
    "model-path": "the checkpoint of the run is served",
    "model": "the checkpoint of the run is served",
    "host": "set engine.host",
    "port": "set engine.port",
    "weight-version": "it counts the run's policy versions",
    "config": "write its options into [engine.args]",
}
"""Options of SGLang that belong to this engine, with the reason."""


class Options(BaseModel):
    """How each server is started, or where running ones are found; names are SGLang's where it has the option."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    python: str | None = Field(
        None, description="interpreter that has SGLang; default: this one, or else what `make sglang-cpu` made"
    )
    urls: tuple[str, ...] = Field((), description="attach to servers that run already, one for each of count")
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(0, ge=0, le=65535, description="that of engine 0, the next has the next; 0 picks free ones")
    gpus: tuple[int, ...] | None = Field(
        None, description="GPUs of all servers with this list, each takes its share in turn; default: visible ones"
    )
    environment: dict[str, str] = Field({}, description="variables of the server's process")
    device: Literal["cuda", "cpu", "xpu", "hpu", "npu", "musa"] | None = Field(
        None, description="default: SGLang's choice; cpu in the environment of `make sglang-cpu`"
    )
    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(None, description="default: that in config.json")
    context_length: int | None = Field(None, ge=2, description="tokens of prompt and output; default: the model's own")
    max_running_requests: int | None = Field(None, ge=1, description="requests that decode together; others wait")
    max_total_tokens: int | None = Field(None, ge=1, description="tokens in the key-value pool; default: by memory")
    mem_fraction_static: float | None = Field(
        None, gt=0, lt=1, description="share of the memory for weights and key-value pool"
    )
    tp_size: int = Field(1, ge=1, description="tensor parallel size of a server")
    pp_size: int = Field(1, ge=1, description="pipeline parallel size of a server")
    dp_size: int = Field(
        1, ge=1, description="replicas within a server; only updates from disk reach them all, which was not tried"
    )
    ep_size: int = Field(1, ge=1, description="expert parallel size, within tp_size")
    quantization: str | None = Field(None, description="such as fp8; SGLang quantizes while it loads")
    kv_cache_dtype: str | None = Field(None, description="such as fp8_e4m3; default: dtype")
    attention_backend: str | None = Field(None, description="kernels of attention; default: SGLang's choice")
    chunked_prefill_size: int | None = Field(None, ge=-1, description="prompt tokens per pass; -1: whole prompts")
    radix_cache: bool = Field(True, description="reuse the key-value cache of common prefixes")
    deterministic: bool = Field(False, description="results that do not depend on the batch; needs a backend for it")
    speculative_algorithm: str | None = Field(None, description="such as EAGLE3 or NGRAM; default: none")
    speculative_draft_model_path: str | None = Field(None, description="draft model; weight updates do not reach it")
    speculative_num_steps: int | None = Field(None, ge=1, description="steps of the draft model per pass")
    speculative_eagle_topk: int | None = Field(None, ge=1, description="branches of each draft step")
    speculative_num_draft_tokens: int | None = Field(None, ge=1, description="draft tokens verified per pass")
    incremental_streaming_output: bool = Field(
        True, description="events of streams hold what is new; false: all so far, quadratic bytes"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="of the server's log")
    args: dict[str, Any] = Field({}, description="any other option of SGLang, by the name on its command line")

    @field_validator("urls")
    @classmethod
    def _are_urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"{url!r} is not the URL of a server, such as http://10.0.0.5:30000")
        if len(set(urls)) < len(urls):
            raise ValueError("the same server twice: list each URL once")
        return tuple(url.rstrip("/") for url in urls)

    @field_validator("args")
    @classmethod
    def _are_free(cls, args: dict[str, Any]) -> dict[str, Any]:
        named = {key.removeprefix("--").replace("_", "-"): value for key, value in args.items()}
        for name, value in named.items():
            if name in OWNED:
                raise ValueError(f"{name} cannot be set here: {OWNED[name]}")
            if (key := name.replace("-", "_")) in cls.model_fields:
                raise ValueError(f"{key} is an option of its own: set engine.{key}")
            if not isinstance(value, bool | int | float | str | list | dict):
                raise ValueError(f"{name} = {value!r}: write a number, a string, true, a list or a table")
            if value is False:
                raise ValueError(f"{name} = false: SGLang's switches have no off; leave it out")
        return named

    @model_validator(mode="after")
    def _attached_or_started(self) -> Options:
        if self.urls and (others := sorted(self.model_fields_set - {"urls"} - _at_default(self))):
            raise ValueError(f"{others[0]} has no effect on servers that run already (urls is set)")
        return self

    @property
    def gpus_per_server(self) -> int:
        """GPUs that one server takes."""
        return 0 if self.urls or self.device == "cpu" else self.tp_size * self.pp_size * self.dp_size


def _at_default(options: Options) -> set[str]:
    """Keys that hold their default; a resolved config spells defaults out."""
    return {name for name, field in Options.model_fields.items() if getattr(options, name) == field.default}

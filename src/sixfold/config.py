"""Frozen configuration: one class per component, each part receives only its own.

Every field is a *setting*: it has a default, a sentence of help and a flag derived from its name (`max_num_seqs` ->
`--max-num-seqs`). The command line, the TOML file (`--config`), `sixfold doctor` and the docs are made from these
fields, so none of them can drift. Resolved values are new objects; nothing is changed after it was built.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from dataclasses import dataclass, field
from typing import Any

from sixfold.errors import ConfigError

__all__ = [
    "BLOCK_SIZE",
    "NOUNS",
    "SCRIPTED_MODEL",
    "SYNTHETIC_PREFIX",
    "TYPES",
    "ApiConfig",
    "CacheConfig",
    "Config",
    "ExecutorConfig",
    "ModelConfig",
    "SchedulerConfig",
    "parse_bytes",
    "settings",
]

SCRIPTED_MODEL = "scripted"
"""As a model's name: no file, a byte vocabulary, and the scripted executor."""

SYNTHETIC_PREFIX = "synthetic:"
"""Of a model's name: random weights, see `model_file/synthetic.py`."""

BLOCK_SIZE = 16
"""Tokens in a KV block. One 64-byte vector holds 16 tokens x 2 bf16, so the kernels are built around it."""


def setting(
    default: Any, help: str, *, choices: tuple[str, ...] = (), low: float = -math.inf, high: float = math.inf
) -> Any:
    """A field with help, and with allowed values or bounds, for `settings()` and `check()`."""
    return field(default=default, metadata={"help": help, "choices": choices, "low": low, "high": high})


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which model, and under which name."""

    model: str = setting(
        "smollm2", "known name (`sixfold list`), org/name, path of a .gguf file or folder, or `scripted`"
    )
    served_model_name: str = setting("", "name in the API; default: the model as given")
    quantize: str = setting("none", "float weights become this when they are loaded", choices=("none", "q8_0", "q4_1"))
    max_model_len: int = setting(
        0, "longest prompt plus output in tokens; 0: the model's own context, at most 131072", low=0, high=1 << 24
    )
    generation_config: str = setting(
        "auto",
        "sampling parameters of requests that do not give them: what the model's files recommend, or none of that",
        choices=("auto", "none"),
    )

    @property
    def quantization(self) -> str | None:
        """`quantize`, None where weights stay as they are."""
        return None if self.quantize == "none" else self.quantize


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """Who runs, and how much per step."""

    max_num_seqs: int = setting(64, "choices that run at the same time", low=1, high=4096)
    max_num_batched_tokens: int = setting(
        256, "token budget of one step; prefill gets what decode leaves", low=1, high=1 << 16
    )
    max_queued_requests: int = setting(0, "waiting requests before 429; 0: 4 x max_num_seqs", low=0, high=1 << 20)
    max_queued_tokens: int = setting(0, "waiting prompt tokens before 429; 0: 64 x max_model_len", low=0, high=1 << 40)
    max_queue_wait_s: float = setting(
        0.0, "predicted seconds in the queue before 429; 0: no bound but a request's own deadline", low=0.0, high=86400
    )
    scheduling_policy: str = setting("fcfs", "order of the queue", choices=("fcfs", "priority", "shortest", "fair"))


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """The KV block pool."""

    num_kv_blocks: int = setting(0, "blocks of 16 tokens; 0: from kv_cache_memory", low=0, high=1 << 24)
    kv_cache_memory: str = setting("", "bytes for KV blocks, e.g. 2G; default: a quarter of the free memory at most")
    kv_cache_dtype: str = setting("bfloat16", "element type of the KV cache", choices=("bfloat16", "float32"))
    enable_prefix_caching: bool = setting(
        True, "reuse KV blocks: of equal prompt beginnings, and after the engine's restart"
    )


@dataclass(frozen=True, kw_only=True)
class ExecutorConfig:
    """What computes."""

    executor: str = setting(
        "native",
        "what runs the model; scripted: nothing, answers are written or made up",
        choices=("native", "scripted"),
    )
    threads: int = setting(0, "compute threads; 0: all cores this process may use", low=0, high=256)
    activations: str = setting(
        "int8", "activations of quantized layers; float32 is for reference checks", choices=("int8", "float32")
    )
    pipeline_depth: int = setting(2, "steps outstanding at the worker: 1 or 2", low=1, high=2)
    script: str = setting("", "scripted executor: JSON file with `tokens` and `script`")


@dataclass(frozen=True, kw_only=True)
class ApiConfig:
    """The HTTP side."""

    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(8000, "port to listen on; 0: any free one", low=0, high=65535)
    api_key_file: str = setting("", "TOML file of the API keys that are accepted (`sixfold key new`); default: no keys")
    insecure_no_auth: bool = setting(
        False, "listen beyond this machine without API keys: whoever reaches it may use it"
    )
    metrics_access: str = setting(
        "admin", "who may read /metrics where there are keys", choices=("admin", "user", "open")
    )
    metrics_aliases: str = setting(
        "none", "other names that metrics have, too, where they mean the same", choices=("none", "vllm")
    )
    tls_cert: str = setting("", "PEM file of the certificate and its chain: serve https")
    tls_key: str = setting("", "PEM file of the certificate's private key")
    api_server_count: int = setting(1, "API processes that share the port", low=1, high=64)
    unknown_fields: str = setting(
        "refuse", "unknown request fields: a 400, or named in a response header", choices=("refuse", "ignore")
    )
    allowed_hosts: str = setting("", "more values of the Host header to accept, comma separated; `*` accepts all")
    max_body_bytes: int = setting(4 << 20, "largest request body in bytes", low=1024, high=1 << 30)
    max_connections: int = setting(4096, "open connections per API process", low=1, high=1 << 16)
    header_timeout_s: float = setting(10.0, "seconds until a request's headers must be complete", low=0.1, high=86400)
    body_timeout_s: float = setting(60.0, "seconds until a request's body must be complete", low=0.1, high=86400)
    stream_keep_alive_s: float = setting(
        15.0, "seconds without an event after which a stream gets a comment", low=0.05, high=86400
    )
    response_store: str = setting(
        "", "file that keeps what /v1/responses answered, or `off`; default: responses.sqlite in the cache folder"
    )
    response_store_bytes: int = setting(
        1 << 30, "stored responses together; the least recently used go first", low=1 << 20, high=1 << 44
    )
    response_store_ttl_s: float = setting(30 * 86400.0, "seconds that a response is stored", low=1.0, high=1e10)
    stream_unread_bytes: int = setting(
        4 << 20, "bytes of a stream that its client has not read: beyond it, it is cut off", low=1024, high=1 << 30
    )
    stream_unread_s: float = setting(
        60.0, "seconds that a client may lag behind its stream, then it is cut off", low=0.05, high=86400
    )
    drain_timeout_s: float = setting(
        30.0, "seconds after SIGTERM in which requests in flight may end; 0: none", low=0.0, high=86400
    )
    log_level: str = setting("warning", "least severe messages to print", choices=("debug", "info", "warning", "error"))
    log_format: str = setting(
        "plain", "of messages: lines for people, or a JSON object per line", choices=("plain", "json")
    )
    enable_log_requests: bool = setting(
        False, "print each request's prompt, cut to 2048 characters, and its parameters, at any level"
    )
    otlp_traces_endpoint: str = setting(
        "",
        "URL of an OpenTelemetry collector (OTLP over HTTP) that gets each request's spans; needs the extra `otel`",
    )


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything, for the one place that builds the parts (`engine/launch.py`)."""

    model: ModelConfig = field(default_factory=ModelConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)
    api: ApiConfig = field(default_factory=ApiConfig)
    seed: int = setting(
        0,
        "pins the seeds that requests without one get, and the cache's hash key; 0: random",
        low=-(2**63),
        high=2**63 - 1,
    )
    hang_timeout_s: float = setting(
        120.0,
        "seconds that a process may do nothing while it is waited for, before it is started again; 0: any time. "
        "A step that computes may take ten times as long; a process stopped by a signal has 5 seconds at most",
        low=0.0,
        high=1e6,
    )

    def check(self) -> Config:
        """Return self.

        Raises:
            ConfigError: a value is of another type, or out of its range; `param` is the flag.
        """
        for name, (owner, f) in settings().items():
            part = getattr(self, owner) if owner else self
            value = getattr(part, f.name)
            choices, low, high = (f.metadata[key] for key in ("choices", "low", "high"))
            if not _is_of(value, TYPES[str(f.type)]):
                raise ConfigError(f"{name} is {value!r}; it must be {NOUNS[TYPES[str(f.type)]]}", param=name)
            if choices and value not in choices:
                raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(choices)}", param=name)
            if isinstance(value, int | float) and not low <= value <= high:
                bounds = f"between {low} and {high}" if high < math.inf else f"at least {low}"
                raise ConfigError(f"{name} is {value}; it must be {bounds}", param=name)
        if self.executor.script and self.executor.executor != "scripted":
            raise ConfigError(
                "--script needs the scripted executor, which answers as the file says: give --executor scripted, or "
                "`scripted` as the model",
                param="--script",
            )
        if self.cache.kv_cache_memory:
            parse_bytes(self.cache.kv_cache_memory)
        if not self.api.host:
            raise ConfigError("--host is empty; 0.0.0.0 listens on every address", param="--host")
        return self

    @classmethod
    def from_flat(cls, values: dict[str, Any]) -> Config:
        """Build from `{"max_num_seqs": 8, ...}`.

        Raises:
            ConfigError: unknown name, or a value of another type or out of range.
        """
        if values.get("model") == SCRIPTED_MODEL:
            if values.get("executor", SCRIPTED_MODEL) != SCRIPTED_MODEL:
                raise ConfigError(
                    "the model `scripted` has no weights; --executor must be scripted", param="--executor"
                )
            values = {**values, "executor": SCRIPTED_MODEL}
        known = {f.name: owner for owner, f in settings().values()}
        parts: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ConfigError(f"there is no setting {name!r}{hint}", param=name)
            parts.setdefault(known[name], {})[name] = value
        top = parts.pop("", {})
        built: dict[str, Any] = {name: part(**parts.get(name, {})) for name, part in _PARTS.items()}
        return cls(**built, **top).check()


TYPES: dict[str, type] = {"int": int, "float": float, "str": str, "bool": bool}
"""Annotation of a setting -> its type."""
NOUNS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def _is_of(value: Any, kind: type) -> bool:
    """Not isinstance: for Python, True is an int."""
    return type(value) is kind or (kind is float and type(value) is int)


_PARTS: dict[str, type[Any]] = {
    "model": ModelConfig,
    "scheduler": SchedulerConfig,
    "cache": CacheConfig,
    "executor": ExecutorConfig,
    "api": ApiConfig,
}


def settings() -> dict[str, tuple[str, dataclasses.Field[Any]]]:
    """Flag -> (field of `Config` that owns it, or "" for Config itself; the dataclass field), in order."""
    owned = [(owner, f) for owner, part in _PARTS.items() for f in dataclasses.fields(part)]
    owned += [("", f) for f in dataclasses.fields(Config) if f.name not in _PARTS]
    return {"--" + f.name.replace("_", "-"): (owner, f) for owner, f in owned}


def parse_bytes(text: str) -> int:
    """`2G`, `512MiB`, `1000000` -> bytes (powers of 1024).

    Raises:
        ConfigError: not a size.
    """
    units = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
    number = text.strip().lower().removesuffix("b").removesuffix("i")
    unit = number[-1:] if number[-1:] in "kmgt" else ""
    try:
        value = float(number.removesuffix(unit) if unit else number)
        if not 0 < value < 2**50:
            raise ValueError
    except ValueError:
        raise ConfigError(f"--kv-cache-memory {text!r} is not a size like 2G", param="--kv-cache-memory") from None
    return int(value * (1 << units[unit]))

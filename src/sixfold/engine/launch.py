"""Config -> parts. Which parts sit in which process is decided here and nowhere else.

    process     built by                          holds
    supervisor  supervisor.serve                  listening sockets, run directory, the children
    api 0..N    connect_client + api.process      text (tokenizer, chat template), detokenizer
    engine      build_core over a RemoteExecutor  scheduler, KV cache manager
    worker 0    build_worker                      weights, KV memory, slots, sampler
    (one)       in_process                        all of it, for `LLM`

Imports of heavy parts are inside the functions: a process loads only what it holds.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sixfold.config import BLOCK_SIZE, SCRIPTED_MODEL, SYNTHETIC_PREFIX, Config, parse_bytes
from sixfold.errors import ConfigError, DoesNotFit, DownloadError, ModelFileError, SixfoldError
from sixfold.roles import ENGINE, WORKER, slug

if TYPE_CHECKING:
    from sixfold.engine.core import EngineCore
    from sixfold.executor.executor import Executor
    from sixfold.executor.scripted import ScriptedBackend
    from sixfold.executor.worker import Worker
    from sixfold.kv_cache import Journal
    from sixfold.messages import WorkerFacts
    from sixfold.model_file import GGUFFile, ModelFile
    from sixfold.observability.history import History
    from sixfold.observability.meter import Meter
    from sixfold.text import ChatTemplate, Tokenizer

__all__ = [
    "ModelText",
    "RunFiles",
    "build_core",
    "build_worker",
    "cautions",
    "check_kernels",
    "hash_key_of",
    "in_process",
    "load_text",
    "model_path",
    "open_journal",
    "open_usable",
    "read_run_files",
    "recommended_sampling",
    "resolve",
    "socket_paths",
    "write_run_files",
]

DEFAULT_MODEL_LEN_MAX = 131072
"""Tables grow with the context, and a file may claim any: more than this must be asked for."""

SCRIPTED_CONTEXT = 2048
SCRIPTED_BLOCKS = 4096


@dataclass(frozen=True)
class ModelText:
    """The text side of a model: what an API process (or `LLM`) needs of it."""

    name: str
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    """None for a base model."""
    max_model_len: int
    """Longest prompt plus output, in tokens."""
    default_seed: int | None = None
    """For requests without a seed; None draws one for each."""
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `SamplingParams` that the model's files recommend, for requests that do not give them."""


class RunFiles(msgspec.Struct, frozen=True):
    """What a child process is told at its start, through a file in the run directory (0700)."""

    config: Config
    epoch: int
    """Of the first engine; of those that follow, see `Count.EPOCH`."""
    digest: str
    """Of the configuration: processes of different configurations refuse each other."""
    worker_path: str
    engine_path: str
    hash_key: str
    """Of the prefix cache, hexadecimal: every engine of this server gives a block the same name."""
    faults: int = 0
    """Crashes so far of an engine or a worker that were of their own making; see `Count.FAULTS`."""


def socket_paths(run_dir: str) -> tuple[str, str]:
    """Where the worker and the engine listen."""
    return os.path.join(run_dir, f"{slug(WORKER)}.sock"), os.path.join(run_dir, f"{slug(ENGINE)}.sock")


def write_run_files(run_dir: str, config: Config, *, epoch: int) -> RunFiles:
    """Once in a server's life: what changes with each engine is in `Progress`, so that a full disk keeps nobody from
    being started again."""
    if config.api.api_key_file:
        # Its own copy, so that every API process knows the same keys, whatever becomes of the file meanwhile.
        keys = Path(run_dir, "keys.toml")
        keys.touch(mode=0o600)
        keys.write_bytes(_read_keys(config.api.api_key_file))
        config = dataclasses.replace(config, api=dataclasses.replace(config.api, api_key_file=str(keys)))
    worker_path, engine_path = socket_paths(run_dir)
    run = RunFiles(
        config=config,
        epoch=epoch,
        digest=secrets.token_hex(8),
        worker_path=worker_path,
        engine_path=engine_path,
        hash_key=hash_key_of(config).hex(),
    )
    path = Path(run_dir, "run.json")
    path.touch(mode=0o600)
    path.write_bytes(msgspec.json.encode(run))
    return run


def _read_keys(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as e:
        message = f"--api-key-file {path} cannot be read: {e.strerror}"
        raise ConfigError(message, param="--api-key-file") from e


def read_run_files(run_dir: str, told_fd: int = -1) -> RunFiles:
    """Of a server's child.

    Args:
        told_fd: read end of a pipe that ends when the file is there; it is closed.
    """
    if told_fd >= 0:
        os.read(told_fd, 1)
        os.close(told_fd)
    return msgspec.json.decode(Path(run_dir, "run.json").read_bytes(), type=RunFiles)


def check_kernels() -> None:
    """Import the compiled part, which chooses a build of the kernels.

    Raises:
        ConfigError: it is not there, or has no build for what SIXFOLD_ISA says.
    """
    try:
        import sixfold._native  # noqa: F401
    except ModuleNotFoundError:
        raise ConfigError("the compiled part of Sixfold is missing; from a checkout: make install") from None
    except ImportError as error:
        if str(error).startswith("SIXFOLD_ISA: "):
            raise ConfigError(str(error), param="SIXFOLD_ISA") from None
        raise ConfigError(f"the compiled part of Sixfold cannot be loaded: {error}") from None


def resolve(config: Config) -> Config:
    """Replace every "default" and "automatic" by a figure, so that all processes see the same one.

    Raises:
        ModelNotFound, ModelFileError: no such model, or its file cannot be used.
        ConfigError: a setting does not fit the model.
        DoesNotFit: the machine has too little memory.
    """
    if config.api.otlp_traces_endpoint:
        from sixfold.observability.otlp import traces_url

        traces_url(config.api.otlp_traces_endpoint)
    name = config.model.served_model_name or config.model.model
    path = _model_path(config)
    if config.executor.executor == "scripted":
        context = SCRIPTED_CONTEXT
        blocks = config.cache.num_kv_blocks or SCRIPTED_BLOCKS
    else:
        file = open_usable(Path(path), config)
        context = file.config.context
        blocks = _fitting_blocks(config, name, file)
    max_model_len = served_context(config, context)
    scheduler = dataclasses.replace(
        config.scheduler,
        max_queued_requests=config.scheduler.max_queued_requests or 4 * config.scheduler.max_num_seqs,
        max_queued_tokens=config.scheduler.max_queued_tokens or 64 * max_model_len,
    )
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, model=path, served_model_name=name, max_model_len=max_model_len),
        scheduler=scheduler,
        cache=dataclasses.replace(config.cache, num_kv_blocks=blocks),
        executor=dataclasses.replace(config.executor, threads=config.executor.threads or len(os.sched_getaffinity(0))),
        api=dataclasses.replace(config.api, response_store=_response_store(config)),
    ).check()


def _response_store(config: Config) -> str:
    """The file's absolute path, or `off`.

    Raises:
        ConfigError: there can be no such file.
    """
    told = config.api.response_store
    if told == "off":
        return told
    if not told:
        from sixfold import model_store

        return str(model_store.cache_dir() / "responses.sqlite")
    path = Path(told).expanduser().absolute()
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else "lies in a folder that is not there"
        raise ConfigError(f"--response-store {told} {what}; it must be a file, or `off`", param="--response-store")
    return str(path)


def served_context(config: Config, context: int) -> int:
    """Tokens of a sequence: as told, or what the model's context allows.

    Raises:
        ConfigError: more was asked for.
    """
    told = config.model.max_model_len
    if told > context:
        raise ConfigError(f"--max-model-len is {told}, and the model's context is {context}", param="--max-model-len")
    return told or min(context, DEFAULT_MODEL_LEN_MAX)


def cautions(config: Config) -> list[str]:
    """What is legal in a resolved configuration, but may surprise: one sentence each."""
    found = []
    pool, longest = config.cache.num_kv_blocks * BLOCK_SIZE, config.model.max_model_len
    if pool < longest:
        found.append(
            f"the KV cache holds {pool} tokens, fewer than the longest request of {longest}: "
            "longer prompts are refused, longer answers end early (--num-kv-blocks, --kv-cache-memory)"
        )
    budget, rows = config.scheduler.max_num_batched_tokens, config.scheduler.max_num_seqs
    if budget < rows:
        found.append(
            f"a step computes {budget} tokens for up to {rows} running choices: they take turns "
            "(--max-num-batched-tokens, --max-num-seqs)"
        )
    threads, cores = config.executor.threads, len(os.sched_getaffinity(0))
    if threads > cores:
        found.append(f"{threads} threads share {cores} cores: fewer are faster (--threads)")
    return found


def _model_path(config: Config) -> str:
    if config.model.model == SCRIPTED_MODEL:
        return SCRIPTED_MODEL
    return str(model_path(config))


def open_usable(path: Path, config: Config) -> ModelFile:
    """Open a model that can be computed with, as far as its numbers tell.

    Raises:
        ModelFileError: it cannot; or it is a folder without a tokenizer.
        ConfigError: the compiled part cannot be loaded.
    """
    check_kernels()
    from sixfold.executor.native.supported import check_supported
    from sixfold.model_file import open_model

    file = open_model(path, quantize=config.model.quantization)
    with file.naming_faults():
        check_supported(file.config)
        if path.is_dir() and not os.path.lexists(path / "tokenizer.json"):
            raise ModelFileError("there is no tokenizer.json in this folder")
    return file


def model_path(config: Config, announce: Callable[[int], None] = lambda n_bytes: None) -> Path:
    """The file or folder of a model by name; a synthetic model that is not in the cache is made.

    Args:
        announce: is told the bytes of a synthetic model just before it is written.

    Raises:
        ModelNotFound: no such model, or it is not on this machine.
        ModelFileError: the numbers of a synthetic model do not fit together.
        DownloadError: the cache cannot be written.
        ConfigError: a synthetic model does not fit into memory, or the compiled part cannot be loaded.
    """
    name = config.model.model
    from sixfold import model_store

    if not name.startswith(SYNTHETIC_PREFIX):
        return model_store.resolve(name)
    from sixfold.model_file import synthetic

    def check(outline: Path) -> None:
        _fitting_blocks(config, name, open_usable(outline, config))

    try:
        return synthetic.cached(name, model_store.cache_dir(), check, announce)
    except OSError as e:
        raise DownloadError(f"{name} cannot be written to the cache: {e.strerror or e}") from e


def load_text(config: Config) -> ModelText:
    """Tokenizer, chat template and sampling defaults of a resolved configuration.

    Raises:
        ModelFileError: the file has no usable tokenizer, or recommends what no request may ask for.
    """
    from sixfold.text import CHATML, ChatTemplate, byte_tokenizer, load_text_files

    file: GGUFFile | None = None
    if config.model.model == SCRIPTED_MODEL:
        tokenizer = byte_tokenizer(load_script(config.executor.script).tokens)
        template: ChatTemplate | None = ChatTemplate(CHATML, tokenizer)
    else:
        files = load_text_files(Path(config.model.model), n_rows=_n_rows(config))
        tokenizer, template, file = files.tokenizer, files.chat_template, files.file
    return ModelText(
        config.model.served_model_name,
        tokenizer,
        template,
        config.model.max_model_len,
        config.seed or None,
        recommended_sampling(config, file),
    )


def _n_rows(config: Config) -> int | None:
    """Ids that the model of a folder computes with; None for a GGUF file, and where nothing is computed."""
    from sixfold.model_file import open_model

    path = Path(config.model.model)
    return open_model(path).config.vocab if path.is_dir() and config.executor.executor == "native" else None


def recommended_sampling(config: Config, file: GGUFFile | None = None) -> dict[str, Any]:
    """Fields of `SamplingParams` that the model of a resolved configuration recommends; empty if they are not wanted.

    Raises:
        ModelFileError: its file holds a value that no request may ask for.
    """
    if config.model.generation_config == "none" or config.model.model == SCRIPTED_MODEL:
        return {}
    from sixfold.text import sampling_defaults

    return sampling_defaults(Path(config.model.model), file)


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The scripted executor's file: extra tokens, the default answer, and how long loading and a step take."""

    tokens: list[str] = []
    script: list[str | int] = []
    step_ms: float = 0.0
    load_ms: float = 0.0
    load_while: str = ""
    """A file: loading goes on as long as it is there."""


def load_script(path: str) -> Script:
    """Raises: ConfigError: the file cannot be read or is not a script."""
    if not path:
        return Script()
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Script)
    except OSError as e:
        raise ConfigError(f"--script {path}: {e.strerror or e}", param="--script") from e
    except msgspec.MsgspecError as e:
        raise ConfigError(f"--script {path}: {e}", param="--script") from e


def check_script(config: Config) -> None:
    """Look at the scripted executor's file before anything is started. With a model's vocabulary, whether its entries
    have tokens is seen by the worker.

    Raises:
        ConfigError: it cannot be read, is not a script, or has an entry without a token.
    """
    path = config.executor.script
    script = load_script(path)
    if not path or config.model.model != SCRIPTED_MODEL:
        return
    from sixfold.text import byte_tokenizer
    from sixfold.text.script import script_ids

    try:
        script_ids(script.script, byte_tokenizer(script.tokens))
    except SixfoldError as e:
        raise ConfigError(f"--script {path}: {e.message}", param="--script") from e


def build_worker(config: Config, meter: Meter | None = None) -> Worker:
    """Load the model of a resolved configuration and make its slots.

    Args:
        meter: of this process; None: nobody asks.

    Raises:
        ModelFileError: the model file cannot be used.
        DoesNotFit: the system refused memory that seemed to be there.
    """
    from sixfold.executor.worker import Worker

    if config.executor.executor == "scripted":
        return Worker(_scripted_backend(config), meter)
    from sixfold.executor.model_runner import NativeBackend

    try:
        return Worker(NativeBackend.load(config), meter)
    except MemoryError as e:
        raise DoesNotFit("memory ran out while the model was loaded", param="model") from e


def hash_key_of(config: Config) -> bytes:
    """Pinned by `--seed`, else random: nobody outside can construct two prompts of one name."""
    return config.seed.to_bytes(16, "little", signed=True) if config.seed else secrets.token_bytes(16)


def open_journal(fd: int, run: RunFiles, facts: WorkerFacts, worker: int) -> Journal:
    """The journal of the prefix cache, in the memory file that the supervisor hands to every engine of a server.

    Args:
        worker: instance of the worker's process; records of another one are void.
    """
    from sixfold.kv_cache import Journal, owner_of

    owner = owner_of(bytes.fromhex(run.hash_key), run.digest, worker, facts.num_blocks, BLOCK_SIZE)
    return Journal.open(fd, facts.num_blocks, BLOCK_SIZE, owner)


def build_core(
    config: Config,
    executor: Executor,
    *,
    epoch: int,
    hash_key: bytes,
    journal: Journal | None = None,
    meter: Meter | None = None,
    history: History | None = None,
) -> EngineCore:
    """Scheduler and KV cache manager over an executor.

    Args:
        hash_key: of the prefix cache, see `hash_key_of`.
        journal: where the blocks of an engine before are adopted from, and this one's are told to the next.
        meter, history: of this process; None: nobody asks.
    """
    from sixfold.engine.core import EngineCore
    from sixfold.kv_cache import KVCacheManager
    from sixfold.scheduler import Scheduler
    from sixfold.scheduler.chronicle import Chronicle

    facts = executor.facts
    kv_cache = KVCacheManager(
        facts.num_blocks,
        BLOCK_SIZE,
        enable_prefix_caching=config.cache.enable_prefix_caching,
        hash_key=hash_key,
        journal=journal,
    )
    scheduler = Scheduler(
        config.scheduler,
        kv_cache,
        max_model_len=facts.max_model_len,
        engine_epoch=epoch,
        max_slots=facts.max_slots,
        pipeline_depth=config.executor.pipeline_depth,
        chronicle=Chronicle(history, meter),
    )
    return EngineCore(scheduler, kv_cache, executor, depth=config.executor.pipeline_depth, meter=meter)


def in_process(config: Config) -> tuple[EngineCore, ModelText, Config]:
    """All parts in the caller's process.

    Returns:
        The engine, the model's text side, and the resolved configuration.
    """
    config = resolve(config)  # first: it names a build of the kernels that is not there
    from sixfold.executor.in_process import InProcessExecutor

    text = load_text(config)
    executor = InProcessExecutor(build_worker(config))
    return build_core(config, executor, epoch=1, hash_key=hash_key_of(config)), text, config


def _scripted_backend(config: Config) -> ScriptedBackend:
    from sixfold.executor.grammar_vocabulary import vocabulary_of
    from sixfold.executor.scripted import ScriptedBackend
    from sixfold.structured import MatcherFactory
    from sixfold.text.script import script_ids

    script = load_script(config.executor.script)
    time.sleep(script.load_ms / 1e3)
    while script.load_while and os.path.exists(script.load_while):
        time.sleep(0.02)
    tokenizer = load_text(config).tokenizer
    ordinary = [i for i, b in enumerate(tokenizer.token_bytes) if b.isascii() and b.decode().isprintable() and b]
    return ScriptedBackend(
        n_vocab=tokenizer.n_vocab,
        printable=[i for i in ordinary if not tokenizer.is_control(i)],
        end_id=min(tokenizer.end_ids),
        num_blocks=config.cache.num_kv_blocks,
        max_slots=config.scheduler.max_num_seqs,
        max_model_len=config.model.max_model_len,
        script=script_ids(script.script, tokenizer),
        step_s=script.step_ms / 1e3,
        grammars=MatcherFactory(lambda: vocabulary_of(tokenizer, tokenizer.n_vocab)),
    )


def _fitting_blocks(config: Config, name: str, file: ModelFile) -> int:
    """Blocks as told, from `kv_cache_memory`, or by default from a quarter of the free memory: at most what the rest
    leaves, and no more than all slots can fill.

    Raises:
        DoesNotFit: the free memory is too little for the model with these blocks.
    """
    from sixfold.engine.free_memory import free_memory
    from sixfold.engine.memory import check_fits, memory_need

    need = memory_need(file, config)
    free = free_memory(file.bytes_mapped, need.processes)
    bytes_per_block = BLOCK_SIZE * need.kv_per_token
    if config.cache.num_kv_blocks:
        blocks = config.cache.num_kv_blocks
    elif config.cache.kv_cache_memory:
        blocks = parse_bytes(config.cache.kv_cache_memory) // bytes_per_block
    else:
        left = min(free.n_bytes // 4, free.n_bytes - (need.total - need.kv))
        blocks = min(need.kv, left) // bytes_per_block
    blocks = max(1, blocks)
    check_fits(need.with_blocks(blocks), free, name)
    return blocks

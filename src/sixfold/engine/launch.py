"""Config -> parts. Which parts sit in which process is decided here and nowhere else.

    process     built by                          holds
    supervisor  supervisor.serve                  listening sockets, run directory, the children
    api 0..N    load_text + api.process           text (tokenizer, chat template), detokenizer
    engine      build_core over a RemoteExecutor  scheduler, KV cache manager
    worker 0    build_worker                      weights, KV memory, slots, sampler
    (one)       in_process                        all of it, for `LLM`

Imports of heavy parts are inside the functions: a process loads only what it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sixfold.config import BLOCK_SIZE, SCRIPTED_MODEL, Config
from sixfold.engine.resolve import resolve
from sixfold.engine.run_files import RunFiles, hash_key_of
from sixfold.engine.script_file import load_script, scripted_backend
from sixfold.errors import DoesNotFit

if TYPE_CHECKING:
    from sixfold.engine.core import EngineCore
    from sixfold.executor.executor import Executor
    from sixfold.executor.worker import Worker
    from sixfold.kv_cache import Journal
    from sixfold.messages import WorkerFacts
    from sixfold.model_file import GGUFFile
    from sixfold.observability.history import History
    from sixfold.observability.meter import Meter
    from sixfold.text import ChatTemplate, Tokenizer

__all__ = [
    "ModelText",
    "build_core",
    "build_worker",
    "in_process",
    "load_text",
    "open_journal",
    "recommended_sampling",
]


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


def recommended_sampling(config: Config, file: GGUFFile | None = None) -> dict[str, Any]:
    """Fields of `SamplingParams` that the model of a resolved configuration recommends; empty if they are not wanted.

    Raises:
        ModelFileError: its file holds a value that no request may ask for.
    """
    if config.model.generation_config == "none" or config.model.model == SCRIPTED_MODEL:
        return {}
    from sixfold.text import sampling_defaults

    return sampling_defaults(Path(config.model.model), file)


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
        return Worker(scripted_backend(config, load_text(config).tokenizer), meter)
    from sixfold.executor.model_runner import NativeBackend

    try:
        return Worker(NativeBackend.load(config), meter)
    except MemoryError as e:
        raise DoesNotFit("memory ran out while the model was loaded", param="model") from e


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


def _n_rows(config: Config) -> int | None:
    """Ids that the model of a folder computes with; None for a GGUF file, and where nothing is computed."""
    from sixfold.model_file import open_model

    path = Path(config.model.model)
    return open_model(path).config.vocab if path.is_dir() and config.executor.executor == "native" else None

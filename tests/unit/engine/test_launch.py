"""From a configuration to resolved figures and parts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sixfold import _native
from sixfold.config import Config, parse_bytes
from sixfold.engine.launch import in_process, load_text
from sixfold.engine.resolve import cautions, check_kernels, resolve
from sixfold.engine.run_files import read_run_files, write_run_files
from sixfold.errors import ConfigError, InvalidRequest


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [("1", 1), ("2k", 2048), ("512MiB", 512 << 20), ("1.5G", 3 << 29), ("2gb", 2 << 30), (" 1T ", 1 << 40)],
)
def test_sizes(text: str, n_bytes: int) -> None:
    assert parse_bytes(text) == n_bytes


@pytest.mark.parametrize("text", ["0", "-1", "x", "1X", "1e30", "nan", "G", "inf"])
def test_what_is_no_size_names_the_flag(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_bytes(text)
    assert refused.value.param == "--kv-cache-memory"


def test_resolved_values_are_figures() -> None:
    config = resolve(Config.from_flat({"model": "scripted", "max_num_seqs": 3}))
    assert config.executor.executor == "scripted"
    assert config.model.served_model_name == "scripted"
    assert config.model.max_model_len == 2048
    assert config.scheduler.max_queued_requests == 12
    assert config.executor.threads == len(os.sched_getaffinity(0))
    assert resolve(config) == config


def test_a_context_beyond_the_models_is_refused() -> None:
    with pytest.raises(ConfigError, match="the model's context is 2048"):
        resolve(Config.from_flat({"model": "scripted", "max_model_len": 4096}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", 10**40),
        ("header_timeout_s", float("nan")),
        ("body_timeout_s", float("inf")),
        ("num_kv_blocks", 3_000_000_000),
        ("max_num_batched_tokens", 10**9),
        ("threads", 100_000),
        ("max_num_seqs", 10**9),
        ("pipeline_depth", 3),
        ("port", 65536),
        ("host", ""),
        ("kv_cache_memory", "xyz"),
        ("executor", "native"),
        ("scheduling_policy", "lifo"),
    ],
)
def test_values_out_of_range_name_the_flag(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as refused:
        Config.from_flat({"model": "scripted", name: value})
    assert refused.value.param == "--" + name.replace("_", "-")


def test_small_values_are_legal_and_said() -> None:
    small = {"model": "scripted", "num_kv_blocks": 4, "max_num_batched_tokens": 2, "max_num_seqs": 3}
    pool, budget = cautions(resolve(Config.from_flat(small)))
    assert "64 tokens" in pool and "2048" in pool
    assert "2 tokens" in budget and "3 running" in budget
    assert cautions(resolve(Config.from_flat({"model": "scripted"}))) == []


def test_more_threads_than_cores_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert cautions(resolve(Config.from_flat({"model": "scripted", "threads": 2}))) == []
    [threads] = cautions(resolve(Config.from_flat({"model": "scripted", "threads": 256})))
    assert threads == "256 threads share 2 cores: fewer are faster (--threads)"
    with pytest.raises(ConfigError, match=r"--threads is 257; it must be between 0 and 256"):
        Config.from_flat({"threads": 257})


def test_bounds_are_whole_numbers_and_an_unknown_setting_has_a_near_one() -> None:
    with pytest.raises(ConfigError, match=r"must be between 0 and 16777216$"):
        Config.from_flat({"num_kv_blocks": 100_000_000})
    with pytest.raises(ConfigError, match="'max_seqs'; did you mean max_num_seqs"):
        Config.from_flat({"max_seqs": 1})


@pytest.mark.parametrize("content", [None, "{", '{"tokens": 3}', '{"other": []}'])
def test_a_script_file_that_cannot_be_used_names_the_flag(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError) as refused:
        load_text(resolve(Config.from_flat({"model": "scripted", "script": str(path)})))
    assert refused.value.param == "--script"


def test_a_script_entry_without_a_token_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text('{"script": ["ok", ""]}')
    with pytest.raises(InvalidRequest, match=r"script\[1\]"):
        in_process(Config.from_flat({"model": "scripted", "script": str(path)}))


def test_run_files_round_trip_and_are_private(tmp_path: Path) -> None:
    config = resolve(Config.from_flat({"model": "scripted", "seed": 4, "port": 0}))
    written = write_run_files(str(tmp_path), config, epoch=3)
    assert read_run_files(str(tmp_path)) == written
    assert written.config == config and written.epoch == 3
    assert (tmp_path / "run.json").stat().st_mode & 0o777 == 0o600


def test_all_processes_of_a_server_know_the_keys_of_its_start(tmp_path: Path) -> None:
    """A file that is changed, or gone, when a process is started again keeps it from nothing."""
    keys = tmp_path / "keys.toml"
    keys.write_text("[a]")
    keys.chmod(0o600)
    config = resolve(Config.from_flat({"model": "scripted", "api_key_file": str(keys)}))
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    write_run_files(str(run_dir), config, epoch=1)
    keys.unlink()
    own = Path(read_run_files(str(run_dir)).config.api.api_key_file)
    assert own.parent == run_dir and own.read_text() == "[a]" and own.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="--api-key-file"):
        write_run_files(str(run_dir), config, epoch=1)


@pytest.mark.parametrize("interface", ["of another build", None])
def test_a_native_module_of_other_sources_is_named(interface: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    check_kernels()
    if interface is None:  # older than the question
        monkeypatch.delattr(_native, "interface")
    else:
        monkeypatch.setattr(_native, "interface", interface)
    with pytest.raises(ConfigError, match="was built from other sources; from a checkout: make install"):
        resolve(Config.from_flat({"model": "scripted", "executor": "scripted"}))

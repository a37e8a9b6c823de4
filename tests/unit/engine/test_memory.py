"""What a model needs in memory, and the refusal of one that does not fit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import gguf_writer as w
from tests.fixtures import tiny_models as tiny

from sixfold.cli.main import main
from sixfold.config import Config
from sixfold.engine import free_memory, resolve
from sixfold.engine.free_memory import FreeMemory
from sixfold.engine.memory import MemoryNeed, check_fits, memory_need
from sixfold.engine.resolve import model_path
from sixfold.errors import ConfigError
from sixfold.llm import LLM
from sixfold.model_file import open_model

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB, CONTEXT = 2, 64, 2, 1, 32, 96, 300, 128


def model_file(folder: Path) -> Path:
    """A tiny model of the llama family."""
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": LAYERS,
        "llama.embedding_length": HIDDEN,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.feed_forward_length": FFN,
        "llama.context_length": CONTEXT,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        **w.tiny_vocabulary(),
    }
    kv = KV_HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    for i in range(LAYERS):
        shapes |= {
            f"blk.{i}.attn_norm.weight": (HIDDEN,),
            f"blk.{i}.attn_q.weight": (HEADS * HEAD_DIM, HIDDEN),
            f"blk.{i}.attn_k.weight": (kv, HIDDEN),
            f"blk.{i}.attn_v.weight": (kv, HIDDEN),
            f"blk.{i}.attn_output.weight": (HIDDEN, HEADS * HEAD_DIM),
            f"blk.{i}.ffn_norm.weight": (HIDDEN,),
            f"blk.{i}.ffn_gate.weight": (FFN, HIDDEN),
            f"blk.{i}.ffn_up.weight": (FFN, HIDDEN),
            f"blk.{i}.ffn_down.weight": (HIDDEN, FFN),
        }
    tensors = {name: (0, shape, np.ones(shape, "<f4").tobytes()) for name, shape in shapes.items()}
    path = folder / "tiny.gguf"
    path.write_bytes(w.gguf(metadata, tensors))
    return path


def n_weight_bytes() -> int:
    """Packed, and the embedding besides: it is read in the file, and it is the head."""
    layer = 2 * HIDDEN + HIDDEN * (2 * HEADS + 2 * KV_HEADS) * HEAD_DIM + 3 * HIDDEN * FFN
    n_tokens = len(w.tiny_vocabulary()["tokenizer.ggml.tokens"])  # the rows behind them are padding
    return 4 * (2 * n_tokens * HIDDEN + HIDDEN + LAYERS * layer)


def need_of(path: Path, **settings: Any) -> MemoryNeed:
    config = Config.from_flat({"model": str(path), "max_num_seqs": 1, **settings})
    return memory_need(open_model(path, quantize=config.model.quantization), config)


def test_the_figures_add_up(tmp_path: Path) -> None:
    path = model_file(tmp_path)
    need = need_of(path, max_model_len=100, max_num_seqs=3)
    assert need.weights == n_weight_bytes()
    assert need.kv_per_token == 2 * LAYERS * KV_HEADS * HEAD_DIM * 2
    assert need.kv == 3 * 112 * need.kv_per_token  # whole blocks of 16 tokens
    assert need.total == need.weights + need.kv + need.working + need.processes
    assert need_of(path).context == CONTEXT
    assert need_of(path, kv_cache_dtype="float32").kv_per_token == 2 * need.kv_per_token
    assert need_of(path, quantize="q8_0").weights < need.weights / 3
    assert need_of(path, quantize="q8_0", activations="float32").weights > need.weights * 0.8
    assert need_of(path, max_num_seqs=1000).working > need.working + 1000 * CONTEXT * 4
    assert need_of(path, api_server_count=3).processes > need.processes
    assert need.with_blocks(10).kv == 160 * need.kv_per_token
    with pytest.raises(ConfigError, match="--max-model-len is 129, and the model's context is 128"):
        need_of(path, max_model_len=129)


def test_what_does_not_fit_is_refused_with_the_figures(tmp_path: Path) -> None:
    need = need_of(model_file(tmp_path), max_num_seqs=4000)
    check_fits(need, FreeMemory(need.total), "tiny")
    with pytest.raises(
        ConfigError,
        match=r"tiny does not fit: it needs .*131 MB of KV cache .*, 200 MB are free; lower --max-model-len",
    ):
        check_fits(need, FreeMemory(200_000_000), "tiny")
    with pytest.raises(ConfigError, match=r"its weights need \d+ KB and the processes 1\d\d MB, 1 KB are left of it"):
        check_fits(need, FreeMemory(1000, "left of it"), "tiny")


def test_resolve_refuses_before_anything_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model_file(tmp_path)
    config = Config.from_flat({"model": str(path)})
    need = need_of(path, max_num_seqs=config.scheduler.max_num_seqs)
    without_kv = need.total - need.kv

    def blocks(free: int, **settings: Any) -> int:
        monkeypatch.setattr(free_memory, "free_memory", lambda *_: FreeMemory(free))
        return resolve.resolve(Config.from_flat({"model": str(path), **settings})).cache.num_kv_blocks

    assert blocks(1 << 30) == 64 * CONTEXT // 16
    assert blocks(without_kv + 3 * 16 * 256) == 3
    assert blocks(1 << 30, num_kv_blocks=7) == 7
    assert blocks(1 << 30, kv_cache_memory="1M") == 256
    with pytest.raises(ConfigError, match="--kv-cache-memory 1K is less than a block of 16 tokens, which is 4 KB"):
        blocks(1 << 30, kv_cache_memory="1K")
    with pytest.raises(ConfigError, match="does not fit: its weights"):
        blocks(without_kv - 1)
    with pytest.raises(ConfigError, match="does not fit: its weights"):
        LLM(str(path))
    for told in ({"num_kv_blocks": 1 << 24}, {"kv_cache_memory": "2G"}):
        with pytest.raises(ConfigError, match=r"does not fit: it needs .* GB of KV cache"):
            blocks(1 << 30, **told)


@pytest.mark.parametrize("command", [("run", "hi"), ("serve", "--port", "0"), ("bench",), ("chat",)])
def test_every_command_refuses(command: tuple[str, ...], tmp_path: Path) -> None:
    """In a process whose addresses are limited."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20));"
        "from sixfold.cli.main import main; main(sys.argv[1:])"
    )
    flags = ["--kv-cache-memory", "300M"]
    done = subprocess.run(
        [sys.executable, "-c", code, command[0], str(model_file(tmp_path)), *command[1:], *flags],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "tiny.gguf does not fit: " in done.stderr and "(ulimit -v)" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_show(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = model_file(tmp_path)

    def shown(*flags: str) -> tuple[int | str | None, str]:
        with pytest.raises(SystemExit) as left:
            main(["show", str(path), *flags])
        return left.value.code, capsys.readouterr().out

    status, text = shown("--digest", "--max-num-seqs", "4")
    assert status == 0
    assert "2 layers of 64" in text and "no template" in text and "4 x 128 tokens of 256 bytes" in text
    status, text = shown("--json", "--max-model-len", "32")
    report = json.loads(text)
    assert report["files"] == [{"name": "tiny.gguf", "bytes": path.stat().st_size, "sha256": ""}]
    figures = report["memory"]
    assert figures["kv"] == 32 * 256 and figures["fits"]
    assert figures["total"] == sum(figures[part] for part in ("weights", "kv", "working", "processes"))
    monkeypatch.setattr(free_memory, "free_memory", lambda *_: FreeMemory(1000, "left of the rest"))
    status, text = shown()
    assert status == 1 and "1 KB left of the rest: it does not fit" in text


def test_show_does_not_make_a_synthetic_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIXFOLD_CACHE", str(tmp_path))
    with pytest.raises(SystemExit):
        main(["show", "synthetic:llama-1b@q8_0", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["path"] == str(tmp_path / "synthetic" / "llama-1b-q8_0.gguf")
    assert report["layers"] == 16 and report["files"][0]["bytes"] > 1.2e9
    assert report["here"] is False
    with pytest.raises(SystemExit):
        main(["show", "synthetic:llama-1b@q8_0"])
    text = capsys.readouterr().out
    assert "not made yet" in text and "sha256" not in text
    assert list(tmp_path.iterdir()) == []


def test_show_does_not_make_a_synthetic_model_for_its_digest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIXFOLD_CACHE", str(tmp_path))
    with pytest.raises(SystemExit) as left:
        main(["show", "synthetic:tiny", "--digest"])
    assert left.value.code == 1
    assert "synthetic:tiny has not been made yet" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    model_path(Config.from_flat({"model": "synthetic:tiny"}))
    with pytest.raises(SystemExit) as left:
        main(["show", "synthetic:tiny", "--digest", "--json"])
    assert len(json.loads(capsys.readouterr().out)["files"][0]["sha256"]) == 64


@pytest.mark.parametrize("command", ["show", "serve", "bench"])
def test_show_refuses_what_serve_refuses(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIXFOLD_CACHE", str(tmp_path))
    folder = tiny.folder(tmp_path, "qwen2")
    faults = {
        "synthetic:tiny,head_dim=48": "tiny+head_dim=48-q4_1.gguf: a head dimension of 48 is not supported; "
        "multiples of 32 up to 512 are",
        "synthetic:tiny,hidden=100": "tiny+hidden=100-q4_1.gguf: a width of 100 is not supported; multiples of 32 are",
        str(folder): "qwen2-f32: there is no tokenizer.json in this folder",
    }
    for name, fault in faults.items():
        with pytest.raises(SystemExit) as left:
            main([command, name])
        assert (left.value.code, *capsys.readouterr()) == (1, "", f"sixfold: {fault}\n")

"""What a model needs in memory, and the refusal of one that does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests import gguf_writer as w

from sixfold.cli.main import main
from sixfold.config import Config
from sixfold.engine import launch, memory
from sixfold.engine.memory import check_fits, memory_available, memory_need
from sixfold.errors import ConfigError
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
    layer = 2 * HIDDEN + HIDDEN * (2 * HEADS + 2 * KV_HEADS) * HEAD_DIM + 3 * HIDDEN * FFN
    n_tokens = len(w.tiny_vocabulary()["tokenizer.ggml.tokens"])  # the rows behind them are padding
    return 4 * (n_tokens * HIDDEN + HIDDEN + LAYERS * layer)


def test_the_figures_add_up(tmp_path: Path) -> None:
    model = open_model(model_file(tmp_path))
    need = memory_need(model, max_model_len=100, max_num_seqs=3)
    assert need.weights == n_weight_bytes()
    assert need.kv_per_token == 2 * LAYERS * KV_HEADS * HEAD_DIM * 2
    assert need.kv == 3 * 112 * need.kv_per_token  # whole blocks of 16 tokens
    assert need.total == need.weights + need.kv
    assert memory_need(model).context == CONTEXT
    assert memory_need(model, kv_cache_dtype="float32").kv_per_token == 2 * need.kv_per_token


def test_what_does_not_fit_is_refused_with_the_figures(tmp_path: Path) -> None:
    need = memory_need(open_model(model_file(tmp_path)), max_num_seqs=1000)
    check_fits(need, need.total, "tiny")
    with pytest.raises(
        ConfigError, match=r"tiny does not fit: it needs 33 MB: .* 32 MB are free; lower --max-model-len"
    ):
        check_fits(need, 32_000_000, "tiny")
    with pytest.raises(ConfigError, match=r"its weights need 0 MB, 0 MB are free"):
        check_fits(need, 1000, "tiny")


def test_launch_refuses_before_anything_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config.from_flat({"model": str(model_file(tmp_path))})
    monkeypatch.setattr(memory, "memory_available", lambda: 1 << 30)
    assert launch.resolve(config).cache.num_kv_blocks == 64 * CONTEXT // 16
    free = n_weight_bytes() + 3 * 16 * 256
    monkeypatch.setattr(memory, "memory_available", lambda: free)
    assert launch.resolve(config).cache.num_kv_blocks == 3
    monkeypatch.setattr(memory, "memory_available", lambda: n_weight_bytes() - 1)
    with pytest.raises(ConfigError, match="does not fit: its weights"):
        launch.resolve(config)


def test_available_memory_is_a_sane_figure() -> None:
    assert 1 << 20 < memory_available() < 1 << 50


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
    assert report["memory"]["kv"] == 32 * 256 and report["memory"]["fits"]
    monkeypatch.setattr(memory, "memory_available", lambda: 1000)
    status, text = shown()
    assert status == 1 and "it does not fit" in text

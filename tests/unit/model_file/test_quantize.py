"""Quantizing at load: the blocks' bytes against a plain reading of the formulas, and what a model becomes."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tests.fixtures import forward
from tests.fixtures import tiny_models as tiny

from sixfold.errors import ModelFileError
from sixfold.model_file import Matrix, ModelFile, open_model
from sixfold.model_file.quantize import quantize
from sixfold.model_file.synthetic import cached

F32, F16, Q4_1, Q8_0, BF16 = 0, 1, 3, 8, 30
Float32 = npt.NDArray[np.float32]


def half(value: np.float32) -> bytes:
    return struct.pack("<e", value)


def round_away(value: float) -> int:
    return int(np.floor(abs(np.float64(value)) + 0.5)) * (1 if value >= 0 else -1)


def q8_0_block(x: Float32) -> bytes:
    d = np.float32(np.abs(x).max() / np.float32(127))
    inverse = np.float32(1) / d if d else np.float32(0)
    return half(d) + struct.pack("32b", *(round_away(np.float32(value * inverse)) for value in x))


def q4_1_block(x: Float32) -> bytes:
    low = x.min()
    d = np.float32((x.max() - low) / np.float32(15))
    inverse = np.float32(1) / d if d else np.float32(0)
    q = [min(15, int(np.float32((value - low) * inverse) + np.float32(0.5))) for value in x]
    return half(d) + half(low) + bytes(q[j] | q[j + 16] << 4 for j in range(16))


def sample() -> Float32:
    """Rows of many sizes; of zeros; of one value; of halves that must be rounded away from zero."""
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((40, 96)) * 10.0 ** rng.integers(-6, 4, (40, 1))).astype(np.float32)
    x[3], x[4], x[5, :32] = 0, 1.5, 127
    x[5, 1:32] = np.arange(31) - 15.5
    return x


@pytest.mark.parametrize(("to", "block"), [(Q8_0, q8_0_block), (Q4_1, q4_1_block)])
def test_blocks(to: int, block: object) -> None:
    x = sample()
    expected = b"".join(block(row) for row in x.reshape(-1, 32))  # type: ignore[operator]
    assert quantize(x.reshape(-1).view(np.uint8), F32, *x.shape, to).tobytes() == expected


@pytest.mark.parametrize("to", [Q8_0, Q4_1])
def test_half_width_sources(to: int) -> None:
    x = (np.random.default_rng(4).integers(-127, 128, (8, 64)) / 64).astype(np.float32)
    expected = quantize(x.view(np.uint8).reshape(-1), F32, 8, 64, to)
    half_width = x.astype(np.float16).view(np.uint8).reshape(-1)
    brain = (x.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(-1)
    assert np.array_equal(quantize(half_width, F16, 8, 64, to), expected)
    assert np.array_equal(quantize(brain, BF16, 8, 64, to), expected)


@pytest.mark.parametrize("to", [Q8_0, Q4_1])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_what_is_not_finite_is_refused(to: int, value: float) -> None:
    x = np.ones((2, 64), np.float32)
    x[1, 40] = value
    with pytest.raises(ModelFileError, match="not finite, or too large"):
        quantize(x.view(np.uint8).reshape(-1), F32, 2, 64, to)


@pytest.mark.parametrize("to", [Q8_0, Q4_1])
def test_the_smallest_numbers(to: int) -> None:
    x = np.full((1, 32), np.float32(1e-45))
    x[0, ::2] *= -1
    assert not quantize(x.view(np.uint8).reshape(-1), F32, 1, 32, to)[:2].any()


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_a_folder(dtype: str, tmp_path: Path) -> None:
    file = open_model(tiny.folder(tmp_path, "qwen3moe", dtype=dtype), quantize="q4_1")
    c = file.config
    assert file.matrix("blk.0.attn_q.weight", c.q_size, c.hidden).ggml_type == Q4_1
    assert file.matrix("token_embd.weight", c.vocab, c.hidden).ggml_type == Q8_0
    assert file.matrix("output.weight", c.vocab, c.hidden).ggml_type == Q8_0
    assert file.matrix("blk.0.ffn_gate_inp.weight", c.n_experts, c.hidden).ggml_type == (
        F32 if dtype == "F32" else BF16
    )
    experts = file.expert_matrices("blk.1.ffn_up_exps.weight", c.n_experts, c.expert_ffn, c.hidden)
    assert {m.ggml_type for m in experts} == {Q4_1}
    assert len(experts[0].data) == c.expert_ffn * c.hidden // 32 * 20
    assert file.vector("blk.0.attn_norm.weight", c.hidden).dtype == np.float32
    whole = open_model(tiny.folder(tmp_path, "qwen3moe", dtype=dtype))
    assert file.bytes_weights < whole.bytes_weights / (2.2 if dtype == "BF16" else 4)


@pytest.mark.parametrize("method", ["q8_0", "q4_1"])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_folder_and_gguf_are_quantized_alike(family: str, method: str, tmp_path: Path) -> None:
    """When this was written, the bytes were those of llama.cpp's quantizer too, for each family and float type."""
    first = matrices(open_model(tiny.folder(tmp_path, family), quantize=method))
    for path in (tiny.gguf(tmp_path, family), tiny.folder(tmp_path, family, dtype="BF16", shards=2)):
        second = matrices(open_model(path, quantize=method))
        for one, other in zip(first, second, strict=True):
            assert (one.ggml_type, one.n_rows, one.k) == (other.ggml_type, other.n_rows, other.k)
            assert one.ggml_type in (Q8_0, Q4_1) and np.array_equal(one.data, other.data)


def matrices(file: ModelFile) -> list[Matrix]:
    """All that is quantized."""
    c = file.config
    found = [file.matrix("token_embd.weight", c.vocab, c.hidden)]
    for i in range(c.n_layers):
        for name, n_rows, k in (
            ("attn_q", c.q_size, c.hidden),
            ("attn_k", c.kv_size, c.hidden),
            ("attn_v", c.kv_size, c.hidden),
            ("attn_output", c.hidden, c.q_size),
        ):
            found.append(file.matrix(f"blk.{i}.{name}.weight", n_rows, k))
        for name, n_rows, k in (("gate", c.ffn, c.hidden), ("up", c.ffn, c.hidden), ("down", c.hidden, c.ffn)):
            if c.n_experts:
                n_rows, k = (c.expert_ffn if n == c.ffn else n for n in (n_rows, k))
                found += file.expert_matrices(f"blk.{i}.ffn_{name}_exps.weight", c.n_experts, n_rows, k)
            else:
                found.append(file.matrix(f"blk.{i}.ffn_{name}.weight", n_rows, k))
    return found


def test_what_is_quantized_already_stays(tmp_path: Path) -> None:
    plain = open_model(tiny.folder(tmp_path, "llama"))
    again = open_model(tiny.folder(tmp_path, "llama"), quantize=None)
    ids, _ = tiny.references("llama")[1]
    assert np.array_equal(forward.logits(plain, ids), forward.logits(again, ids))


def test_a_model_without_float_matrices_is_refused(tmp_path: Path) -> None:
    path = cached("synthetic:tiny@q4_1", tmp_path)
    with pytest.raises(ModelFileError, match=r"tiny-q4_1.gguf: --quantize q8_0 would change nothing"):
        open_model(path, quantize="q8_0")


def test_pieces_and_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(5).standard_normal((64, 256)).astype(np.float32)
    whole = quantize(x.reshape(-1).view(np.uint8), F32, *x.shape, Q4_1)
    monkeypatch.setattr("sixfold.model_file.quantize._CHUNK_VALUES", 96)
    assert np.array_equal(quantize(x.reshape(-1).view(np.uint8), F32, *x.shape, Q4_1), whole)


def test_an_unknown_method(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="'q2' is not a way to quantize; q8_0, q4_1 are"):
        open_model(tiny.folder(tmp_path, "llama"), quantize="q2")


def test_the_fault_names_the_tensor(tmp_path: Path) -> None:
    folder = tiny.folder(tmp_path, "llama")
    raw = bytearray((folder / "model.safetensors").read_bytes())
    raw[-4:] = struct.pack("<f", float("nan"))
    (folder / "model.safetensors").write_bytes(raw)
    file = open_model(folder, quantize="q8_0")
    with pytest.raises(ModelFileError, match="holds a value that is not finite"):
        file.vector("output_norm.weight", file.config.hidden)

"""Every family on tiny random models against the float32 forward pass of `transformers` (tests/fixtures)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tests.fixtures import forward
from tests.fixtures import tiny_models as tiny
from tests.unit.executor.native.tiny_llama import Row, block_tables, run

from sixfold.errors import ModelFileError
from sixfold.executor.native import models
from sixfold.executor.native.kernels import ThreadPool
from sixfold.executor.native.supported import check_supported
from sixfold.model_file import open_model
from sixfold.model_file.synthetic import cached

CONTEXT = 128


def loaded(path: Path, pool: ThreadPool, *, activations: str = "float32", context: int = CONTEXT) -> models.Model:
    return models.load(open_model(path), pool, activations=activations, max_positions=context)


def logits(model: models.Model, ids: list[int], *, dtype: str = "float32", chunk: int = 64) -> npt.NDArray[np.float32]:
    """[tokens, vocabulary], the prompt in chunks."""
    program = model.program(model.kv_cache(8, dtype), 64)
    tables = block_tables(1, 8)
    return np.concatenate([run(program, tables, [Row(ids[a : a + chunk], a, 0)])[0] for a in range(0, len(ids), chunk)])


def error(got: npt.NDArray[np.float32], want: npt.NDArray[np.floating]) -> float:
    return float(np.abs(got - want).max() / np.abs(want).max())


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_logits_equal_the_references(pool: ThreadPool, tmp_path: Path, family: str) -> None:
    folder = open_model(tiny.folder(tmp_path, family))
    long = folder.config.rope.long_factors != ()
    for i, (ids, want) in enumerate(tiny.references(family)):
        # LongRoPE's factors follow from the positions that are served; its references were made with both kinds.
        context = folder.config.rope.original_context if long and i < 2 else CONTEXT
        of_gguf = logits(loaded(tiny.gguf(tmp_path, family), pool, context=context), ids)
        of_folder = logits(loaded(tiny.folder(tmp_path, family), pool, context=context), ids, chunk=7)
        assert error(of_gguf, want) < 1e-4
        np.testing.assert_array_equal(of_gguf, of_folder)


@pytest.mark.parametrize("family", ["llama", "qwen3moe", "gemma3"])
def test_every_float_type_gives_the_same_bits(pool: ThreadPool, tmp_path: Path, family: str) -> None:
    """The weights are exact in all of them."""
    ids, _ = tiny.references(family)[0]
    want = logits(loaded(tiny.gguf(tmp_path, family), pool), ids)
    for path in (
        tiny.gguf(tmp_path, family, kind=tiny.BF16),
        tiny.gguf(tmp_path, family, kind=tiny.F16),
        tiny.folder(tmp_path, family, dtype="BF16", shards=2),
        tiny.folder(tmp_path, family, dtype="F16"),
    ):
        np.testing.assert_array_equal(logits(loaded(path, pool), ids), want)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_chunks_batches_and_threads_change_no_bit(isa: str, tmp_path: Path, family: str) -> None:
    path = tiny.gguf(tmp_path, family, kind=tiny.F16)
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, 250, n).tolist() for n in (61, 5, 33, 1)]
    tables = block_tables(4, 5)
    alone = []
    model = loaded(path, ThreadPool(1, isa), activations="int8")
    for slot, ids in enumerate(sequences):
        program = model.program(model.kv_cache(20), 64)
        alone.append(np.concatenate([run(program, tables, [Row([t], i, slot)])[0] for i, t in enumerate(ids)]))
    model = loaded(path, ThreadPool(3, isa), activations="int8")
    for trial in range(3):
        chunks = np.random.default_rng(trial)
        program = model.program(model.kv_cache(20), 64)
        done = [0] * len(sequences)
        while any(d < len(s) for d, s in zip(done, sequences, strict=True)):
            rows = []
            for slot in chunks.permutation(len(sequences)):
                n = int(min(len(sequences[slot]) - done[slot], chunks.integers(0, 16)))
                if n:
                    rows.append(Row(sequences[slot][done[slot] : done[slot] + n], done[slot], int(slot)))
                    done[slot] += n
            if not rows:
                continue
            got, at = run(program, tables, rows)[0], 0
            for r in rows:
                want = alone[r.slot][r.start : r.start + len(r.ids)]
                np.testing.assert_array_equal(got[at : at + len(r.ids)], want)
                at += len(r.ids)


@pytest.mark.parametrize("experts", ["n_experts=128,n_experts_used=8", "n_experts=3,n_experts_used=2"])
def test_many_experts_and_many_tokens_of_one(isa: str, tmp_path: Path, experts: str) -> None:
    """More experts than tokens of a step, and more tokens of an expert than are multiplied together."""
    shape = f"hidden=128,n_heads=4,n_kv_heads=2,head_dim=32,ffn=64,vocab=512,n_layers=2,{experts}"
    path = cached(f"synthetic:qwen3moe-30b,{shape}@f32", tmp_path)
    ids = np.random.default_rng(0).integers(0, 512, 250).tolist()
    tables = block_tables(1, 16)
    found = []
    for threads, chunk in ((1, 1), (3, 250), (2, 17)):
        model = loaded(path, ThreadPool(threads, isa), context=256)
        program = model.program(model.kv_cache(16, "float32"), 256)
        rows = [Row(ids[i : i + chunk], i, 0) for i in range(0, 250, chunk)]
        found.append(np.concatenate([run(program, tables, [row])[0] for row in rows]))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    assert error(found[0], forward.logits(open_model(path), ids)) < 1e-4


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_weights_of_16_bits_meet_bfloat16(pool: ThreadPool, tmp_path: Path, family: str) -> None:
    ids, want = tiny.references(family)[-1]
    model = loaded(tiny.gguf(tmp_path, family, kind=tiny.F16), pool, activations="int8")
    assert error(logits(model, ids, dtype="bfloat16"), want) < 0.05


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_quantized_when_loaded(pool: ThreadPool, tmp_path: Path, family: str) -> None:
    """int8 weights and activations, bfloat16 cache: close to the reference, within their rounding."""
    ids, want = tiny.references(family)[-1]
    model = models.load(open_model(tiny.folder(tmp_path, family), quantize="q8_0"), pool, max_positions=CONTEXT)
    assert error(logits(model, ids, dtype="bfloat16"), want) < 0.2


def test_what_the_kernels_cannot_compute_is_refused(pool: ThreadPool, tmp_path: Path) -> None:
    import dataclasses

    config = open_model(tiny.gguf(tmp_path, "llama")).config
    for change in ({"head_dim": 48}, {"head_dim": 1024}, {"n_heads": 34, "n_kv_heads": 2}, {"ffn": 100}):
        with pytest.raises(ModelFileError, match="not supported"):
            check_supported(dataclasses.replace(config, **change))  # type: ignore[arg-type]

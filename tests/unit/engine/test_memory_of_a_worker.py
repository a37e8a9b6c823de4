"""What `memory_need` says against what a worker has taken when every block, table and row has been used."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fixtures import tiny_models as tiny

from sixfold.model_file.synthetic import cached

USE_ALL = """
import json, sys
from sixfold.config import Config
from sixfold.engine import launch, memory, resolve
from sixfold.model_file import open_model

import sixfold.engine.worker_process

config = resolve.resolve(Config.from_flat(json.loads(sys.argv[1])))
worker = launch.build_worker(config)
backend = worker._backend
loaded = [int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")][0]
for block in range(config.cache.num_kv_blocks):
    backend._kv.fill_block(block, 1)
worker._slots.tokens[:] = worker._slots.block_table[:] = 0
backend._logits[:] = 0
ids = [i % backend._model.vocab for i in range(min(config.model.max_model_len, 16 * config.cache.num_kv_blocks, 256))]
backend.logits(ids)
model = open_model(config.model.model, quantize=config.model.quantization)
if not config.model.quantization:
    backend._model.file._find("token_embd.weight")[0].read().max()
resident = [int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")][0]
need = memory.memory_need(model, config).with_blocks(config.cache.num_kv_blocks)
print(json.dumps({"need": need.worker, "real": resident << 10, "loaded": loaded << 10, "kv": need.kv}))
"""


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("synthetic:tiny,hidden=512,ffn=2048,n_layers=8,vocab=32000,context=4096@q4_1", {}),
        ("synthetic:tiny,hidden=512,ffn=2048,n_layers=8,vocab=32000,context=4096,tied=0@q4_k", {"max_num_seqs": 4}),
        ("synthetic:gemma3-270m,n_layers=2,vocab=32000@q8_0", {"kv_cache_dtype": "float32"}),
        ("synthetic:qwen3-0.6b,n_layers=3,vocab=8000@bf16", {"quantize": "q4_1"}),
        ("synthetic:qwen3moe-30b,n_layers=1,vocab=2000,n_experts=32@q4_0", {}),
        ("synthetic:qwen3-0.6b,n_layers=1,vocab=8000@q8_0", {"activations": "float32"}),
        ("folder", {}),
    ],
)
def test_the_figures_hold(model: str, settings: dict[str, object], tmp_path: Path) -> None:
    path = tiny.folder(tmp_path, "llama") if model == "folder" else cached(model, tmp_path)
    if path.is_dir():
        (path / "tokenizer.json").write_text('{"model": {}}')  # no text here, but a folder without one is refused
    told = {"model": str(path), "kv_cache_memory": "64M", "threads": 2, "num_kv_blocks": 0, **settings}
    done = subprocess.run([sys.executable, "-c", USE_ALL, json.dumps(told)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["real"] <= found["need"] <= 1.15 * found["real"], found
    assert found["loaded"] + found["kv"] <= found["need"], "the file does not count twice"

"""The native backend's kernels and the models that are described with them.

Runs in: worker process (in-process for `LLM`).
Owns: packed weights, KV memory, scratch, the compute threads.
May import: model_file, config, errors.
Start reading at: kernels.py (the operations), models/ (families described with them), reference.py (NumPy truth).
"""

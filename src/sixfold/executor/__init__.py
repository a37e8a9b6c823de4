"""Component 4, the executor: turns a step plan into token ids on a device.

Runs in: worker process (in-process for `LLM`); the engine process holds only the sending end.
Owns: weights, KV memory, slots (everything that depends on sampled tokens), compute threads.
May import: sampler, text, model_file, transport, messages, config, errors.
Start reading at: executor.py (the protocol), worker.py (one step in five lines), slots.py, model_runner.py.
"""

"""The engine: the loop that joins scheduler, KV cache manager and executor, and the client through which others use it.

Runs in: engine process (core), API process (client), supervisor (launch). Owns: the order of a step, the processes.
May import: every component below it. Start reading at: core.py, then launch.py (who is built where).
"""

"""Who may call, and how much: keys, rates and quotas, when to come again, what an address without keys exposes.

Runs in: API process. Owns: what the keys have used, which a server's API processes share. May import: what `api` may.
Start reading at: keys.py, then allowance.py.
"""

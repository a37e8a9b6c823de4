"""Who may call: the key file, and what an address without keys exposes. How much each may use: `api/admission/`.

Runs in: API process. Owns: nothing that changes. May import: what `api` may. Start reading at: keys.py.
"""

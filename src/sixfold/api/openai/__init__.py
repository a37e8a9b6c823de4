"""OpenAI's chat completions, completions and embeddings: wire types, endpoints, what goes out.

Runs in: API process. Owns: nothing. May import: what `api` may.
Start reading at: schemas.py, then chat.py and completions.py.
"""

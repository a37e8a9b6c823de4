"""The wire: limits below ASGI, bodies into checked types, errors out in one shape.

Runs in: API process. Owns: connections until they are calls. May import: what `api` may.
Start reading at: guard.py, then decoding.py and errors.py.
"""

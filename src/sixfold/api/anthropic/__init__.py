"""Anthropic's Messages API over the same engine: wire types, conversion to a conversation, answers and events.

Its errors have a shape of their own, which is in `api/http/errors.py`: paths have it before they have a handler.

Runs in: API process. Owns: nothing. May import: what `api` may.
Start reading at: messages.py, then convert.py and turns.py (what comes in), answers.py (what goes out).
"""

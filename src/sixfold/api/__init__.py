"""HTTP in, HTTP out: parse and refuse early, turn a request into token ids, turn deltas into server-sent events.

Runs in: API process. Owns: the connections, the API side of every request that is in flight, its metrics.
May import: observability and everything below the engine's client.
Start reading at: app.py, then openai/chat.py, conversation.py, stream.py.
"""

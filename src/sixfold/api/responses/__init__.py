"""OpenAI's Responses API: items in, items out, and answers that are kept to be continued by their id.

Runs in: API process. Owns: the file of stored responses (one SQLite file, shared by the API processes).
May import: the rest of api, structured, text, messages, config, errors.
Start reading at: create.py (a request's way), then items.py, output.py, events.py; store.py for what is kept.
"""

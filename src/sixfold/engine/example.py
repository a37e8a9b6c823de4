"""The line that people are shown to try a server with: on its terminal, and at its address."""

from __future__ import annotations

import json
import shlex

__all__ = ["TOKENS", "curl_line"]

TOKENS = 64
"""What it takes of the KV cache, with the words that a chat template may add. A smaller cache is shown no example."""


def curl_line(url: str, model: str, *, chats: bool, keys: bool = False) -> str:
    """A streamed request that this model answers.

    Args:
        url: of the server, without a path.
        chats: whether the model has a chat template; a base model continues a text.
        keys: whether the server wants one; the reader puts it in place of KEY.
    """
    asked: dict[str, object]
    if chats:
        path, asked = "chat/completions", {"messages": [{"role": "user", "content": "Say hello."}]}
    else:
        path, asked = "completions", {"prompt": "The capital of France is", "max_tokens": 32}
    body = json.dumps({"model": model, **asked, "temperature": 0, "stream": True}, ensure_ascii=False)
    key = " -H 'Authorization: Bearer KEY'" if keys else ""
    return f"  curl -N {url}/v1/{path}{key} -H 'Content-Type: application/json' -d {shlex.quote(body)}\n"

"""The line that people paste to try a server."""

from __future__ import annotations

import json
import shlex

from sixfold.engine.example import curl_line


def test_it_is_a_request_a_shell_reads() -> None:
    words = shlex.split(curl_line("http://h:1", "it's", chats=True))
    assert words[:3] == ["curl", "-N", "http://h:1/v1/chat/completions"]
    assert json.loads(words[-1])["model"] == "it's"
    assert "Authorization" not in " ".join(words)


def test_a_server_with_keys_shows_where_the_key_goes() -> None:
    words = shlex.split(curl_line("http://h:1", "m", chats=False, keys=True))
    assert words[2:5] == ["http://h:1/v1/completions", "-H", "Authorization: Bearer KEY"]

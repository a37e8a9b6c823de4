"""The `llm` command and its library."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from script import ANSWER, ARGUMENTS, MODEL, SCHEMA, UNITS, check_document

FOLDER = Path(tempfile.mkdtemp(prefix="sixfold-llm-"))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
os.environ["LLM_USER_PATH"] = str(FOLDER)

import llm  # noqa: E402
from click.testing import CliRunner  # noqa: E402
from llm.cli import cli  # noqa: E402


def _configure(url: str) -> None:
    """The file that a user writes to add a server."""
    entry = {
        "model_id": "here",
        "model_name": MODEL,
        "api_base": f"{url}/v1",
        "api_key_name": "none",
        "supports_schema": True,
        "supports_tools": True,
    }
    (FOLDER / "extra-openai-models.yaml").write_text(json.dumps([entry]))
    (FOLDER / "keys.json").write_text(json.dumps({"none": "none"}))


def _llm(url: str, *arguments: str, status: int = 0) -> str:
    _configure(url)
    done = CliRunner().invoke(cli, ["prompt", "-m", "here", "--no-log", *arguments])
    assert done.exit_code == status, done.output
    return str(done.output)


def _model(url: str) -> Any:
    _configure(url)
    return llm.get_model("here")


def prompt(url: str) -> None:
    assert _llm(url, "Hello", "--no-stream", "--system", "Be brief.").strip() == ANSWER


def prompt_stream(url: str) -> None:
    assert _llm(url, "Hello", "-o", "temperature", "0").strip() == ANSWER


def prompt_limit(url: str) -> None:
    assert _llm(url, "Hello", "-o", "max_tokens", "5").strip() == ANSWER[:5]


def schema(url: str) -> None:
    check_document(_llm(url, "Hello", "--schema", json.dumps(SCHEMA)))
    check_document(_model(url).prompt("Hello", schema=SCHEMA, stream=False).text())


def tools(url: str) -> None:
    seen: list[str] = []

    def weather(unit: str) -> str:
        """The weather here"""
        seen.append(unit)
        return "sunny"

    for stream in (False, True):
        response = _model(url).prompt("Hello", tools=[weather], stream=stream)
        (call,) = response.tool_calls()
        assert (call.name, call.arguments) == ("weather", ARGUMENTS)
        (result,) = response.execute_tool_calls()
        assert result.output == "sunny"
    assert set(seen) <= set(UNITS)


def conversation(url: str) -> None:
    conversation = _model(url).conversation()
    assert conversation.prompt("Hello").text() == ANSWER
    assert conversation.prompt("And now?").text() == ANSWER


def errors(url: str) -> None:
    assert "top_p" in _llm(url, "Hello", "-o", "top_p", "0", status=1)

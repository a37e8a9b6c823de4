"""What people call the server with, in its own environment, against a live server: each part of a tour is a test.

`scripts/client_envs.sh` makes the environments. A client's parts run in one process, one after the other, beside
those of the other clients.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.clients.environments import python_of
from tests.clients.tours.script import ANSWER
from tests.e2e.serving import Server

TOURS = Path(__file__).parent / "tours"
CLIENTS = {
    "openai": ("sdks", "openai"),
    "anthropic": ("sdks",),
    "instructor": ("sdks",),
    "langchain": ("sdks",),
    "litellm": ("sdks",),
    "llm": ("sdks",),
}
"""Tour -> the environments that it is taken in."""
PAIRS = [(environment, client) for client, environments in CLIENTS.items() for environment in environments]
TOUR_S = 120.0


def parts_of(client: str) -> list[str]:
    """Names of the parts, in their order; read, since the module can only be imported in its own environment."""
    tree = ast.parse((TOURS / f"tour_{client}.py").read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]


class Tour:
    """A client's process, and what it has reported."""

    def __init__(self, environment: str, client: str, url: str) -> None:
        command = [str(python_of(environment)), str(TOURS / "run.py"), f"tour_{client}", url]
        clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean)
        self._faults: dict[str, str | None] | None = None
        self._rest = ""

    def fault(self, part: str) -> str | None:
        """None when the part went well."""
        if self._faults is None:
            out, self._rest = self.process.communicate(timeout=TOUR_S)
            reports = [json.loads(line) for line in out.splitlines() if line.startswith('{"part"')]
            self._faults = {report["part"]: report["fault"] for report in reports}
        return self._faults.get(part, f"the tour ended before this part:\n{self._rest}")


@pytest.fixture(scope="module")
def tours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], Tour]]:
    """All tours that can be taken here, begun at once over one server."""
    here = [(environment, client) for environment, client in PAIRS if python_of(environment).exists()]
    script = tmp_path_factory.mktemp("tours") / "script.json"
    script.write_text(json.dumps({"script": list(ANSWER)}))
    # What a grammar forces is drawn among all that it allows: by chance an answer would be too long for its limit.
    with Server("scripted", "--executor", "scripted", "--script", str(script), "--seed", "1") as server:
        started = {(environment, client): Tour(environment, client, server.url) for environment, client in here}
        yield started
        for tour in started.values():
            if tour.process.poll() is None:
                tour.process.kill()
            tour.process.communicate()
        server.wait_idle()


@pytest.mark.parametrize(
    ("environment", "client", "part"),
    [
        pytest.param(environment, client, part, id=f"{environment}-{client}-{part}")
        for environment, client in PAIRS
        for part in parts_of(client)
    ],
)
def test_tour(tours: dict[tuple[str, str], Tour], environment: str, client: str, part: str) -> None:
    if (environment, client) not in tours:
        pytest.skip(f"build/clients-env/{environment} is not there: sh scripts/client_envs.sh makes it")
    fault = tours[environment, client].fault(part)
    assert fault is None, fault

"""Requests that schemathesis makes out of `/openapi.json`, good ones and bad ones: no 5xx, and nothing undocumented."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.clients.environments import python_of
from tests.e2e.serving import Server

CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
HERE = Path(__file__).parent
SEED = 1


def test_requests_made_from_the_schema(tmp_path: Path) -> None:
    python = python_of("schemathesis")
    if not python.exists():
        pytest.skip("build/clients-env/schemathesis is not there: sh scripts/client_envs.sh makes it")
    # A small context and few slots: a request that asks for much is short all the same.
    flags = ("--executor", "scripted", "--max-model-len", "64", "--max-num-seqs", "8")
    with Server("scripted", *flags) as server:
        done = subprocess.run(
            [
                str(python.with_name("schemathesis")),
                f"--config-file={HERE / 'schemathesis.toml'}",
                "run",
                f"{server.url}/openapi.json",
                "--max-examples=15",
                "--exclude-path=/debug/live",  # it never ends by itself
                f"--checks={','.join(CHECKS)}",
                f"--seed={SEED}",
                "--request-timeout=60",
                "--no-color",
            ],
            cwd=tmp_path,
            env={**os.environ, "SCHEMATHESIS_HOOKS": str(HERE / "schema_hooks.py")},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
        server.wait_idle()
        assert server.request("GET", "/health")[0] == 200

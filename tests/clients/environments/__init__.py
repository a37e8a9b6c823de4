"""Where the clients' environments are."""

from __future__ import annotations

from pathlib import Path

__all__ = ["python_of"]

BUILD = Path(__file__).resolve().parents[3] / "build" / "clients-env"


def python_of(environment: str) -> Path:
    """The interpreter of an environment, which need not be there."""
    return BUILD / environment / "bin" / "python"

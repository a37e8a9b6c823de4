"""Bytes in words: one way for all that is told to people."""

from __future__ import annotations

__all__ = ["size_text"]


def size_text(n_bytes: float) -> str:
    """`12 KB`, `105 MB`, `5.5 GB`: powers of 1000, as disks and downloads are sold."""
    if n_bytes >= 1e9:
        return f"{n_bytes / 1e9:,.1f} GB"
    return f"{n_bytes / 1e6:,.0f} MB" if n_bytes >= 1e6 else f"{n_bytes / 1e3:,.0f} KB"

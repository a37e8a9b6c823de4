"""Errors for what is known but not offered, the same on all endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sixfold.api.http.errors import clip
from sixfold.errors import InvalidRequest

__all__ = ["not_served", "refuse_unless", "refuse_unsupported", "unsupported", "unsupported_part"]


def unsupported(field: str) -> InvalidRequest:
    """A field that asks for what is known but not offered here."""
    return InvalidRequest(f"{field} is not supported by this server", param=field, code="unsupported_field")


def not_served(where: str, kind: object, served: Sequence[str]) -> InvalidRequest:
    """Something of a type that is not served, or of none."""
    offered = ", ".join(served)
    if kind is None:
        return InvalidRequest(f"{where} is required; it may be {offered}", param=where, code="missing_field")
    if not isinstance(kind, str):
        return InvalidRequest(f"{where} must be a string", param=where, code="invalid_type")
    return InvalidRequest(
        f"{where}: {clip(kind, 64)} is not supported by this server; supported: {offered}",
        param=where,
        code="unsupported_field",
    )


def unsupported_part(where: str, index: int, kind: str) -> InvalidRequest:
    """A part of a message that is not text.

    Args:
        where: the message's content.
        index: of the part in it.
        kind: its type.
    """
    return InvalidRequest(
        f"{where}: only parts of type text are supported; part {index} is of type {clip(kind, 64)}",
        param=where,
        code="unsupported_field",
    )


def refuse_unsupported(
    request: msgspec.Struct, asks_for_nothing: Mapping[str, tuple[Any, ...]], *, where: str = ""
) -> None:
    """Refuse what is known but not offered.

    Args:
        asks_for_nothing: field -> values, besides null, that are taken all the same.
        where: the object's place in the request, with a dot behind it.

    Raises:
        InvalidRequest: a field asks for what this server does not offer; `param` names it.
    """
    for name in type(request).__struct_fields__:
        neutral = asks_for_nothing.get(name)
        if neutral is None or name in getattr(request, "OFFERED", ()):
            continue
        refuse_unless(where + name, getattr(request, name), neutral)


def refuse_unless(field: str, value: Any, neutral: tuple[Any, ...]) -> None:
    """Raises: InvalidRequest: the field's value is neither null nor one of the `neutral` ones."""
    if value is not None and not any(value == ok and type(value) is type(ok) for ok in neutral):
        raise unsupported(field)

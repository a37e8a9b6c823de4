"""`chat_template_kwargs`: a caller's variables for the chat template, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sixfold.errors import InvalidRequest
from sixfold.text import RESERVED_NAMES

__all__ = ["check_template_kwargs"]

MAX_KWARGS = 64
MAX_KWARGS_BYTES = 64 << 10
"""Written as JSON."""

_FIELD = "chat_template_kwargs"


def check_template_kwargs(kwargs: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """
    Raises:
        InvalidRequest: there are too many, or a name is taken, or none that a template can use.
    """
    if not kwargs:
        return {}
    if len(kwargs) > MAX_KWARGS:
        raise InvalidRequest(f"{_FIELD} has more than {MAX_KWARGS} entries", param=_FIELD)
    if len(msgspec.json.encode(kwargs)) > MAX_KWARGS_BYTES:
        raise InvalidRequest(f"{_FIELD} has more than {MAX_KWARGS_BYTES} bytes", param=_FIELD)
    for name in kwargs:
        if not name.isidentifier() or name.startswith("sixfold_"):
            raise InvalidRequest(f"{_FIELD}: a name must be letters, digits and _", param=_FIELD)
        if name in RESERVED_NAMES:
            raise InvalidRequest(f"{_FIELD}: the name {name!r} is reserved", param=_FIELD)
    return kwargs

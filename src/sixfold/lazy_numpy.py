"""`np` and `npt` as everywhere, for modules that are imported at start and compute with arrays later, if at all.

NumPy's import takes 0.1 s of a processor, and neither the supervisor nor an API process needs it before its first call.

At the level of a module nothing may be asked of it but types, in annotations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["np", "npt"]

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:

    class _Numpy:
        def __getattr__(self, name: str) -> Any:
            import numpy

            found = getattr(numpy, name)
            setattr(self, name, found)
            return found

    np = npt = _Numpy()

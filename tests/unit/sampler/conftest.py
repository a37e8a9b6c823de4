"""Every test of the kernels runs on the reference and, where it was built, on the compiled ones."""

from __future__ import annotations

import pytest

from sixfold._native import ThreadPool
from sixfold.sampler.kernels import NumpyKernels, RowKernels, find_native


@pytest.fixture(params=["numpy", "native", "threads"])
def kernels(request: pytest.FixtureRequest) -> RowKernels:
    if request.param == "numpy":
        return NumpyKernels()
    native = find_native(ThreadPool(2) if request.param == "threads" else None)
    if native is None:
        pytest.skip("sixfold._native was not built")
    return native

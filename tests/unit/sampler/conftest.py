"""Every test of the kernels runs on the reference and, where it was built, on the compiled ones."""

from __future__ import annotations

import pytest

from sixfold.sampler.kernels import NumpyKernels, RowKernels, find_native


@pytest.fixture(params=["numpy", "native"])
def kernels(request: pytest.FixtureRequest) -> RowKernels:
    if request.param == "numpy":
        return NumpyKernels()
    native = find_native()
    if native is None:
        pytest.skip("sixfold._native was not built")
    return native

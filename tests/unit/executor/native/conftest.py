"""Every test here runs on every build of the kernels that this CPU has."""

from __future__ import annotations

import pytest

from sixfold.executor.native.kernels import ThreadPool, available_isas


@pytest.fixture(params=available_isas())
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pool(isa: str) -> ThreadPool:
    return ThreadPool(2, isa)

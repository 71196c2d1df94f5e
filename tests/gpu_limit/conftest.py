# SPDX-License-Identifier: Apache-2.0
"""The library, built once, and the rigs that it runs in."""

import pytest

from images.arm64 import gpu_limit
from tests.gpu_limit.rig import RELEASES, Rig
from tests.lab.workloads import libcuda


@pytest.fixture(params=RELEASES)
def each(request: pytest.FixtureRequest) -> Rig:
    return Rig(libcuda(request.param), library=gpu_limit.build("amd64"))


@pytest.fixture
def rig() -> Rig:
    return Rig(libcuda("12.6"), library=gpu_limit.build("amd64"))

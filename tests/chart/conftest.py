# SPDX-License-Identifier: Apache-2.0
"""Helm, in the version that is maintained."""

import os

import pytest

from tests.chart.helm import Helm
from tests.lab import gomodules
from tools import debian


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm, compiled when it is not in the cache."""
    try:
        programs = gomodules.programs("helm", debian.architecture())
    except gomodules.NoGoError as error:
        # Debian 12 has none that is new enough. CI has.
        if "CI" in os.environ:
            raise
        pytest.skip(str(error))
    return Helm(programs / "helm", tmp_path_factory.mktemp("helm"))

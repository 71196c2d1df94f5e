# SPDX-License-Identifier: Apache-2.0
"""Helm, in the version that is maintained."""

import pytest

from tests import newer_go
from tests.chart.helm import Helm
from tests.lab import gomodules
from tools import debian


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    with newer_go.skipped_without():
        programs = gomodules.programs(gomodules.HELM, debian.architecture())
    return Helm(programs / "helm", tmp_path_factory.mktemp("helm"))

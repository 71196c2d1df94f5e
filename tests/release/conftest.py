# SPDX-License-Identifier: Apache-2.0
"""Checkouts to release from, and one release that was made."""

import shutil
from pathlib import Path

import pytest

from tests.release.checkout import Checkout, make


@pytest.fixture(scope="session")
def _template(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return make(tmp_path_factory.mktemp("template"))


@pytest.fixture
def checkout(_template: Checkout, tmp_path: Path) -> Checkout:
    return Checkout(shutil.copytree(_template.path, tmp_path / "checkout", symlinks=True), _template.key)


@pytest.fixture(scope="session")
def released(_template: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    own = tmp_path_factory.mktemp("released") / "checkout"
    checkout = Checkout(shutil.copytree(_template.path, own, symlinks=True), _template.key)
    code, said = checkout.release("0.2.0")
    assert code == 0, said
    return checkout

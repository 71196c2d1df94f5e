# SPDX-License-Identifier: Apache-2.0
"""The roles' Python files."""

import importlib
from types import ModuleType
from typing import Any

import pytest

from tests.reports import samples
from tests.unit.roles.conftest import Load, load

__all__ = ["Load", "fleet", "load"]


@pytest.fixture(scope="session", name="_roles")
def roles(load: Load) -> Load:
    """Makes the roles' module_utils importable, as Ansible does."""
    return load


@pytest.fixture(scope="session")
def fleets(_roles: Load) -> ModuleType:
    """The role's module_utils report_fleet."""
    return importlib.import_module("ansible.module_utils.report_fleet")


@pytest.fixture(scope="session")
def junit(_roles: Load) -> ModuleType:
    """The role's module_utils report_junit."""
    return importlib.import_module("ansible.module_utils.report_junit")


def fleet(fleets: ModuleType, **reports: Any) -> Any:
    """A fleet of boards; each report may be a pair with the one before."""
    pairs = {name: value if isinstance(value, tuple) else (value, None) for name, value in reports.items()}
    return fleets.fleet(samples.at(0), [fleets.board(name, *pair) for name, pair in pairs.items()])

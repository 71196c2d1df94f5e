# SPDX-License-Identifier: Apache-2.0
"""Makes the roles' modules, module_utils and filters importable as Ansible does."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROLES = Path(__file__).parents[3] / "roles"
Load = Callable[[str], ModuleType]


@pytest.fixture(scope="session")
def load() -> Load:
    """A function that loads a Python file below roles/."""
    module_utils = importlib.import_module("ansible.module_utils")
    for directory in ROLES.glob("*/module_utils"):
        module_utils.__path__.append(str(directory))

    def load_file(path: str) -> ModuleType:
        name = "roles_" + path.removesuffix(".py").replace("/", "_")
        if name not in sys.modules:
            spec = importlib.util.spec_from_file_location(name, ROLES / path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            sys.modules[name] = module
        return sys.modules[name]

    return load_file

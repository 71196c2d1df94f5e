# SPDX-License-Identifier: Apache-2.0
"""Imports the roles' modules, module_utils and filters as Ansible does."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from ansible import module_utils  # type: ignore[import-untyped] # ansible-core has no types

Data = dict[str, Any]
"""Facts, findings, variables, or an object of Kubernetes."""
ROLES = Path(__file__).parents[3] / "roles"
module_utils.__path__ += [str(path) for path in ROLES.glob("*/module_utils")]


def load(path: str) -> ModuleType:
    if "/module_utils/" in path:
        return importlib.import_module(f"ansible.module_utils.{Path(path).stem}")
    name = "roles_" + path.removesuffix(".py").replace("/", "_")
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROLES / path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module
    return sys.modules[name]

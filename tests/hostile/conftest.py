# SPDX-License-Identifier: Apache-2.0
"""The roles' Python files are loaded as in their unit tests."""

from tests.unit.roles.conftest import load

__all__ = ["load"]

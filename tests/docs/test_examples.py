# SPDX-License-Identifier: Apache-2.0
"""Each manifest of the documents is applied by a test to a real API server."""

from pathlib import Path

import pytest

from tests.docs import CHECKOUT
from tests.docs.commands import BY_PAGE, CASES

MANIFESTS = sorted((CHECKOUT / "docs/examples").glob("*.yaml"))
STORIES = [
    path for path in (CHECKOUT / "tests/acceptance").glob("test_*.py") if "docs/examples/" in path.read_text()
]


def appliers(manifest: Path) -> list[str]:
    """Return the tests that apply a manifest: by a command of the documents, or in a story by its name."""
    name = f"docs/examples/{manifest.name}"
    commands = [case.test or "tests/docs/test_commands.py" for case in CASES if name in case.command]
    commands += [test for page, test in BY_PAGE.items() if manifest.name in (CHECKOUT / page).read_text()]
    return commands + [story.name for story in STORIES if f'"{manifest.stem}"' in story.read_text()]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: manifest.name)
def test_manifest_is_applied_by_a_test(manifest: Path) -> None:
    assert appliers(manifest)

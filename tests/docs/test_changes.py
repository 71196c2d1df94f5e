# SPDX-License-Identifier: Apache-2.0
"""The page of changes names every place on a board that a role writes to or that reset.yml removes."""

import re
from collections.abc import Iterator

import pytest
import yaml
from ansible_collections.jetson_k3s.cluster.plugins.modules import k3s_reset

from tests.docs import CHECKOUT
from tests.docs.changes import changes

ROLES = CHECKOUT / "roles"
CHANGES = changes()
PLACEHOLDER = re.compile(r"\{\{ *(\w+)?.*?\}\}")
LISTS = ("TREES", "FILES", "WRITTEN", "UNIT_FILES", "LINKS_TO_K3S", "DIRECTORIES_IF_EMPTY")


def places() -> Iterator[str]:
    """Yield the paths in the internal variables of the roles, with `v1` for the parts that differ."""
    for path in sorted(ROLES.glob("*/vars/main.yml")):
        known = yaml.safe_load(path.read_text()) or {}

        def resolved(text: str, known: dict[str, object] = known) -> str:
            return PLACEHOLDER.sub(
                lambda match: resolved(str(known[match[1]])) if match[1] in known else "v1", text
            )

        texts = (resolved(value) for value in known.values() if isinstance(value, str))
        yield from (text for text in texts if text.startswith("/") and " " not in text)


@pytest.mark.parametrize("place", sorted(set(places())))
def test_place_of_a_role_is_on_the_page(place: str) -> None:
    below = [path for change in CHANGES for path in change.paths if path.startswith(f"{place}/")]
    assert below or any(change.covers(place) for change in CHANGES)


@pytest.mark.parametrize("path", [path for name in LISTS for path in getattr(k3s_reset, name)])
def test_path_that_reset_removes_is_on_the_page_and_does_not_stay(path: str) -> None:
    (change,) = (change for change in CHANGES if path in change.paths)
    assert not change.stays

# SPDX-License-Identifier: Apache-2.0
"""The page of changes names every place on a board that a role has in its variables."""

import pytest

from tests.docs import CHECKOUT
from tools.docs.changes import changes
from tools.docs.sources import pattern, variables

ROLES = CHECKOUT / "roles"
PAGE = [change for section in changes(ROLES).values() for change in section]
PLACES = {
    f"{role.name}: {name}": place
    for role in sorted(ROLES.iterdir())
    for name, value in variables(role).items()
    if isinstance(value, str) and (place := pattern(role, name)).startswith("/") and " " not in place
}


@pytest.mark.parametrize("name", PLACES)
def test_place_of_a_role_is_on_the_page(name: str) -> None:
    place = PLACES[name].replace("*", "v1")
    below = [path for change in PAGE for path in change.paths if path.startswith(f"{place}/")]
    assert below or any(change.covers(place) for change in PAGE), PLACES[name]

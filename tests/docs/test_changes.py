# SPDX-License-Identifier: Apache-2.0
"""The page of changes names every place on a board that a role writes to or that reset.yml removes."""

import re
from collections.abc import Iterator

import pytest
import yaml
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import jetson_places
from ansible_collections.jetson_k3s.cluster.plugins.modules import k3s_reset

from tests.docs import CHECKOUT
from tests.docs.changes import PAGE, changes
from tools.docs import places as table

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


# Modules that write to the path of an argument, and its name.
WRITERS = {"copy": "dest", "template": "dest", "file": "path", "lineinfile": "path", "blockinfile": "path"}
WRITERS |= {"get_url": "dest", "unarchive": "dest", "replace": "path", "docker_daemon_config": "path"}


def destinations() -> Iterator[str]:
    """Yield the paths that tasks and constants of modules write to, as far as they are no templates."""
    for path in sorted(ROLES.glob("*/tasks/*.yml")) + sorted(ROLES.glob("*/handlers/*.yml")):
        for task in tasks(yaml.safe_load(path.read_text()) or []):
            for module, argument in WRITERS.items():
                given = next((task[key] for key in task if key.rpartition(".")[2] == module), {})
                text = str(given.get(argument, "")) if isinstance(given, dict) else ""
                yield from [text.partition("{{")[0].rstrip("/")] if text.startswith("/") else []
    for change in CHANGES:
        yield from (one.partition("*")[0].rstrip("/") for one in change.paths)
    yield from places()


def tasks(entries: list[dict[str, object]]) -> Iterator[dict[str, object]]:
    """Yield all tasks, also those of blocks."""
    for entry in entries:
        yield entry
        for part in ("block", "rescue", "always"):
            yield from tasks(entry.get(part, []))  # type: ignore[arg-type]


# Not written by a role of site.yml: read only, or the parent of a place.
READ = {"/usr/local/jtop", "/usr/bin/nvidia-container-runtime", "/var/lib"}
KNOWN = tuple(place.path for place in jetson_places.PLACES)


@pytest.mark.parametrize("destination", sorted(set(destinations())))
def test_destination_is_in_a_directory_that_preflight_knows(destination: str) -> None:
    near = [one for one in KNOWN if one != "/etc" and f"{destination}/".startswith(f"{one}/")]
    # Of /etc only these two files, and of /usr nothing but packages.
    direct = destination in ("/etc/hostname", "/etc/hosts")
    assert direct or [one for one in near if one != "/usr"] or destination in READ, "jetson_places.py"


@pytest.mark.parametrize("place", jetson_places.PLACES, ids=lambda place: place.path)
def test_place_names_roles_that_there_are(place: jetson_places.Place) -> None:
    assert all((ROLES / role).is_dir() for role in place.roles)
    assert list(place.roles) == sorted(place.roles)


def test_the_page_has_the_directories_of_the_list() -> None:
    page = PAGE.read_text()
    assert page == table.written(page), "python -m tools.docs.places"

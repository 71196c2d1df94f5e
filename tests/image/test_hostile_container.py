# SPDX-License-Identifier: Apache-2.0
"""The image's own plugin prepares the files of a memory limit, and a container that mounts them attacks."""

from collections.abc import Callable

import pytest

from tests.acceptance import hostile_container
from tests.image.conftest import Loaded
from tools.process import run

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]


def test_a_container_gets_no_door_by_the_files_of_its_limit(load: Callable[[str, bool], Loaded]) -> None:
    def here(*command: str, check: bool = True) -> str:
        return run(list(command), check=check).stdout.strip()

    assert hostile_container.successes(here, load("amd64", False).name) == []

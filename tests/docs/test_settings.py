# SPDX-License-Identifier: Apache-2.0
"""Every setting is in docs/settings.md, and in `ansible-doc -t role` of each role that reads it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import CHECKOUT
from tools.docs import settings

# Jinja reads regular expressions in templates as Ansible does.
pytestmark = pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")


@pytest.mark.parametrize("path", settings.written(), ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_descriptions_of_settings_are_current(path: Path) -> None:
    assert path.read_text() == settings.written()[path], "python -m tools.docs.settings"


def test_settings_that_a_role_reads_are_found_in_expressions_attributes_and_lists() -> None:
    assert {"jetson_k3s_confirm", "jetson_k3s_timeout"} <= settings.copies("k3s").keys()
    assert "k3s_version" in settings.copies("k3s_upgrade")  # hostvars[...].k3s_version
    assert settings.names_in("a.b and c in d['e'] | default(f)", template=False) >= {
        "a",
        "b",
        "c",
        "d",
        "e",
        "f",
    }
    assert settings.names_in("{{ a }} and b", template=True) == {"a"}


def test_no_setting_is_described_twice() -> None:
    assert {name: role for name, (role, _) in settings.settings().items() if name.startswith(f"{role}_")}
    # A name tells its role.
    others = {
        name: role
        for name, (role, _) in settings.settings().items()
        if not name.startswith((f"{role}_", settings.SHARED))
    }
    assert others == {}


def test_ansible_doc_shows_a_role_with_the_settings_of_others() -> None:
    program = Path(sys.executable).with_name("ansible-doc")
    shown = subprocess.run(
        [program, "--type=role", "--json", "jetson_k3s.cluster.k3s_reset"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    entries = json.loads(shown.stdout)["jetson_k3s.cluster.k3s_reset"]["entry_points"]
    options = {name for entry in entries.values() for name in entry["options"]}
    assert {"jetson_k3s_confirm", "k3s_reset_cluster"} <= options

# SPDX-License-Identifier: Apache-2.0
"""Every setting is in docs/settings.md, and in `ansible-doc -t role` of each role that reads it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

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


def inline_defaults() -> Iterator[tuple[Path, str, Any]]:
    """Each `setting | default(constant)` of roles and playbooks."""
    paths = [*CHECKOUT.glob("roles/*/*/*.yml"), *CHECKOUT.glob("roles/*/templates/*")]
    for path in sorted([*paths, *CHECKOUT.glob("playbooks/**/*.yml")]):
        if path.suffix == ".yml":
            found = list(settings.texts(yaml.safe_load(path.read_text())))
        else:
            found = [(path.read_text(), False)]
        for text, expression in found:
            for name, value in defaults_in(text if "{{" in text or not expression else f"{{{{ {text} }}}}"):
                yield path, name, value


def defaults_in(template: str) -> Iterator[tuple[str, Any]]:
    try:
        tree = jinja2.Environment(autoescape=True).parse(template)
    except jinja2.TemplateSyntaxError:  # a text with braces that is no template
        return
    for node in tree.find_all(jinja2.nodes.Filter):
        if node.name in ("default", "d") and isinstance(node.node, jinja2.nodes.Name) and node.args:
            with suppress(jinja2.nodes.Impossible):
                yield node.node.name, node.args[0].as_const()


def test_default_in_an_expression_is_that_of_the_setting() -> None:
    """Plays that do not have the role of a setting repeat its default."""
    known: dict[str, Any] = {}
    for name, (role, _) in settings.settings().items():
        if text := settings.default_of(role, name):
            known[name] = yaml.safe_load(text)
    seen = [one for one in inline_defaults() if one[1] in settings.settings()]
    assert len(seen) > 50
    different = [
        f"{path.relative_to(CHECKOUT)}: {name} | default({value!r})"
        for path, name, value in seen
        if value != known.setdefault(name, value)
    ]
    assert different == []

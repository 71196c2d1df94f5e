# SPDX-License-Identifier: Apache-2.0
"""The examples for CI systems fit those systems' schemas and call what there is."""

import re
import sys
from pathlib import Path

import pytest

from tools.cache import CHECKOUT
from tools.process import run

EXAMPLES = CHECKOUT / "docs" / "ci"
SCHEMAS = {
    "github-actions.yml": ("--builtin-schema=vendor.github-workflows",),
    "gitlab-ci.yml": ("--builtin-schema=vendor.gitlab-ci", "--data-transform=gitlab-ci"),
}


def check(path: Path, *schema: str) -> None:
    """Compare a file with a schema; raises ToolError with what does not fit."""
    run([Path(sys.executable).with_name("check-jsonschema"), *schema, path])


def test_every_example_has_a_schema() -> None:
    assert {path.name for path in EXAMPLES.iterdir()} == set(SCHEMAS)


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_example_fits_its_schema(name: str) -> None:
    check(EXAMPLES / name, *SCHEMAS[name])


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_example_calls_what_there_is(name: str) -> None:
    text = (EXAMPLES / name).read_text()
    called = set(re.findall(r"playbooks/\S+\.(?:py|yml)", text))
    assert {"playbooks/hil.py", "playbooks/reset.yml"} == called
    assert all((CHECKOUT / path).exists() for path in called)
    options = run([sys.executable, CHECKOUT / "playbooks/hil.py", "--help"]).stdout
    command = text.partition("hil.py")[2].partition("\n\n")[0].partition("\n      #")[0]
    for option in re.findall(r"--[a-z]+", command.partition("- name")[0].partition("after_script")[0]):
        assert option in options

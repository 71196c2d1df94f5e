# SPDX-License-Identifier: Apache-2.0
"""Files for CI systems fit those systems' schemas, and the examples test the commit that they are run for."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.cache import CHECKOUT
from tools.process import run

EXAMPLES = CHECKOUT / "docs" / "ci"
GITHUB = ("--builtin-schema=vendor.github-workflows",)
SCHEMAS = {
    "github-actions.yml": GITHUB,
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


def test_the_projects_own_workflows_fit_their_schema() -> None:
    check(CHECKOUT / ".github/workflows/tests.yml", *GITHUB)
    check(CHECKOUT / ".github/workflows/publish.yml", *GITHUB)


def commands(example: dict[str, Any]) -> list[str]:
    """The commands of an example's job, without those that only one of the two systems needs."""
    (job,) = example["jobs"].values() if "jobs" in example else [example["verify-boards"]]
    lines = job.get("script", []) + job.get("after_script", [])
    for step in job.get("steps", []):
        lines += step.get("run", "").replace("\\\n", " ").splitlines()
    return [" ".join(line.split()) for line in lines if "reports &&" not in line]


def test_both_examples_test_the_commit_in_the_same_way() -> None:
    both = [commands(yaml.safe_load((EXAMPLES / name).read_text())) for name in SCHEMAS]
    assert both[0] == both[1]
    assert [re.findall(r"make .*|playbooks/\S+\.(?:py|yml)", command) for command in both[0]] == [
        ["make image"],
        ["playbooks/bundle.yml"],
        ["playbooks/hil.py"],
        ["playbooks/reset.yml"],
    ]

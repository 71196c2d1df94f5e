# SPDX-License-Identifier: Apache-2.0
"""Names and formats of release 0.1.0 that a cluster of that release uses, in its own files."""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml

from tests.reports import samples
from tests.worktree import RELEASE_0_1_0, file_of, files_of, skip_without
from tools.cache import CHECKOUT
from tools.docs import settings

Data = dict[str, Any]
REMOVED = CHECKOUT / "roles/preflight/vars/main/removed_variables.yml"
DEPLOY = "plugin/deploy/"


@pytest.fixture(autouse=True)
def _release() -> None:
    skip_without(RELEASE_0_1_0)


def settings_of_the_release() -> Iterator[str]:
    """Give the variables that the roles of 0.1.0 describe."""
    for path in files_of(RELEASE_0_1_0, "roles"):
        if path.endswith("/meta/argument_specs.yml"):
            for entry in yaml.safe_load(file_of(RELEASE_0_1_0, path))["argument_specs"].values():
                yield from (name for name in entry.get("options", {}) if not name.startswith("__"))


def test_settings_are_read_or_refused_with_their_successor() -> None:
    before = set(settings_of_the_release())
    assert len(before) > 40
    removed = yaml.safe_load(REMOVED.read_text())["__preflight_removed_variables"]
    assert before - settings.settings().keys() - removed.keys() == set()


def test_playbooks_are_there() -> None:
    before = {
        path
        for path in files_of(RELEASE_0_1_0, "playbooks")
        if re.fullmatch(r"playbooks/\w+\.(yml|py)", path)
    }
    assert len(before) > 15
    assert {path for path in before if not (CHECKOUT / path).exists()} == set()


@pytest.mark.parametrize("overlay", ["agent", "base", "dra"])
def test_selectors_and_names_of_plain_manifests_stay(overlay: str) -> None:
    """`kubectl apply` changes an installed DaemonSet: its selector is immutable."""
    path = f"{DEPLOY}{overlay}/daemonset.yaml"
    before, now = (
        yaml.safe_load(text) for text in (file_of(RELEASE_0_1_0, path), (CHECKOUT / path).read_text())
    )
    assert now["metadata"] == before["metadata"]
    assert now["spec"].get("selector") == before["spec"].get("selector")


def test_values_of_the_chart_are_there() -> None:
    def names(values: Data, prefix: str = "") -> Iterator[str]:
        for name, value in values.items():
            yield prefix + name
            if isinstance(value, dict):
                yield from names(value, f"{prefix}{name}.")

    path = f"{DEPLOY}chart/values.yaml"
    before, now = (
        yaml.safe_load(text) for text in (file_of(RELEASE_0_1_0, path), (CHECKOUT / path).read_text())
    )
    assert set(names(before)) - set(names(now)) == set()


def test_its_readers_read_reports() -> None:
    schema = json.loads(file_of(RELEASE_0_1_0, "roles/gpu_report/files/verify-report.schema.json"))
    reader = jsonschema.Draft202012Validator(schema)
    for make in (samples.passed, samples.failed, samples.error, samples.hostile):
        assert [error.message for error in reader.iter_errors(make("a"))] == []

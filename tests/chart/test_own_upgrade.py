# SPDX-License-Identifier: Apache-2.0
"""A real API server takes chart and manifests of release 0.1.0, then these, then those of 0.1.0 again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.conftest import OTHER_RELEASE, RELEASE, Helm, Values, apply, found
from tests.chart.test_chart import CHOICES, INSTANCE, NAME, OVERLAYS
from tests.docs import commands, markdown
from tests.lab.api_server import ApiServer
from tests.worktree import RELEASE_0_1_0, skip_without, worktree
from tools.cache import CHECKOUT
from tools.process import ToolError, run

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

DIRECTORY = Path("plugin/deploy")
EACH: dict[str, Values] = OVERLAYS | {name: choice.values for name, choice in CHOICES.items()}


@pytest.fixture(scope="module")
def release() -> Iterator[Path]:
    """A checkout of 0.1.0."""
    skip_without(RELEASE_0_1_0)
    with worktree(RELEASE_0_1_0) as tree:
        yield tree


@pytest.fixture
def before(installed: Helm, release: Path) -> Helm:
    """The chart of 0.1.0."""
    return replace(installed, chart=release / DIRECTORY / "chart")


def known(values: Any, schema: dict[str, Any]) -> Any:
    """The values that a chart with this schema takes."""
    if not isinstance(values, dict) or "properties" not in schema:
        return values
    entries = {key: entry for key, entry in schema["properties"].items() if key in values}
    taken = (key for key, entry in entries.items() if values[key] in entry.get("enum", [values[key]]))
    return {key: known(values[key], entries[key]) for key in taken}


@pytest.mark.parametrize("name", EACH)
def test_helm_upgrades_the_release_and_rolls_it_back(
    installed: Helm, before: Helm, server: ApiServer, name: str
) -> None:
    schema = json.loads((before.chart / "values.schema.json").read_text())
    apply(before, known(EACH[name], schema))
    first = found(server, "daemonsets")
    assert first
    apply(installed, EACH[name])
    upgraded = found(server, "daemonsets")
    for program in first:
        one = upgraded[program]
        # It is the same object, so its pods are replaced one by one.
        assert one["metadata"]["uid"] == first[program]["metadata"]["uid"]
        assert one["spec"]["selector"] == {"matchLabels": {NAME: program}}
        assert one["spec"]["template"]["metadata"]["labels"] == {NAME: program, INSTANCE: RELEASE}
    apply(installed, EACH[name])
    rolled_back = installed("rollback", RELEASE, "1", "--namespace=kube-system")
    assert rolled_back.returncode == 0, rolled_back.stderr
    assert {key: one["spec"] for key, one in found(server, "daemonsets").items()} == {
        key: one["spec"] for key, one in first.items()
    }
    apply(installed, EACH[name])


def typed(installed: Helm, server: ApiServer, *starts: str) -> None:
    """Run the handbook's commands that start so, in this order."""
    page = markdown.read(CHECKOUT / "docs/upgrade-jetson-k3s.md")
    places = (str(installed.program.parent), str(server.program.parent), os.environ["PATH"])
    more = {"PATH": ":".join(places), "KUBECONFIG": str(server.kubeconfig), "HOME": str(installed.home)}
    for start in starts:
        (command,) = (text for text in commands.of(page) if text.startswith(start))
        run(["bash", "-o", "pipefail", "-c", command], env=os.environ | more, cwd=CHECKOUT)


def test_commands_of_the_handbook_upgrade_and_roll_back(
    installed: Helm, before: Helm, server: ApiServer
) -> None:
    def renewed() -> tuple[bool, bool]:
        template = found(server, "daemonsets")["tegra-device-plugin"]["spec"]["template"]
        port = template["spec"]["containers"][0]["ports"][0]
        return INSTANCE in template["metadata"]["labels"], "hostPort" in port

    apply(before, {"metricsOnHost": True})
    assert renewed() == (False, True)
    typed(installed, server, "helm upgrade")
    assert renewed() == (True, True)
    typed(installed, server, "helm rollback")
    assert renewed() == (False, True)


def test_daemonset_that_is_rendered_without_the_cluster_is_deleted_before(
    installed: Helm, before: Helm, server: ApiServer
) -> None:
    def applied(helm: Helm) -> None:
        server.kubectl("apply", "--filename=-", stdin=yaml.safe_dump_all(helm.template()))

    applied(before)
    try:
        with pytest.raises(ToolError, match="field is immutable"):
            applied(installed)
        typed(installed, server, "kubectl --namespace kube-system delete", "helm template")
        spec = found(server, "daemonsets")["tegra-device-plugin"]["spec"]
        assert INSTANCE in spec["selector"]["matchLabels"]
    finally:
        server.kubectl("delete", "daemonset", "tegra-device-plugin", "--namespace=kube-system")


def test_release_with_another_name_keeps_its_objects_by_fullname_override(
    installed: Helm, before: Helm, server: ApiServer
) -> None:
    old, new = (replace(helm, release=OTHER_RELEASE) for helm in (before, installed))
    apply(old, {})
    uid = found(server, "daemonsets")["tegra-device-plugin"]["metadata"]["uid"]
    apply(new, {"fullnameOverride": "tegra-device-plugin"})
    assert found(server, "daemonsets")["tegra-device-plugin"]["metadata"]["uid"] == uid
    apply(new, {"fullnameOverride": ""})  # {} would be the values before
    assert found(server, "daemonsets").keys() == {"thor-tegra-device-plugin"}


@pytest.mark.parametrize("overlay", sorted(OVERLAYS))
def test_kubectl_applies_the_manifests_over_those_of_the_release(
    server: ApiServer, release: Path, overlay: str
) -> None:
    try:
        uids = set()
        own = CHECKOUT / DIRECTORY / overlay
        there = release / DIRECTORY / overlay
        former = there if there.is_dir() else release / DIRECTORY / "base"
        for directory in (former, own, former, own):
            server.kubectl("apply", "--kustomize", directory)
            uids |= {one["metadata"]["uid"] for one in found(server, "daemonsets").values()}
        assert len(uids) == len(found(server, "daemonsets"))
    finally:
        server.kubectl("delete", "--ignore-not-found", "--kustomize", CHECKOUT / DIRECTORY / overlay)

# SPDX-License-Identifier: Apache-2.0
"""Targets and rules for Prometheus, and the files on the hosts of an owner who has his own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import monitoring as monitoring_module

from tests.observability import promql
from tests.unit.roles.places import ROLES
from tests.unit.roles.playing import Run, play_text

PLAYBOOK = """\
- hosts: monitoring
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.monitoring}
"""


NAMES = yaml.safe_load((ROLES / "monitoring/vars/main.yml").read_text())["__monitoring_names"]


def targets_of(**board: Any) -> list[dict[str, Any]]:
    """What role monitoring has Prometheus scrape of a board."""
    return monitoring_module.targets([board], NAMES)


def plugin_of(node: str, address: str) -> dict[str, Any]:
    labels = {"job": "tegra-device-plugin", "node": node, "instance": node}
    return {"targets": [f"{address}:9400"], "labels": labels}


@pytest.mark.parametrize(
    ("variables", "address"),
    [
        ({}, "Jetson-1"),
        ({"ansible_host": "10.0.0.1"}, "10.0.0.1"),
        ({"ansible_host": "10.0.0.1", "jetson_k3s_address": "192.168.1.11"}, "192.168.1.11"),
        ({"ansible_host": "fd00::1"}, "[fd00::1]"),
    ],
)
def test_board_is_asked_at_its_address_and_named_as_its_node(variables: dict[str, str], address: str) -> None:
    assert targets_of(inventory_hostname="Jetson-1", **variables) == [plugin_of("jetson-1", address)]


@pytest.mark.parametrize(("agent", "ports"), [(True, [9400, 9401]), ("false", [9400])])
def test_node_agent_is_a_target_where_there_is_one(agent: object, ports: list[int]) -> None:
    found = targets_of(inventory_hostname="b", gpu_device_plugin_agent={"enabled": agent})
    assert [target for entry in found for target in entry["targets"]] == [f"b:{port}" for port in ports]


@pytest.mark.parametrize(("taint", "ports"), [("true", [9400, 9402]), (False, [9400])])
def test_throttle_taint_is_a_target_where_there_is_one(taint: object, ports: list[int]) -> None:
    found = targets_of(inventory_hostname="b", gpu_device_plugin_throttle_taint={"enabled": taint})
    assert [target for entry in found for target in entry["targets"]] == [f"b:{port}" for port in ports]


def test_where_gpus_are_allocated_by_claims_the_driver_is_the_target() -> None:
    (entry,) = targets_of(inventory_hostname="b", gpu_device_plugin_api="dra")
    assert (entry["labels"]["job"], entry["targets"]) == ("tegra-dra-driver", ["b:9400"])
    manifest = yaml.safe_load((ROLES.parent / "plugin/deploy/dra/daemonset.yaml").read_text())
    (port,) = manifest["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert (manifest["metadata"]["name"], port["containerPort"]) == monitoring_module.DRIVER


def test_targets_are_what_the_manifests_serve_and_the_alerts_ask_for() -> None:
    served = {}
    for part in ("base", "agent", "dra", "throttle-taint"):
        path = ROLES.parent / f"plugin/deploy/{part}/daemonset.yaml"
        daemonset = yaml.safe_load(path.read_text())
        (container,) = daemonset["spec"]["template"]["spec"]["containers"]
        (port,) = (one["containerPort"] for one in container["ports"] if one["name"] == "metrics")
        served[daemonset["metadata"]["name"]] = port
    plugin, agent = monitoring_module.PLUGIN, monitoring_module.AGENT
    assert dict([plugin, agent, monitoring_module.DRIVER, monitoring_module.TAINT]) == served
    queries = [*promql.alerts(), *promql.dashboard()]
    asked = re.findall(r'\bjob="([^"]+)"', " ".join(query.expression for query in queries))
    assert set(asked) <= served.keys()


@dataclass
class Site:
    """An owner's host, which is this machine and has files already, and an inventory with two boards."""

    root: Path

    def __post_init__(self) -> None:
        for name in DIRECTORIES:
            (self.root / name).mkdir()
            (self.root / name / "owners.yml").touch()

    def play(self, *, fails: bool = False, **settings: Any) -> Run:
        boards = {"a": {"ansible_host": "10.0.0.1"}, "b": {"ansible_host": "10.0.0.2"}}
        groups = {"k3s_cluster": boards, "monitoring": ["localhost"]}
        directories = {f"monitoring_{name}_directory": str(self.root / name) for name in DIRECTORIES}
        given = {"monitoring_reload": ["touch", f"{self.root}/reloaded"], **directories}
        variables = given | {"gpu_device_plugin_metrics_on_host": True} | settings
        return play_text(self.root, PLAYBOOK, groups=groups, variables=variables, fails=fails)

    @property
    def files(self) -> set[str]:
        paths = [*self.root.glob("*/*.*"), *self.root.glob("reloaded")]
        return {str(path.relative_to(self.root)) for path in paths if ".ansible" not in str(path)}


DIRECTORIES = ("rules", "targets", "dashboards")
OWNERS = {f"{name}/owners.yml" for name in DIRECTORIES}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_only_what_has_a_directory_is_written(site: Site) -> None:
    empty: dict[str, Any] = {"monitoring_rules_directory": "", "monitoring_targets_directory": ""}
    # Without targets nobody has to reach a board.
    site.play(**empty, gpu_device_plugin_metrics_on_host=False)
    assert site.files == OWNERS | {"dashboards/jetson-k3s.json"}


NO_DIRECTORY = {f"monitoring_{name}_directory": "" for name in DIRECTORIES}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"monitoring_targets_directory": "/nonexistent/targets"},
            "there is no directory /nonexistent/targets. Make it",
        ),
        ({"monitoring_targets_directory": "targets"}, "targets is relative. Set monitoring_rules_directory"),
        ({"gpu_device_plugin_metrics_on_host": False}, "Prometheus would reach no device plugin"),
        (NO_DIRECTORY, "it is in the group [monitoring], and no directory is given for it."),
    ],
)
def test_what_cannot_work_is_told_and_nothing_is_written(
    site: Site, settings: dict[str, Any], words: str
) -> None:
    run = site.play(fails=True, **settings)
    assert words in run.said
    assert "Nothing was changed." in run.said
    assert site.files == OWNERS


@pytest.mark.acceptance
def test_prometheus_that_is_not_told_is_an_error_and_the_next_run_tells_it(site: Site) -> None:
    run = site.play(fails=True, monitoring_reload=["false"])
    assert "`false` failed" in run.said
    before = site.files
    run = site.play()
    assert "changed=0" in run.stdout
    assert site.files == before | {"reloaded"}


@pytest.mark.acceptance
def test_prometheus_reads_no_rules_that_were_removed(site: Site) -> None:
    site.play()
    (site.root / "reloaded").unlink()
    site.play(jetson_k3s_state="absent")
    assert site.files == OWNERS | {"reloaded"}

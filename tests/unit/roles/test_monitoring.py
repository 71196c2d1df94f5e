# SPDX-License-Identifier: Apache-2.0
"""What Prometheus is told of the boards, and the files on the hosts of an owner who has his own."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.observability import promql
from tests.unit.roles.loading import ROLES, load
from tests.unit.roles.playing import Run, play_text

PLAYBOOK = """\
- hosts: monitoring
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: monitoring}
"""


def plugin_of(node: str, address: str) -> dict[str, Any]:
    """The target of a board's plugin."""
    labels = {"job": "tegra-device-plugin", "node": node, "instance": node}
    return {"targets": [f"{address}:9400"], "labels": labels}


@pytest.mark.parametrize(
    ("variables", "address"),
    [
        ({}, "Jetson-1"),
        ({"ansible_host": "10.0.0.1"}, "10.0.0.1"),
        ({"ansible_host": "10.0.0.1", "monitoring_address": "192.168.1.11"}, "192.168.1.11"),
        ({"ansible_host": "fd00::1"}, "[fd00::1]"),
    ],
)
def test_board_is_asked_at_its_address_and_named_as_its_node(variables: dict[str, str], address: str) -> None:
    targets = load("monitoring/filter_plugins/monitoring.py").targets
    board = {"inventory_hostname": "Jetson-1", **variables}
    assert targets([board]) == [plugin_of("jetson-1", address)]


@pytest.mark.parametrize(("agent", "ports"), [(True, [9400, 9401]), ("false", [9400])])
def test_node_agent_is_a_target_where_there_is_one(agent: object, ports: list[int]) -> None:
    found = load("monitoring/filter_plugins/monitoring.py").targets(
        [{"inventory_hostname": "b", "gpu_device_plugin_agent": agent}]
    )
    assert [target for entry in found for target in entry["targets"]] == [f"b:{port}" for port in ports]


def test_where_gpus_are_given_out_by_claims_the_driver_is_the_target() -> None:
    module = load("monitoring/filter_plugins/monitoring.py")
    (entry,) = module.targets([{"inventory_hostname": "b", "gpu_device_plugin_api": "dra"}])
    assert (entry["labels"]["job"], entry["targets"]) == ("tegra-dra-driver", ["b:9400"])
    manifest = yaml.safe_load((ROLES.parent / "plugin/deploy/dra/daemonset.yaml").read_text())
    (port,) = manifest["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert (manifest["metadata"]["name"], port["containerPort"]) == module.DRIVER


def test_targets_are_what_the_manifests_serve_and_the_alerts_ask_for() -> None:
    served = {}
    for part in ("base", "agent", "dra"):
        path = ROLES.parent / f"plugin/deploy/{part}/daemonset.yaml"
        daemonset = yaml.safe_load(path.read_text())
        (container,) = daemonset["spec"]["template"]["spec"]["containers"]
        (port,) = (one["containerPort"] for one in container["ports"] if one["name"] == "metrics")
        served[daemonset["metadata"]["name"]] = port
    module = load("monitoring/filter_plugins/monitoring.py")
    assert dict([module.PLUGIN, module.AGENT, module.DRIVER]) == served
    queries = [*promql.alerts(), *promql.dashboard()]
    asked = re.findall(r'\bjob="([^"]+)"', " ".join(query.expression for query in queries))
    assert set(asked) <= served.keys()


@dataclass
class Site:
    """An owner's host, which is this machine, and an inventory with two boards."""

    root: Path
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("rules", "targets", "dashboards"):
            (self.root / name).mkdir()
            (self.root / name / "owners.yml").touch()
            self.settings[f"monitoring_{name}_directory"] = str(self.root / name)
        program = self.root / "reload"
        program.write_text(f"#!/bin/sh\necho reloaded >> {self.root}/log\n")
        program.chmod(0o755)
        self.settings["monitoring_reload"] = [str(program)]
        self.settings["gpu_device_plugin_metrics_on_host"] = True

    def play(self, *arguments: str, fails: bool = False, **settings: Any) -> Run:
        """Run the role with these settings."""
        boards = {"a": {"ansible_host": "10.0.0.1"}, "b": {"ansible_host": "10.0.0.2"}}
        groups = {"k3s_cluster": boards, "monitoring": ["localhost"]}
        variables = self.settings | settings
        return play_text(self.root, PLAYBOOK, *arguments, groups=groups, variables=variables, fails=fails)

    def changed(self, *arguments: str, **settings: Any) -> int:
        run = self.play(*arguments, **settings)
        match = re.search(r"changed=(\d+)", run.stdout)
        assert match is not None
        return int(match[1])

    @property
    def files(self) -> set[str]:
        """What is in the owner's directories."""
        return {
            str(path.relative_to(self.root))
            for name in ("rules", "targets", "dashboards")
            for path in (self.root / name).iterdir()
        }

    @property
    def reloads(self) -> int:
        """How often Prometheus was told to read its rules."""
        log = self.root / "log"
        return len(log.read_text().split()) if log.exists() else 0


OWNERS = {f"{name}/owners.yml" for name in ("rules", "targets", "dashboards")}
OURS = {"rules/jetson-k3s.yml", "targets/jetson-k3s.json", "dashboards/jetson-k3s.json"}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_owners_prometheus_and_grafana_get_their_files_once(site: Site) -> None:
    assert site.changed() == 4, "three files, and Prometheus is told"
    assert site.files == OWNERS | OURS
    targets = json.loads((site.root / "targets/jetson-k3s.json").read_text())
    assert targets == [plugin_of("a", "10.0.0.1"), plugin_of("b", "10.0.0.2")]
    assert site.changed() == 0
    assert site.reloads == 2, "a run that was cut off before it may have told nobody"


def test_only_what_has_a_directory_is_written(site: Site) -> None:
    empty = {"monitoring_rules_directory": "", "monitoring_targets_directory": ""}
    # Without targets nobody has to reach a board.
    assert site.changed(**empty, gpu_device_plugin_metrics_on_host=False) == 1
    assert (site.files, site.reloads) == (OWNERS | {"dashboards/jetson-k3s.json"}, 0)


NO_DIRECTORY = {f"monitoring_{name}_directory": "" for name in ("rules", "targets", "dashboards")}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"monitoring_targets_directory": "/nonexistent/targets"},
            "there is no directory /nonexistent/targets. Make it",
        ),
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
    assert (site.files, site.reloads) == (OWNERS, 0)


def test_prometheus_that_is_not_told_is_an_error_and_the_next_run_tells_it(site: Site) -> None:
    run = site.play(fails=True, monitoring_reload=["false"])
    assert "`false` failed" in run.said
    assert site.changed() == 0
    assert site.reloads == 1

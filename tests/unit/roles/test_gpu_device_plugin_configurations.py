# SPDX-License-Identifier: Apache-2.0
"""Several configurations of the device plugin in one cluster: their names, their boards, and what goes."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from ansible_collections.jetson_k3s.cluster.plugins.modules import gpu_configurations as module
from ansible_collections.jetson_k3s.cluster.plugins.modules import k3s_nodes
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    gpu_device_plugin_configurations as planning,
)
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    gpu_device_plugin_manifests as manifests,
)
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    preflight_configurations as preflight,
)

from tests.unit.roles.places import ROLES, Data

TABLES = {
    role: yaml.safe_load((ROLES / role / path).read_text())[name]
    for role, path, name in (
        ("gpu_device_plugin", "vars/main.yml", "__gpu_device_plugin_of_boards"),
        ("preflight", "vars/main/common.yml", "__preflight_of_configurations"),
    )
}
GROUPS = {"all": ["a", "b", "c"], "k3s_cluster": ["a", "b", "c"], "cameras": ["b", "c"], "server": ["a"]}
SLICED = {"version": "v1", "sharing": {"timeSlicing": {"resources": [{"name": "gpu", "replicas": 4}]}}}
UNITS = {"version": "v1", "sharing": {"units": {"memoryTotal": "2Gi"}}}
NAME, CONFIG = "gpu_device_plugin_config_name", "gpu_device_plugin_config"
PLUGIN = "tegra-device-plugin"


def boards(**variables: Data) -> list[planning.Board]:
    """Those of an inventory in which some have variables."""
    hostvars = {host: variables.get(host, {}) for host in GROUPS["all"]}
    return planning.boards_of(TABLES["preflight"], GROUPS, hostvars)


def cluster(settings: str | None, *defaults: str) -> planning.Deployed:
    """A cluster whose default configuration has settings with this hash, and nodes of these boards."""
    label = "jetson-k3s.github.io/device-plugin"
    nodes = [{"board": board, "labels": {label: "true"}} for board in defaults]
    nodes += [{"board": "c", "labels": {label: "units"}}, {"board": "", "labels": {}}]
    daemonsets = {} if settings is None else {PLUGIN: settings}
    return planning.deployed([{"unreachable": True}, {"settings": daemonsets, "nodes": nodes}])


NEW = planning.deployed([])


def named(there: planning.Deployed = NEW, **variables: Data) -> dict[str, list[str]]:
    """The boards by the name of their configuration."""
    return {one["name"]: one["boards"] for one in planning.configurations(boards(**variables), there)}


def test_both_roles_read_the_same_settings_with_their_own_defaults() -> None:
    assert TABLES["gpu_device_plugin"] == TABLES["preflight"]
    defaults = yaml.safe_load((ROLES / "gpu_device_plugin/defaults/main.yml").read_text())
    own = {entry["name"]: entry["default"] for entry in TABLES["preflight"] if entry["name"] in defaults}
    assert own.items() <= defaults.items()
    assert len(own) == 4


def test_one_configuration_keeps_the_plain_names_with_any_settings() -> None:
    same: Data = {CONFIG: UNITS, "nvidia_docker_strict": True}
    assert named(a=same, b=same, c=same) == {"": ["a", "b", "c"]}
    # In the order of the inventory: the text of the ConfigMap, whose hash renews pods, stays as it was.
    assert [*boards(a=same)[0]["config"]] == ["version", "sharing"]
    # As from an inventory in INI.
    text: Data = {CONFIG: str(UNITS), "nvidia_docker_strict": "yes"}
    assert named(a=same, b=text, c=same) == {"": ["a", "b", "c"]}
    # What an agent that is off would do is no difference.
    agent: Data = {"gpu_device_plugin_agent": {"enabled": "false", "mode": "evict"}}
    assert named(a=agent) == {"": ["a", "b", "c"]}


def test_boards_with_other_settings_have_a_configuration_of_their_own() -> None:
    found = named(b={CONFIG: UNITS}, c={CONFIG: SLICED})
    assert found.pop("") == ["a"]
    names = {name.rpartition("-")[0]: hosts for name, hosts in found.items()}
    assert names == {"units": ["b"], "time-slicing": ["c"]}
    assert all(preflight.NAME.fullmatch(name) for name in found)
    # The same in another order of keys, and the same name in each run.
    mixed: Data = {CONFIG: dict(reversed(UNITS.items()))}
    assert named(b=mixed, c={CONFIG: SLICED}).keys() == {"", *found}


def test_a_setting_of_a_later_release_that_is_off_changes_no_name() -> None:
    """The name follows from these contents. This is what the release before `unusedAfter` made it from."""
    (board, *_) = boards(a={"gpu_device_plugin_agent": {"enabled": True}})
    agent = {"enabled": True, "host_pid": False, "mode": "report", "qos_policy": "best-effort"}
    assert json.loads(planning.contents(board))["agent"] == agent
    (board, *_) = boards(a={"gpu_device_plugin_agent": {"enabled": True, "unusedAfter": "10m"}})
    assert json.loads(planning.contents(board))["agent"] == agent | {"unused_after": "10m"}


def test_a_name_is_taken_from_the_inventory_and_from_nvidias_label() -> None:
    label = {"k3s_node_labels": {"nvidia.com/device-plugin.config": "slices"}}
    assert named(b={NAME: "units", CONFIG: UNITS}, c={CONFIG: SLICED, **label}) == {
        "": ["a"], "slices": ["c"], "units": ["b"],
    }  # fmt: skip


def test_default_is_what_the_cluster_has_so_that_other_boards_keep_theirs() -> None:
    two: Data = {"b": {CONFIG: SLICED}, "c": {CONFIG: SLICED}}
    assert named(**two)[""] == ["b", "c"]
    assert named(cluster("", "a", "b", "c"), **two)[""] == ["a"]
    sliced = planning.settings_hash(SLICED)
    assert named(cluster(sliced, "a", "b", "c"), b={CONFIG: SLICED})[""] == ["b"]
    # The default gets other settings, and those of more boards stay as they are.
    assert named(cluster(planning.settings_hash(UNITS), "a"), **two)[""] == ["a"]
    assert named(cluster(None), **two)[""] == ["b", "c"]


def test_each_api_has_its_default() -> None:
    dra = {"gpu_device_plugin_api": "dra"}
    found = planning.configurations(boards(b=dra, c=dra), NEW)
    assert [(one["name"], one["api"], one["boards"]) for one in found] == [
        ("", "device-plugin", ["a"]),
        ("", "dra", ["b", "c"]),
    ]


def test_the_manifests_hash_is_the_one_that_is_compared() -> None:
    template: Data = {"metadata": {"annotations": {}}, "spec": {"containers": []}}
    manifests.with_settings(template, PLUGIN, json.dumps(UNITS, indent=2))
    template["metadata"]["annotations"]["jetson-k3s.github.io/image-id"] = "sha256:ab"
    daemonset = {"metadata": {"name": PLUGIN}, "spec": {"template": template}}
    foreign = {"metadata": {"name": "flannel"}, "spec": {"template": {"metadata": {}}}}
    assert k3s_nodes.settings_of([daemonset, foreign]) == {PLUGIN: planning.settings_hash(UNITS)}


@pytest.mark.parametrize(
    ("variables", "id_", "words"),
    [
        (
            {
                "a": {NAME: "x", CONFIG: UNITS},
                "b": {NAME: "x", CONFIG: SLICED},
                "c": {NAME: "x", CONFIG: SLICED},
            },
            "configuration-differs",
            "2 configurations have the name x: that of a (in the group server); that of b, c (in the group "
            "cameras). They differ in gpu_device_plugin_config",
        ),
        (
            {"a": {NAME: "x"}, "b": {NAME: "x", "nvidia_docker_strict": True}},
            "configuration-differs",
            "They differ in nvidia_docker_strict",
        ),
        ({"a": {NAME: "x" * 64}}, "configuration-name", f"a: {NAME} is '{'x' * 64}'"),
        ({"a": {NAME: "Big"}}, "configuration-name", f"a: {NAME} is 'Big'"),
        ({"a": {NAME: "true"}}, "configuration-name", f"a: {NAME} is 'true'"),
        (
            {"a": {"k3s_node_labels": {"nvidia.com/device-plugin.config": "a.b"}}},
            "configuration-name",
            "a: nvidia.com/device-plugin.config in k3s_node_labels is 'a.b'",
        ),
        (
            {"a": {NAME: "x", "k3s_node_labels": {"nvidia.com/device-plugin.config": "y"}}},
            "configuration-two-names",
            f"a: {NAME} is x, and nvidia.com/device-plugin.config in k3s_node_labels is y",
        ),
        (
            {"a": {CONFIG: {"sharing": {"units": {"memoryTotal": "0%"}}}}},
            "configuration-memory-total",
            "a: memoryTotal in gpu_device_plugin_config is '0%'",
        ),
        (
            {"a": {CONFIG: {"sharing": {"dra": {"mode": "capacity", "memoryTotal": "7,5%"}}}}},
            "configuration-memory-total",
            "is '7,5%'",
        ),
        ({"a": {CONFIG: "{{ missing }}"}}, "configuration-unreadable", f"a: {CONFIG}: no value"),
        ({"a": {CONFIG: ["list"]}}, "configuration-unreadable", f"a: {CONFIG}: no value"),
    ],
)
def test_names_that_cannot_be_are_refused(variables: Any, id_: str, words: str) -> None:
    (finding,) = preflight.findings(boards(**variables), GROUPS)
    assert finding["id"] == id_
    assert words in finding["found"]


def test_good_names_are_none_of_these() -> None:
    same = {NAME: "units", CONFIG: UNITS}
    assert preflight.findings(boards(a=same, b=same, c={CONFIG: SLICED}), GROUPS) == []


def daemonset(name: str, value: str, *, labels: Data | None = None) -> Data:
    spec = {"nodeSelector": {"jetson-k3s.github.io/device-plugin": value}}
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": {"template": {"spec": spec}}}


def test_configuration_goes_when_neither_the_inventory_nor_a_node_has_it() -> None:
    ours = {module.CONFIGURATION: "x"}
    there = [
        daemonset(PLUGIN, "true"),
        daemonset(f"{PLUGIN}-kept", "kept", labels=ours),
        daemonset(f"{PLUGIN}-off", "off", labels=ours),  # of a board that this run has not reached
        daemonset(f"{PLUGIN}-old", "old", labels=ours),
        daemonset(f"{PLUGIN}-of-a-chart", "other"),
    ]
    nodes: list[Data] = [
        {"metadata": {"labels": {"jetson-k3s.github.io/device-plugin": "off"}}},
        {"metadata": {}},
    ]
    gone = module.surplus([f"{PLUGIN}-kept"], {}, there, nodes)
    names = [PLUGIN, f"{PLUGIN}-old"]
    assert gone == [f"{kind}/{name}" for name in names for kind in ("daemonset.apps", "configmap")]


def test_objects_of_an_api_stay_while_a_node_has_its_label() -> None:
    unused = {"jetson-k3s.github.io/dra": ["deviceclass.resource.k8s.io/a"]}
    labelled: list[Data] = [{"metadata": {"labels": {"jetson-k3s.github.io/dra": "claims"}}}]
    assert module.surplus([], unused, [], labelled) == []
    assert module.surplus([], unused, [], [{"metadata": {}}]) == ["deviceclass.resource.k8s.io/a"]

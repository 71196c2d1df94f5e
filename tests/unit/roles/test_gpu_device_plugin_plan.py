# SPDX-License-Identifier: Apache-2.0
"""What role gpu_device_plugin decides: the source of the image, what is refused, what goes, what comes."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
import yaml
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import gpu_device_plugin as planning
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import gpu_device_plugin_answers as answers
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    gpu_device_plugin_configurations as configurations,
)
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import k3s, plugin_image
from tegra_device_plugin.board.detection import Detection, Gpu
from tegra_device_plugin.board.identity import Board
from tegra_device_plugin.board.labels import node_labels
from tegra_device_plugin.telemetry.jtop import Telemetry
from tegra_device_plugin.telemetry.jtop_facts import by_label, compare
from tegra_device_plugin.throttling import taints

from tests.unit.roles.places import ROLES, Data

ARCHIVE, NAME = "tegra-device-plugin-arm64.tar.gz", "tegra-device-plugin:9"
BUNDLE: Data = {
    "indexed": True,
    "versions": {"k3s_version": "v1.36.5+k3s1", "plugin_image": NAME},
    "files": {ARCHIVE: {"images": {NAME: "sha256:ab"}, "contents": {NAME: "content:ab"}}},
}
BUILT: Data = {"indexed": False, "versions": {"k3s_version": "v1.36.5+k3s1"}, "files": BUNDLE["files"]}
NOTHING: Data = BUILT | {"files": {}}
REGISTRY = f"registry.example:5000/plugin:9@sha256:{'0' * 64}"
JETSON: Data = {
    "arch": "aarch64",
    "kernel": "5.15.148-tegra",
    "python": "3.10.12",
    "soc": "tegra234",
    "docker": {"running": True, "images": {}, "contents": {}, "kept": {}, "stand_by_settings": None},
}
SETTINGS: Data = {
    "api": "device-plugin",
    "image": "",
    "config": {},
    "agent": {"enabled": False},
    "throttle_taint": {"enabled": False},
    "metrics_on_host": False,
    "jtop": False,
    "container_runtime": "docker",
    "credentials": False,
    "strict": False,
    "node": "jetson-1",
    "k3s_version": "v1.36.5+k3s1",
}
DEPLOY = ROLES.parent / "plugin/deploy"
SOURCES: Data = {
    "plugin": (DEPLOY / "base/daemonset.yaml").read_text(),
    "agent": (DEPLOY / "agent/daemonset.yaml").read_text(),
    "agent_rights": (DEPLOY / "agent/rights.json").read_text(),
    "driver": [(DEPLOY / "dra" / name).read_text() for name in ("cluster.yaml", "daemonset.yaml")],
    "throttle_taint": [
        (DEPLOY / "throttle-taint" / name).read_text() for name in ("cluster.yaml", "daemonset.yaml")
    ],
}
UNITS = {"version": "v1", "sharing": {"units": {"contextOverhead": "400Mi"}}}
TMPFILES = "/etc/tmpfiles.d/plugin.conf"
EVICT = {"enabled": True, "mode": "evict"}


def board_of(host: str, **settings: Any) -> configurations.Board:
    """A board of the inventory, by its settings."""
    given = SETTINGS | settings
    agent = configurations.agent_of(given["agent"])
    said: Data = {key: given[key] for key in ("api", "config", "strict")}
    return {"host": host, "name": "", "label": "", "unread": [], "agent": agent, **said}  # type: ignore[typeddict-item]


def plan(
    jetson: Data | None = None,
    bundle: Data = BUNDLE,
    boards: list[configurations.Board] | None = None,
    **settings: Any,
) -> planning.Plan:
    """What is deployed on jetson-1, which is alone unless other boards are given."""
    given: Any = SETTINGS | settings  # as from the inventory
    boards = boards or [board_of("jetson-1", **given)]
    found = configurations.configurations(boards, configurations.deployed([]))
    inventory: planning.Inventory = {"configurations": found, "sources": SOURCES, "tmpfiles": TMPFILES}
    return planning.plan(JETSON | (jetson or {}), bundle, given, "jetson-1", inventory)


@pytest.mark.parametrize(
    ("image", "bundle", "expected"),
    [
        ("", BUNDLE, ("bundle", NAME, "sha256:ab")),
        # A bundle made by hand names no image.
        ("", BUNDLE | {"versions": {}}, ("bundle", NAME, "sha256:ab")),
        ("", BUILT, ("built", NAME, "sha256:ab")),
        # Check mode, before anything was built.
        ("", NOTHING, ("built", "tegra-device-plugin", "")),
        (REGISTRY, BUNDLE, ("registry", REGISTRY, f"sha256:{'0' * 64}")),
        (REGISTRY, NOTHING, ("registry", REGISTRY, f"sha256:{'0' * 64}")),
    ],
)
def test_the_image_comes_from_the_registry_the_bundle_or_this_computer(
    image: str, bundle: Data, expected: tuple[str, str, str]
) -> None:
    found = plan(bundle=bundle, image=image)["image"]
    assert (found["source"], found["name"], found["identity"]) == expected
    assert found["archive"] == ARCHIVE


@pytest.mark.parametrize(
    ("image", "bundle", "archs", "expected"),
    [
        ("", NOTHING, ["aarch64", "aarch64", "x86_64"], ["amd64", "arm64"]),
        ("", BUILT, ["aarch64", "x86_64"], ["amd64"]),
        ("", BUILT, ["aarch64"], []),
        ("", BUNDLE | {"files": {}}, ["aarch64"], []),  # preflight refuses such a bundle
        (REGISTRY, NOTHING, ["aarch64"], []),
    ],
)
def test_images_are_built_where_nothing_else_has_them(
    image: str, bundle: Data, archs: list[str], expected: list[str]
) -> None:
    assert plugin_image.unbuilt(image, bundle, archs) == expected


def board(jetpack: str | None, docker: bool = True, arch: str = "aarch64", runtime: str = "docker") -> Data:
    facts = {"arch": arch, "jetpack": jetpack, "docker": {"running": docker}}
    return {"ansible_facts": {"jetson": facts}, "k3s_container_runtime": runtime}


@pytest.mark.parametrize(
    ("boards", "expected"),
    [
        ({"a": board("5.1.3"), "b": board("6.2"), "c": board("7.0")}, {"arm64": "b"}),
        ({"a": board("6.2", docker=False), "b": board("6.2")}, {"arm64": "b"}),
        ({"a": board("6.2", docker=False)}, {"arm64": "a"}),  # site.yml installs Docker first
        ({"a": board("6.2", docker=False, runtime="containerd")}, {}),
        ({"a": board("6.2", runtime="containerd")}, {"arm64": "a"}),
        ({"a": board(None), "b": board("a\nb")}, {"arm64": "b"}),
        ({"a": board("6.2", arch="x86_64"), "b": {}}, {}),
    ],
)
def test_board_that_builds_an_image_can_do_it(boards: Data, expected: dict[str, str]) -> None:
    assert plugin_image.builders(["arm64"], boards, boards) == expected


@pytest.mark.parametrize(
    ("jetson", "settings", "reason"),
    [
        ({}, {}, None),
        ({}, {"agent": {"enabled": True}, "api": "dra"}, "works with the device plugin only"),
        ({}, {"agent": {"enabled": "true"}, "api": "dra"}, "works with the device plugin only"),
        ({}, {"agent": {"enabled": "false"}, "api": "dra"}, None),
        ({}, {"agent": EVICT, "config": UNITS}, None),
        ({"kernel": "4.9.337-tegra"}, {"agent": EVICT, "config": UNITS}, "this board has 4.9.337-tegra"),
        ({"kernel": "4.9.337-tegra"}, {"agent": {"enabled": True}}, None),
        ({}, {"agent": EVICT}, "needs contextOverhead"),
        (
            {},
            {"agent": EVICT, "config": {"sharing": {"units": {"contextOverhead": "0Mi"}}}},
            "needs contextOv",
        ),
        ({"soc": "tegra264"}, {"agent": {"enabled": True}}, "is a Thor"),
        ({"soc": "tegra264"}, {"agent": {"enabled": True, "hostPID": True}}, None),
        ({"soc": "tegra264"}, {"agent": EVICT, "config": UNITS}, None),
        ({}, {"agent": {"enabled": True, "unusedAfter": "10"}}, "such as 90s, 10m or 1h"),
        ({}, {"agent": {"enabled": True, "unusedAfter": "10m"}}, None),
        ({}, {"agent": {"enabled": False, "unusedAfter": "10"}}, None),
        (
            {},
            {"throttle_taint": {"enabled": True, "removeAfter": "10"}},
            "throttle_taint.removeAfter is '10'",
        ),
        ({}, {"throttle_taint": {"enabled": True, "removeAfter": "30m"}}, None),
        ({}, {"throttle_taint": {"enabled": False, "removeAfter": "10"}}, None),
        ({}, {"agent": {"enabled": True, "qosPolicy": "burst-share"}}, "none is configured here"),
        ({}, {"agent": {"enabled": True, "qosPolicy": "per-pod"}}, "none is configured here"),
        ({}, {"agent": {"enabled": True, "qosPolicy": "burst-share"}, "config": UNITS}, None),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    jetson: Data, settings: Data, reason: str | None
) -> None:
    refused = plan(jetson, **settings)["refused"]
    assert ([reason in one for one in refused] == [True]) if reason else (refused == [])


@pytest.mark.parametrize(
    ("settings", "running", "expected"),
    [
        ({}, True, True),
        ({}, False, True),  # role nvidia_docker starts it
        ({"container_runtime": "containerd"}, True, True),
        ({"container_runtime": "containerd"}, False, False),
        ({"api": "dra"}, True, False),
    ],
)
def test_an_instance_stands_by_where_docker_is(settings: Data, running: bool, expected: bool) -> None:
    docker = JETSON["docker"] | {"running": running}
    assert plan({"docker": docker}, **settings)["stands_by"] is expected


LOADED = {"images": {NAME: "sha256:ab"}, "kept": {ARCHIVE: ["sha256:ab"]}}


@pytest.mark.parametrize(
    ("docker", "settings", "bundle", "expected"),
    [
        (LOADED, {}, BUNDLE, False),
        (LOADED, {}, BUILT, False),
        (LOADED | {"images": {NAME: "sha256:old"}}, {}, BUNDLE, True),
        (LOADED | {"kept": {}}, {}, BUNDLE, True),
        (LOADED, {}, NOTHING, True),
        (LOADED, {"image": REGISTRY}, BUNDLE, True),
        (LOADED, {"container_runtime": "containerd"}, BUNDLE, True),
    ],
)
def test_image_is_loaded_unless_docker_has_and_keeps_it(
    docker: Data, settings: Data, bundle: Data, expected: bool
) -> None:
    found = plan({"docker": JETSON["docker"] | docker}, bundle, **settings)
    assert found["loads"] is expected


def server(label: str, value: str = "true", node: str = "a") -> Data:
    labels = {f"jetson-k3s.github.io/{label}": value}
    return {"daemonsets": ["some"], "nodes": [{"name": node, "board": node, "labels": labels}]}


@pytest.mark.parametrize(
    ("api", "servers", "expected"),
    [
        ("device-plugin", [server("device-plugin")], False),
        ("device-plugin", [server("dra", "claims")], True),
        ("device-plugin", [server("dra", node="b")], False),
        ("dra", [server("device-plugin", "units")], True),
        ("dra", [{"unreachable": True}, server("dra")], False),
        ("dra", [{"failed": True}], True),
        ("dra", [], True),
    ],
)
def test_users_of_the_other_api_are_looked_for_on_a_node_that_has_its_label(
    api: str, servers: list[Data], expected: bool
) -> None:
    nodes = k3s.nodes_by_name(servers).get("a", [])
    assert planning.may_use_other_api(api, servers, nodes) is expected


@pytest.mark.parametrize(
    ("servers", "may_have", "present"),
    [
        ([{"daemonsets": ["svclb", "tegra-device-plugin"]}], False, []),
        (
            [{"daemonsets": ["tegra-device-plugin", "tegra-gpu-agent"]}],
            True,
            ["daemonset.apps/tegra-gpu-agent"],
        ),
        ([{"daemonsets": ["tegra-device-plugin-old"]}], True, []),
        ([{"daemonsets": ["tegra-dra-driver"]}, {"failed": True}], True, []),
        ([{"daemonsets": ["tegra-throttle-taint"]}], True, []),
        # The cluster is silent, or has none yet.
        ([{"unreachable": True}], True, ["daemonset.apps/tegra-gpu-agent"]),
        ([{"daemonsets": []}], True, ["daemonset.apps/tegra-gpu-agent"]),
    ],
)
def test_objects_that_must_go_are_looked_for_where_the_cluster_may_have_some(
    servers: list[Data], may_have: bool, present: list[str]
) -> None:
    assert planning.may_have_surplus(["tegra-device-plugin"], servers) is may_have
    assert planning.present(["daemonset.apps/tegra-gpu-agent"], servers) == present


def unused(**settings: Any) -> set[str]:
    return {one.partition("/")[2] for objects in plan(**settings)["unused"].values() for one in objects}


def test_objects_of_an_api_that_no_board_has_go_and_those_of_unwanted_agents() -> None:
    taint = {"tegra-throttle-taint"}
    assert unused(api="dra") == {"tegra-device-plugin", "tegra-gpu-agent", *taint}
    driver = {"tegra-dra-driver", "gpu.jetson-k3s.github.io", "shared.gpu.jetson-k3s.github.io"}
    assert unused() == driver | taint
    assert unused(throttle_taint={"enabled": True}) == driver
    assert unused(boards=[board_of("jetson-1"), board_of("jetson-2", api="dra")]) == taint
    assert unused(k3s_version="v1.33.5+k3s1") == taint  # which knows no kind of DRA
    assert unused(k3s_version="v1.29.5+k3s1") == set()  # nor admission policies
    assert plan()["absent"] == ["daemonset.apps/tegra-gpu-agent"]
    assert plan(agent={"enabled": True})["absent"] == plan(api="dra")["absent"] == []
    boards = [board_of("jetson-1"), board_of("jetson-2", agent={"enabled": True})]
    assert plan(boards=boards)["absent"] == ["daemonset.apps/tegra-gpu-agent"]
    assert len(plan(boards=boards)["kept"]) == 3


@pytest.mark.parametrize(
    ("source", "label"),
    [("driver", "jetson-k3s.github.io/dra"), ("throttle_taint", "jetson-k3s.github.io/throttle-taint")],
)
def test_everything_of_a_manifest_with_rights_goes(source: str, label: str) -> None:
    objects = [one for text in SOURCES[source] for one in yaml.safe_load_all(text) if one]
    named = {(one["kind"].lower(), one["metadata"]["name"]) for one in objects}
    those = plan()["unused"][label]
    gone = {(one.partition("/")[0].partition(".")[0], one.partition("/")[2]) for one in those}
    assert named <= gone


def test_a_node_has_the_label_of_one_api_and_the_agents_goes_with_it() -> None:
    plugin, dra = "jetson-k3s.github.io/device-plugin", "jetson-k3s.github.io/dra"
    taint = "jetson-k3s.github.io/throttle-taint"
    no_operator = {"nvidia.com/gpu.deploy.operands": "false", taint: None}
    assert plan()["labels"] == {plugin: "true", dra: None, **no_operator}
    assert plan(api="dra")["labels"] == {plugin: None, dra: "true", **no_operator}
    tainted = plan(throttle_taint={"enabled": "true"})["labels"]
    assert tainted == {plugin: "true", dra: None, **no_operator, taint: "true"}
    named = board_of("jetson-1") | {"name": "cameras"}
    of_named = plan(boards=[named, board_of("jetson-2")])["labels"]
    assert of_named == {plugin: "cameras", dra: None, **no_operator}
    share = "jetson-k3s.github.io/gpu-share"
    planned = {plugin: "true", dra: None}
    assert answers.node_labels("", planned) == {share: None, **planned}
    # The board has no say in which DaemonSet runs there.
    printed = json.dumps({share: "units", plugin: "false"})
    old = dict.fromkeys([*answers.JTOP_LABELS, "jetson-k3s.github.io/devices"])
    assert answers.node_labels(printed, planned) == {**old, share: "units", **planned}


def test_labels_of_jtop_go_when_jtop_no_longer_says_them() -> None:
    agrees = {"jetson-k3s.github.io/jtop.l4t": "36.4.3", "jetson-k3s.github.io/l4t": "36.4.3"}
    found = answers.node_labels(json.dumps(agrees), {})
    assert found["jetson-k3s.github.io/jtop.disagrees"] is None
    assert {key: value for key, value in found.items() if value} == agrees
    # All that the plugin can print.
    board = Board("tegra", None, "36.4.3", "6.2", "a", "b", ())
    gpu = Gpu("GA10B", "8.7", "ready", None, (), None, ())
    every = Telemetry(module="a", model="c", l4t="1.0", jetpack="1.0", gpu="gp10b", compute_capability="1.0")
    printed = node_labels(
        Detection(board, gpu), power_mode="15W", jtop=by_label(compare(Detection(board, gpu), every))
    )
    assert set(answers.JTOP_LABELS) == set(printed) - set(node_labels(Detection(board, gpu)))


@pytest.mark.parametrize(
    ("api", "config", "expected"),
    [
        ("device-plugin", {}, "nvidia.com/gpu"),
        ("device-plugin", UNITS, "jetson-k3s.github.io/gpu-memory"),
        ("dra", UNITS, "gpu.jetson-k3s.github.io"),
    ],
)
def test_the_run_waits_for_what_the_node_will_offer(api: str, config: Data, expected: str) -> None:
    assert planning.offers(config, api) == {expected: 1}


def test_a_board_runs_the_plugins_image_by_its_engine() -> None:
    docker = plan(config=UNITS)["labels_command"]
    assert docker["argv"][:4] == ["docker", "run", "--rm", "--network=none"]
    assert "--interactive" in docker["argv"]
    assert docker["argv"][docker["argv"].index(NAME) + 1 :] == [
        *("labels", "--host-root=/host", "--output=json", "--config=/dev/stdin")
    ]
    assert (json.loads(docker["stdin"] or ""), docker["name"]) == (UNITS, None)
    bare = plan(container_runtime="containerd", agent={"enabled": True})["labels_command"]
    at = bare["argv"].index(f"docker.io/library/{NAME}")
    assert bare["argv"][at + 1 : at + 5] == [bare["name"], "python3.11", "-m", "tegra_device_plugin"]
    assert bare["argv"][-1] == "--qos-policy=best-effort"
    assert bare["stdin"] is None
    # containerd has the image of a registry by its digest alone, and no standard input.
    pulled = plan(container_runtime="containerd", image=REGISTRY, config=UNITS)["labels_command"]["argv"]
    at = pulled.index(REGISTRY.replace(":9@", "@"))
    assert pulled[at + 3 : at + 6] == ["-c", planning.WITH_SETTINGS, json.dumps(UNITS)]


@pytest.mark.parametrize("runtime", ["docker", "containerd"])
@pytest.mark.parametrize(
    ("setting", "python", "expected"),
    [
        (True, "3.10.12", True),
        ("true", "3.8.10", True),
        (True, "3.6.9", False),  # JetPack 4
        (False, "3.10.12", False),
        ("false", "3.10.12", False),
    ],
)
def test_jtop_is_installed_and_in_the_labels_where_it_is_set_and_can_be(
    setting: Any, python: str, expected: bool, runtime: str
) -> None:
    found = plan({"python": python}, jtop=setting, container_runtime=runtime)
    assert found["jtop"] is expected
    read = [part for part in found["labels_command"]["argv"] if planning.JTOP in part]
    # The directory of the relay's socket alone, and read-only.
    mount = {
        "docker": f"--volume={planning.JTOP}:/host{planning.JTOP}:ro",
        "containerd": f"--mount=type=bind,src={planning.JTOP},dst=/host{planning.JTOP},options=rbind:ro",
    }[runtime]
    assert read == ([mount] if expected else [])


@pytest.mark.parametrize("given", [{}, {"removeAfter": "30m"}])
def test_throttle_taint_is_deployed_once_beside_every_configuration(given: Data) -> None:
    boards = [board_of("jetson-1"), board_of("jetson-2", config=UNITS)]
    found = plan(boards=boards, throttle_taint={"enabled": True, **given}, metrics_on_host=True)
    assert found["absent_taints"] == []
    text = planning.manifest(found["renderings"], SOURCES)
    own = [one for one in yaml.safe_load_all(text) if one["metadata"]["name"] == "tegra-throttle-taint"]
    kinds = {one["kind"]: one for one in own}
    assert len(kinds) == len(own) == 6
    pod = kinds["DaemonSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["nodeSelector"].items() <= found["labels"].items()
    assert (container["image"], container["imagePullPolicy"]) == (NAME, "Never")
    assert container["ports"][0]["hostPort"] == 9402
    assert [one for one in container["args"] if "after" in one] == [
        f"--remove-after={after}" for after in given.values()
    ]


def test_without_the_throttle_taint_a_left_over_taint_goes() -> None:
    assert "tegra-throttle-taint" not in planning.manifest(plan()["renderings"], SOURCES)
    assert plan()["absent_taints"] == [f"{taints.KEY}:{taints.EFFECT}"]


def test_koordinators_device_is_asked_for_with_its_preset_only() -> None:
    assert plan(config=UNITS)["koordinator_command"] is None
    config = {"sharing": {"units": {"preset": "koordinator"}}}
    asked = plan(config=config, node="node-1")["koordinator_command"]
    assert asked is not None
    assert asked["argv"][-4:] == ["koordinator-device", "--host-root=/host", "--config=/dev/stdin", "node-1"]


def test_docker_pulls_with_the_kubelets_credentials() -> None:
    assert plan(credentials=True)["engine"]["pull"][:3] == ["docker", "--config", "/var/lib/kubelet"]
    assert plan()["engine"]["pull"] == ["docker", "pull", "--quiet"]
    assert plan(container_runtime="containerd")["engine"]["pull"] == ["k3s", "crictl", "pull"]


@pytest.mark.parametrize(("k3s", "serves"), [("v1.36.5+k3s1", True), ("v1.35.9+k3s1", False)])
def test_one_manifest_is_made_from_the_plan(k3s: str, serves: bool) -> None:
    def objects(**settings: Any) -> list[Data]:
        text = planning.manifest(plan(**settings)["renderings"], SOURCES)
        return [*yaml.safe_load_all(text)]

    def names(**settings: Any) -> set[str]:
        return {f"{one['kind']}/{one['metadata']['name']}" for one in objects(**settings)}

    assert names() == {"DaemonSet/tegra-device-plugin"}
    assert names(agent={"enabled": True}) == {"DaemonSet/tegra-device-plugin", "DaemonSet/tegra-gpu-agent"}
    assert "RuntimeClass/nvidia" in names(container_runtime="containerd")
    assert "DaemonSet/tegra-dra-driver" in names(api="dra")
    text = planning.manifest(plan(api="dra", k3s_version=k3s)["renderings"], SOURCES)
    assert ("extendedResourceName" in text) is serves

    # Boards with other settings add objects, and change none of the default's.
    agent, claims = {"enabled": True}, {"version": "v1", "sharing": {"dra": {"mode": "shares", "shares": 2}}}
    others = [
        board_of("jetson-2", config=UNITS, strict=True, agent=agent) | {"name": "units"},
        board_of("jetson-3", api="dra", config=claims) | {"label": "claims"},
        board_of("jetson-4", api="dra"),
    ]
    alone = objects()
    found = objects(boards=[board_of("jetson-1"), *others])
    assert [one for one in alone if one not in found] == []
    by_name = {f"{one['kind']}/{one['metadata']['name']}": one for one in found}
    assert len(by_name) == len(found)
    daemonsets = {name: one for name, one in by_name.items() if name.startswith("DaemonSet/")}
    selectors = {name: one["spec"]["template"]["spec"]["nodeSelector"] for name, one in daemonsets.items()}
    plugin, dra = "jetson-k3s.github.io/device-plugin", "jetson-k3s.github.io/dra"
    assert selectors == {
        "DaemonSet/tegra-device-plugin": {plugin: "true"},
        "DaemonSet/tegra-device-plugin-units": {plugin: "units"},
        "DaemonSet/tegra-gpu-agent-units": {plugin: "units"},
        "DaemonSet/tegra-dra-driver": {dra: "true"},
        "DaemonSet/tegra-dra-driver-claims": {dra: "claims"},
    }
    for name, one in daemonsets.items():
        spec, selector = one["spec"]["template"], one["spec"]["selector"]["matchLabels"]
        assert selector.items() <= spec["metadata"]["labels"].items()
        maps = [of["configMap"]["name"] for of in spec["spec"]["volumes"] if "configMap" in of]
        assert maps == [of for of in ["tegra-device-plugin-units"] if name.endswith("-units")] + [
            of for of in ["tegra-dra-driver-claims"] if name.endswith("-claims")
        ]
    assert {"ConfigMap/tegra-device-plugin-units", "ConfigMap/tegra-dra-driver-claims"} < by_name.keys()
    (container,) = daemonsets["DaemonSet/tegra-device-plugin-units"]["spec"]["template"]["spec"]["containers"]
    assert "--device-list-strategy=volume-mounts" in container["args"]
    # The instance that stands by on a board is made of its own.
    own = plan(boards=[board_of("jetson-1"), *others])
    assert own["stand_by"] == plan()["stand_by"] is not None


@pytest.mark.parametrize(
    ("docker", "otherwise"),
    [
        ({"stand_by_settings": None}, False),
        ({"stand_by_settings": hashlib.sha256(b"").hexdigest()}, False),
        ({"stand_by_settings": hashlib.sha256(b"old").hexdigest()}, True),
        ({"stand_by_settings": hashlib.sha256(b"old").hexdigest(), "running": False}, False),
    ],
)
def test_instance_with_other_settings_is_found_by_the_facts(docker: Data, otherwise: bool) -> None:
    assert plan({"docker": JETSON["docker"] | docker})["stands_by_otherwise"] is otherwise

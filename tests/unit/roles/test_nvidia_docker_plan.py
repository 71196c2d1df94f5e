# SPDX-License-Identifier: Apache-2.0
"""What role nvidia_docker decides: packages to install, daemon.json as it will be, restarts, and archives."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import docker_files
from ansible_collections.jetson_k3s.cluster.plugins.modules import docker_daemon_config
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import board_release
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import nvidia_docker as planning

from tests.unit.roles.places import ROLES, Data

CONSTANTS = yaml.safe_load((ROLES / "nvidia_docker/vars/main.yml").read_text())
LOGS, OURS = CONSTANTS["__nvidia_docker_log_config"], CONSTANTS["__nvidia_docker_runtime_config"]
ARCHIVE, RUNTIME = "debs-jetpack6-arm64.tar", "nvidia-container-toolkit"
BUNDLE: Data = {"files": {ARCHIVE: {"error": None, "packages": {RUNTIME: "1.18.0-1", "docker.io": "1"}}}}
SETTINGS: Data = {
    "with_engine": True,
    "with_runtime": True,
    **{
        name: CONSTANTS[f"__nvidia_docker_{name}"]
        for name in ("engine_packages", "runtime_packages", "engine_family", "runtime_family")
    },
    "daemon_config": OURS,
    "log_config": LOGS,
    "confirmed": [],
    "strict": False,
    "proxied": False,
    "staged": False,
}
DOCKER: Data = {
    "installed": True,
    "running": True,
    "containers": 0,
    "command": "/usr/bin/dockerd -H fd://",
    "version": "27.5.1",
    "active": True,
    "enabled": True,
    "default_runtime": "nvidia",
    "daemon_json": {"error": None, "config": {}},
    "files": {"raw_drop_in": False, "proxy": False, "strict": False, "restart_due": False},
}
NO_DOCKER: Data = DOCKER | {"installed": False, "running": False, "containers": None, "command": None}
JETSON: Data = {
    "arch": "aarch64",
    "jetpack": "6.2",
    "iptables": {"raw": None, "changes": None, "not_tried": None},
    "docker": DOCKER,
    "nvidia_runtime": {"path": "/usr/bin/nvidia-container-runtime", "version": "1.16.2"},
    "packages": {"installed": ["docker.io", "containerd", RUNTIME], "held": [], "ours": []},
    "k3s": {"server": {"active": False}, "agent": {"active": False}},
}
BARE: Data = {
    "docker": NO_DOCKER,
    "nvidia_runtime": {"path": None, "version": None},
    "packages": {"installed": [], "held": [], "ours": []},
}
FAMILY = [RUNTIME, f"{RUNTIME}-base", "libnvidia-container-tools", "libnvidia-container1"]
UPDATE: Data = {"confirmed": ["update-runtime"]}


def plan(jetson: Data | None = None, bundle: Data = BUNDLE, **settings: Any) -> planning.Plan:
    given: Any = SETTINGS | settings  # as from the inventory
    return planning.plan(JETSON | (jetson or {}), bundle, given)


@pytest.mark.parametrize(
    ("jetson", "settings", "missing", "engine", "runtime"),
    [
        ({}, {}, [], [], []),
        (BARE, {}, ["docker.io", RUNTIME], ["docker.io", "containerd", "runc"], FAMILY),
        # Where containerd runs the pods.
        (BARE, {"with_engine": False}, [RUNTIME], [], FAMILY),
        ({"docker": NO_DOCKER}, {}, ["docker.io"], ["runc"], []),
        # Never a second engine beside that of a snap or of an archive.
        ({"docker": NO_DOCKER | {"engine": {"origin": "snap"}}}, {}, [], [], []),
        ({"docker": NO_DOCKER | {"engine": {"origin": None}}}, {}, ["docker.io"], ["runc"], []),
        ({"nvidia_runtime": BARE["nvidia_runtime"]}, {}, [RUNTIME], [], FAMILY[1:]),
        # An update replaces what is there, too.
        ({}, UPDATE, [RUNTIME], [], FAMILY),
        ({"docker": NO_DOCKER}, UPDATE, ["docker.io", RUNTIME], ["runc"], FAMILY),
    ],
)
def test_packages_that_the_board_lacks_are_installed(
    jetson: Data, settings: Data, missing: list[str], engine: list[str], runtime: list[str]
) -> None:
    planned = plan(jetson, **settings)
    assert planned["missing"] == missing
    assert (planned["engine_packages"], planned["runtime_packages"]) == (engine, runtime)


def bundled(version: str) -> Data:
    return {"files": {ARCHIVE: {"packages": {RUNTIME: version}}}}


@pytest.mark.parametrize(
    ("installed", "bundle", "confirmed", "version", "due"),
    [
        ("1.16.2", bundled("1.18.0-1"), ["update-runtime"], "1.18.0", True),
        ("1.16.2", bundled("1.18.0-1"), ["reboot"], "1.18.0", False),
        ("1.9.0", bundled("1.18.0~rc.1-1"), ["update-runtime"], "1.18.0", True),
        ("1.18.0", bundled("1.18.0-2"), ["update-runtime"], "1.18.0", False),
        ("1.19.0", bundled("1.18.0-1"), ["update-runtime"], "1.18.0", False),
        ("1.16.2", {"files": {}}, ["update-runtime"], "", False),
        ("1.16.2", {"files": {ARCHIVE: {"packages": {}}}}, ["update-runtime"], "", False),
        (None, bundled("1.18.0-1"), ["update-runtime"], "1.18.0", False),
    ],
)
def test_a_confirmed_update_of_the_runtime_is_due_where_the_bundle_has_a_newer_one(
    installed: str | None, bundle: Data, confirmed: list[str], version: str, due: bool
) -> None:
    runtime = {"path": "/usr/bin/nvidia-container-runtime", "version": installed}
    planned = plan({"nvidia_runtime": runtime}, bundle, confirmed=confirmed)
    assert (planned["version"], planned["due"]) == (version, due)
    assert (planned["asked"], planned["package"]) == ("update-runtime" in confirmed, RUNTIME)


@pytest.mark.parametrize(
    ("jetpack", "arch", "archive", "codename"),
    [
        ("4.6.1", "aarch64", "debs-jetpack4-arm64.tar", "bionic"),
        ("5.1.2", "aarch64", "debs-jetpack5-arm64.tar", "focal"),
        ("6.0 DP", "x86_64", "debs-jetpack6-amd64.tar", "jammy"),
        ("7", "aarch64", "debs-jetpack7-arm64.tar", "noble"),
        ("8.0", "aarch64", "debs-jetpack8-arm64.tar", ""),
        (None, "aarch64", "debs-jetpack0-arm64.tar", ""),
        # A board that preflight refuses, in its own words.
        ("6.2", "armv7l", "debs-jetpack6-armv7l.tar", "jammy"),
    ],
)
def test_packages_are_those_of_the_boards_ubuntu(
    jetpack: str | None, arch: str, archive: str, codename: str
) -> None:
    assert plan({"jetpack": jetpack, "arch": arch})["archive"] == archive
    assert board_release.codename(jetpack) == codename


@pytest.mark.parametrize(
    ("docker", "logs"),
    [
        ({}, LOGS),
        (NO_DOCKER, LOGS),
        ({"containers": 1}, {}),
        ({"command": "/usr/bin/dockerd --log-driver=journald"}, {}),
    ],
)
def test_logs_are_limited_before_there_is_a_container(docker: Data, logs: Data) -> None:
    assert plan({"docker": DOCKER | docker})["log_config"] == logs


@pytest.mark.parametrize(
    "there",
    [
        {},
        {"log-driver": "journald", "exec-opts": ["a=b"], "proxies": {"http-proxy": "http://u:planted@p"}},
        {"log-opts": {"max-size": "1g"}, "runtimes": {"kata": {"path": "/usr/bin/kata"}}},
        {"features": {"x": True}, "icc": False},
    ],
)
@pytest.mark.parametrize(
    "wanted",
    [
        OURS,
        OURS | {"exec-opts": ["native.cgroupdriver=systemd"], "min-api-version": "1.40"},
        OURS | {"features": {"containerd-snapshotter": False}, "log-opts": {"max-file": "5"}},
    ],
)
def test_the_planned_daemon_json_is_the_modules_without_secrets(there: Data, wanted: Data) -> None:
    docker = DOCKER | {"daemon_json": {"error": None, "config": there}}
    written = docker_daemon_config.merge_config(
        there, docker_daemon_config.with_defaults(wanted, LOGS, there)
    )
    settings: Any = SETTINGS | {"daemon_config": wanted}
    assert planning.daemon_json(docker, settings) == written
    planned = plan({"docker": docker}, daemon_config=wanted)
    assert sorted(planned["daemon_keys"]) == sorted(written)
    assert planned["daemon_json"] == {key: written[key] for key in written if key in planning.JUDGED}
    assert "planted" not in str(planned)


@pytest.mark.parametrize(
    ("staged", "running", "active", "postpones"),
    [
        (True, True, "server", True),
        (True, True, "agent", True),
        ("true", True, "agent", True),
        (True, True, None, False),
        (True, False, "agent", False),
        (False, True, "agent", False),
    ],
)
def test_a_restart_of_docker_on_a_running_node_is_postponed(
    staged: Any, running: bool, active: str | None, postpones: bool
) -> None:
    units = {name: {"active": name == active} for name in ("server", "agent")}
    planned = plan({"docker": DOCKER | {"running": running}, "k3s": units}, staged=staged)
    assert planned["postpones"] is postpones


@pytest.mark.parametrize(
    ("ours", "held", "due"),
    [
        ([], [], []),
        (["docker.io", "runc"], ["runc", "vim"], ["docker.io"]),
        (["docker.io"], ["docker.io"], []),
    ],
)
def test_only_the_roles_packages_without_a_hold_get_one(
    ours: list[str], held: list[str], due: list[str]
) -> None:
    assert plan({"packages": {"installed": ours, "ours": ours, "held": held}})["holds_due"] == due


@pytest.mark.parametrize(
    ("activation", "config_postponed", "due", "environment_postponed", "expected"),
    [
        ("none", False, False, False, False),
        ("reload", False, False, False, False),
        ("restart", False, False, False, True),
        ("restart", True, False, False, False),
        ("none", False, True, False, True),
        ("reload", False, True, True, False),
        ("restart", True, True, True, False),
    ],
)
def test_docker_restarts_for_a_change_that_is_not_postponed(
    activation: str, config_postponed: bool, due: bool, environment_postponed: bool, expected: bool
) -> None:
    config = {"activation": activation, "postponed": config_postponed}
    environment = {"restart_due": due, "postponed": environment_postponed}
    assert planning.restarts(config, environment) is expected


@pytest.mark.parametrize(
    ("file", "packages", "expected"),
    [
        ({"packages": {"docker.io": "1", RUNTIME: "1"}}, ["docker.io"], True),
        ({"packages": {"docker.io": "1"}}, ["docker.io", RUNTIME], False),
        # Its error is the message, not a failure of apt's.
        ({"packages": {}, "error": "cut off"}, ["docker.io"], True),
        (None, ["docker.io"], False),
    ],
)
def test_packages_come_from_the_bundle_if_it_has_all_of_them(
    file: Data | None, packages: list[str], expected: bool
) -> None:
    files = {} if file is None else {ARCHIVE: file}
    assert planning.bundle_has({"files": files}, ARCHIVE, packages) is expected


COLLECTION: Any = {"engine_packages": ["docker.io"], "runtime_packages": [RUNTIME], "supply_host": ""}


@pytest.mark.parametrize(
    ("jetpack", "arch", "reason"),
    [
        ("6.2", "aarch64", None),
        (
            "8.1",
            "aarch64",
            "b: this release of the project does not know the Ubuntu of JetPack 8.1, so it cannot",
        ),
        (None, "aarch64", "b: the board has no JetPack (L4T none)."),
        ("6.2", "armv7l", "b: the board has no JetPack (L4T none)."),
        ("6-/x", "aarch64", "b: the board has no JetPack (L4T none)."),
        ("6.2", "../x", "b: the board has no JetPack (L4T none)."),
    ],
)
def test_packages_are_collected_for_a_known_jetpack_only(
    jetpack: str | None, arch: str, reason: str | None
) -> None:
    found = planning.collection({"jetpack": jetpack, "arch": arch, "l4t": None}, COLLECTION, "b")
    assert [one.startswith(reason or "") for one in found["refused"]] == [True] * (reason is not None)


def test_a_registry_is_collected_where_a_board_supplies_images() -> None:
    jetson = {"jetpack": "6.2", "arch": "aarch64", "l4t": "36.4.3"}
    found = planning.collection(jetson, COLLECTION, "b")
    assert found["packages"] == ["docker.io", RUNTIME]
    assert (found["archive"], found["architecture"], found["codename"]) == (ARCHIVE, "arm64", "jammy")
    supplying = planning.collection(jetson, COLLECTION | {"supply_host": "b"}, "b")
    assert supplying["packages"] == ["docker.io", RUNTIME, "docker-registry"]


SET = DOCKER | {"daemon_json": {"error": None, "config": {**OURS, "debug": True}}, "containers": 3}
RAW_LACKS = {"raw": "no table raw", "changes": None, "not_tried": None}


def configures(docker: Data | None = None, iptables: Data | None = None, **settings: Any) -> bool:
    jetson = {"docker": SET | (docker or {}), "iptables": iptables or JETSON["iptables"]}
    return plan(jetson, **settings)["configures"]


def files(**changed: Any) -> Data:
    return {"files": DOCKER["files"] | changed}


def test_marker_of_the_facts_is_that_of_the_role() -> None:
    assert CONSTANTS["__nvidia_docker_marker"] == f"/{docker_files.MARKER}"


def test_docker_with_its_configuration_is_left_alone() -> None:
    assert not configures()
    assert not configures(files(strict=True), strict=True)
    assert not configures({"version": "28.1.0", **files(raw_drop_in=True)}, RAW_LACKS)


@pytest.mark.parametrize(
    ("docker", "iptables", "settings"),
    [
        ({"active": False}, None, {}),
        ({"enabled": False}, None, {}),
        ({"running": False}, None, {}),
        ({"default_runtime": "runc"}, None, {}),
        ({"daemon_json": {"error": "line 3", "config": OURS}}, None, {}),
        ({"daemon_json": {"error": None, "config": {}}}, None, {}),
        # Without a container Docker can have the role's settings of logs.
        ({"containers": 0}, None, {}),
        ({}, None, {"daemon_config": {**OURS, "debug": False}}),
        ({}, {"raw": None, "changes": "iptables fails", "not_tried": None}, {}),
        ({}, {"raw": None, "changes": None, "not_tried": "no unshare"}, {}),
        ({"version": "28.1.0"}, RAW_LACKS, {}),
        ({"version": "28.0.1"}, RAW_LACKS, {}),  # the module says why it cannot work
        (files(raw_drop_in=True), None, {}),
        (files(raw_drop_in=None), None, {}),
        ({}, None, {"strict": True}),
        (files(strict=True), None, {}),
        (files(strict=None), None, {"strict": True}),
        ({}, None, {"proxied": True}),
        (files(proxy=True), None, {}),
        (files(restart_due=True), None, {}),
    ],
)
def test_other_docker_is_configured(docker: Data, iptables: Data | None, settings: Data) -> None:
    assert configures(docker, iptables, **settings)


@pytest.mark.parametrize(
    ("jetson", "has_work"),
    [
        ({}, False),
        ({"packages": {"installed": [RUNTIME], "ours": [RUNTIME], "held": [RUNTIME]}}, False),
        ({"packages": {"installed": [RUNTIME], "ours": [RUNTIME], "held": []}}, True),
        ({"nvidia_runtime": {"path": None, "version": None}}, True),
        ({"docker": SET | {"default_runtime": "runc"}}, True),
    ],
)
def test_role_is_left_out_of_site_yml_only_where_nothing_is_installed_or_configured(
    jetson: Data, has_work: bool
) -> None:
    assert plan({"docker": SET} | jetson)["has_work"] is has_work

# SPDX-License-Identifier: Apache-2.0
"""The instance of the plugin that stands by in Docker: it is the pod, as a container."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.jetson_k3s.cluster.plugins.modules import jetson_facts, k3s_reset
from ansible_collections.jetson_k3s.cluster.plugins.modules import stand_by_container as container
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    gpu_device_plugin_manifests as manifests,
)
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    gpu_device_plugin_stand_by as to_container,
)

from tests.unit.roles.places import ROLES, Data

TMPFILES = "/etc/tmpfiles.d/plugin.conf"
PLAIN = (ROLES.parent / "plugin/deploy/base/daemonset.yaml").read_text()
UNITS = {"version": "v1", "sharing": {"units": {"memoryTotal": "4Gi", "preset": "koordinator"}}}


def manifest(image: str = "plugin:9", strict: bool = False, **more: Any) -> str:
    return manifests.joined(manifests.rendered(PLAIN, image, "sha256:ab", "docker", strict, **more))


def pod(text: str) -> Data:
    daemonset: Data = next(yaml.safe_load_all(text))
    spec: Data = daemonset["spec"]["template"]["spec"]
    return spec


def mounts(options: list[str]) -> dict[str, tuple[str, bool]]:
    """Source and whether it is read-only, by target."""
    found = {}
    for option in options:
        if option.startswith("--mount="):
            parts = dict(part.partition("=")[::2] for part in option.removeprefix("--mount=").split(","))
            assert parts["type"] == "bind"
            found[parts["target"]] = (parts["source"], "readonly" in parts)
    return found


def entrypoint() -> list[str]:
    """Of the plugin's image."""
    lines = (ROLES.parent / "images/arm64/Dockerfile").read_text().splitlines()
    (found,) = (line.removeprefix("ENTRYPOINT ") for line in lines if line.startswith("ENTRYPOINT "))
    program: list[str] = json.loads(found)
    return program


@pytest.mark.parametrize(
    "text",
    [
        manifest(),
        manifest(strict=True, metrics_on_host=True),
        manifest("registry.example/plugin:9@sha256:ab"),
        manifest(config={"version": "v1", "sharing": {"timeSlicing": {"resources": []}}}),
        manifest(config=UNITS),
    ],
    ids=["plain", "strict", "registry", "time-slicing", "units"],
)
def test_container_has_what_the_pod_has(text: str) -> None:
    made, spec = to_container.stand_by(text, TMPFILES), pod(text)
    (of_pod,) = spec["containers"]
    volumes = {one["name"]: one.get("hostPath", {}).get("path") for one in spec["volumes"]}
    wanted = {
        one["mountPath"]: (volumes[one["name"]] or to_container.CONFIG_DIRECTORY, one.get("readOnly", False))
        for one in of_pod["volumeMounts"]
    }
    assert mounts(made["options"]) == wanted
    assert made["image"] == of_pod["image"]
    environment = [option.removeprefix("--env=") for option in made["options"] if option.startswith("--env=")]
    assert environment == [f"{one['name']}={one['value']}" for one in of_pod.get("env", [])]
    of_both = [one for one in of_pod["args"] if not one.startswith("--metrics-address=")]
    assert made["arguments"] == [*of_both, "--stand-by"]
    assert made["before_kubelet"] == [*entrypoint(), "before-kubelet", *of_both[1:]]
    configs = [one["data"]["config.yaml"] for one in yaml.safe_load_all(text) if one["kind"] == "ConfigMap"]
    assert [made["config"]] == (configs or [""])
    files = {one["path"]: one for one in made["files"]}
    assert files[to_container.CONFIG_FILE]["content"] == made["config"]
    made_by_kubelet = [
        one["hostPath"]["path"]
        for one in spec["volumes"]
        if one.get("hostPath", {}).get("type") == "DirectoryOrCreate"
    ]
    directories = [path for path, one in files.items() if "directory" in one]
    assert sorted(directories) == sorted([*made_by_kubelet, to_container.CONFIG_DIRECTORY])


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (UNITS, {"content": "d /run/koordlet 0755\n", "mode": "0644"}),
        (None, {"absent": True}),
    ],
)
def test_directories_in_run_are_there_when_docker_starts_it_after_a_boot(
    config: Data | None, expected: Data
) -> None:
    files = to_container.stand_by(manifest(config=config), TMPFILES)["files"]
    assert {"path": TMPFILES, **expected} in files


def test_container_has_the_pods_rights_and_limits_and_no_network() -> None:
    options = to_container.stand_by(manifest(), TMPFILES)["options"]
    assert {
        "--network=none",
        "--user=0",
        "--read-only",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        f"--memory={128 * 2**20}",
        "--cpu-shares=10240",
    } <= set(options)


@pytest.mark.parametrize(
    ("where", "more", "says"),
    [
        ("pod", {"hostNetwork": True}, "hostNetwork"),
        ("container", {"envFrom": []}, "envFrom"),
        ("container", {"securityContext": {"privileged": True}}, "privileged"),
    ],
)
def test_pod_that_the_container_could_not_follow_is_an_error(where: str, more: Data, says: str) -> None:
    daemonset = next(yaml.safe_load_all(manifest()))
    spec = daemonset["spec"]["template"]["spec"]
    (spec if where == "pod" else spec["containers"][0]).update(more)
    with pytest.raises(AnsibleFilterError, match=says):
        to_container.stand_by(json.dumps(daemonset), TMPFILES)


class EndedError(Exception):
    """A module has failed."""


class Engine(container.Engine):
    """SIMULATED: Docker's containers, and what was done to them."""

    def __init__(self, found: dict[str, Data]) -> None:
        self.containers = copy.deepcopy(found)
        self.image_id = "sha256:1"
        self.refuses = ""

    def inspect(self, kind: str, name: str) -> Data | None:
        return {"Id": self.image_id} if kind == "image" else self.containers.get(name)

    def run(self, *argv: str) -> str:
        command = argv[0]
        if command == self.refuses:
            raise EndedError(command)
        if command == "create":
            options = dict(one.removeprefix("--").partition("=")[::2] for one in argv if one.startswith("--"))
            key, _, value = options["label"].partition("=")
            labels = {key: value}
            self.containers[options["name"]] = {"Config": {"Labels": labels}, "State": {"Running": False}}
        elif command == "rename":
            self.containers[argv[2]] = self.containers.pop(argv[1])
        elif command == "rm":
            del self.containers[argv[-1]]
        return ""

    def remove(self, name: str) -> None:
        del self.containers[name]

    def start(self, name: str) -> None:
        if self.refuses == "start":
            raise EndedError("start")
        self.containers[name]["State"]["Running"] = True


ASKED = {"name": "plugin", "image": "plugin:9", "options": ["--read-only"], "arguments": ["run"]}


def test_container_is_made_once_and_again_for_another_description_image_or_end() -> None:
    engine = Engine({})
    assert container.ensure(engine, ASKED, False) == "there is none"
    assert container.ensure(engine, ASKED, False) == ""
    changes: list[Data] = [{"options": []}, {"arguments": ["run", "--stand-by"]}]
    for changed in changes:
        assert "have changed" in container.ensure(engine, ASKED | changed, False)
        assert container.ensure(engine, ASKED | changed, False) == ""
    engine.image_id = "sha256:2"
    assert "have changed" in container.ensure(engine, ASKED, False)
    engine.containers["plugin"]["State"] = {"Running": False}
    assert container.ensure(engine, ASKED, False) == "it did not run"
    assert engine.containers.keys() == {"plugin"}
    assert engine.containers["plugin"]["State"]["Running"]


def test_check_mode_changes_nothing() -> None:
    engine = Engine({})
    assert container.ensure(engine, ASKED, True) == "there is none"
    assert engine.containers == {}


@pytest.mark.parametrize("refused", ["create", "rename", "start"])
def test_run_that_fails_in_between_is_made_good_by_the_next_one(refused: str) -> None:
    engine = Engine({})
    container.ensure(engine, ASKED, False)
    old = copy.deepcopy(engine.containers)
    engine.refuses = refused
    with pytest.raises(EndedError):
        container.ensure(engine, ASKED | {"options": []}, False)
    if refused == "create":
        assert engine.containers == old
    engine.refuses = ""
    assert container.ensure(engine, ASKED | {"options": []}, False)
    assert engine.containers.keys() == {"plugin"}
    assert engine.containers["plugin"]["State"]["Running"]


def test_reset_removes_the_container_and_its_settings() -> None:
    assert container.LABEL == k3s_reset.STAND_BY_LABEL
    assert container.LABEL == jetson_facts.STAND_BY_LABEL
    assert f"/{jetson_facts.STAND_BY_SETTINGS}" == to_container.CONFIG_FILE
    assert to_container.CONFIG_DIRECTORY in k3s_reset.TREES


def test_unit_of_a_boot_runs_the_command_in_the_container_before_the_kubelet() -> None:
    lines = to_container.boot_unit(["python3.11", "-m", "tegra_device_plugin", "before-kubelet"]).splitlines()
    command = (
        "ExecStart=/usr/bin/docker exec tegra-device-plugin python3.11 -m tegra_device_plugin before-kubelet"
    )
    assert {command, "Before=k3s.service k3s-agent.service", "RefuseManualStart=yes"} <= {*lines}
    # systemd reads $$ as $, and the shell gets the braces.
    (shell,) = [line for line in lines if line.startswith("ExecStartPre=")]
    assert '[ "$$(cat kubelet_internal_checkpoint)" = "{}" ] && mv ' in shell

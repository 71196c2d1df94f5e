# SPDX-License-Identifier: Apache-2.0
"""Which plays of site.yml have work, and the settings that are checked before the first connection."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import role_settings, site

from tests.docs import CHECKOUT
from tests.unit.roles.places import Data
from tests.unit.roles.playing import play, write_inventory

NOTHING: Data = {"ansible_facts": {"jetson": {"image_supply": {"installed": False, "trusted": []}}}}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"gpu_device_plugin_build_on_board": "no", "image_supply_host": ""}, False),
        ({"gpu_device_plugin_build_on_board": "yes"}, True),
        ({"image_supply_host": "a"}, True),
        ({"ansible_facts": {"jetson": {"image_supply": {"installed": True, "trusted": []}}}}, True),
        ({"ansible_facts": {"jetson": {"image_supply": {"installed": False, "trusted": ["x:5443"]}}}}, True),
    ],
)
def test_images_are_brought_if_a_board_builds_one_or_has_a_registry(variables: Data, expected: bool) -> None:
    assert site.any_supplies(["a", "b"], {"a": NOTHING, "b": NOTHING | variables}) is expected


BUNDLE: Data = {"indexed": False, "versions": {}, "files": {"tegra-device-plugin-arm64.tar.gz": {}}}


@pytest.mark.parametrize(
    ("first", "bundle", "expected"),
    [
        ({}, {}, False),
        ({}, {"files": {}}, True),
        ({"gpu_device_plugin_image": "registry/plugin:1"}, {"files": {}}, False),
        ({"jetson_k3s_host_kind": "plain"}, {}, False),
        ({"gpu_device_plugin_jtop": "yes"}, {}, True),
        ({"gpu_device_plugin_jtop": "yes"}, {"versions": {"jtop": {}}}, False),
        ({"gpu_device_plugin_jtop": "yes"}, {"indexed": True}, False),
        ({"gpu_device_plugin_jtop": "no"}, {}, False),
    ],
)
def test_the_image_is_built_if_a_board_lacks_it_and_wheels_are_downloaded_if_one_gets_jtop(
    first: Data, bundle: Data, expected: bool
) -> None:
    board: Data = {
        "ansible_facts": {"jetson": {"arch": "aarch64"}},
        "preflight_bundle_info": BUNDLE | bundle,
    }
    assert site.builds(["a", "b"], {"a": board | first, "b": board}) is expected


def test_nothing_is_built_for_plain_hosts() -> None:
    assert not site.builds(["a"], {"a": {"jetson_k3s_host_kind": "plain"}})


def keeping(docker: Data, k3s: Data) -> Data:
    return {"ansible_facts": {"jetson": {"docker": docker, "k3s": k3s}}}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"bundle_images": []}, False),
        ({"bundle_images": ["app.tar"]}, True),
        (keeping({"kept": {"bundle_images": ["sha256:1"]}}, {}), True),
        (keeping({"kept": {"tegra-device-plugin": ["sha256:1"]}}, {}), False),
        (keeping({}, {"kept_images": True}), True),
    ],
)
def test_images_of_the_user_are_loaded_if_a_board_gets_or_has_some(variables: Data, expected: bool) -> None:
    nothing = keeping({"kept": {}}, {"kept_images": False})
    assert site.any_loads(["a", "b"], {"a": nothing, "b": nothing | variables}) is expected


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"k3s_work": [], "nvidia_docker_restart_waits": False}, False),
        ({"k3s_work": ["K3s does not run"]}, True),
        ({"nvidia_docker_restart_waits": True}, True),
    ],
)
def test_batches_have_work_if_any_board_has(variables: Data, expected: bool) -> None:
    assert site.any_changes(["a", "b"], {"a": {}, "b": variables}) is expected


def test_setting_with_a_value_that_it_cannot_have_is_named_with_its_hosts() -> None:
    wrong = {"nvidia_docker_daemon_config": "debug", "k3s_container_runtime": "podman"}
    hostvars: Data = {"a": {}, "b": wrong, "c": wrong, "d": {"k3s_version": "{{ later }}"}}
    found = role_settings.problems(hostvars, hostvars, ["k3s", "nvidia_docker"])
    assert len(found) == 2
    assert all(one.startswith("b, c: ") for one in found)
    assert any("docker, containerd, got: podman" in one for one in found)
    assert any("nvidia_docker_daemon_config" in one and "dict" in one for one in found)


def test_settings_of_all_hosts_are_checked_before_the_first_connection(tmp_path: Path) -> None:
    wrong = {"gpu_device_plugin_config": ["no", "dictionary"]}
    groups = {"server": ["a"], "agent": {"b": wrong}, "k3s_cluster": ["a", "b"]}
    inventory = write_inventory(tmp_path, groups, ansible_connection="ssh", ansible_host="127.0.0.1")
    run = play(inventory, CHECKOUT / "playbooks/site.yml")
    assert run.returncode == 2
    assert "b: argument 'gpu_device_plugin_config' is of type" in run.said
    assert "Nothing was changed on any board." in run.said
    assert "Gather the facts" not in run.said

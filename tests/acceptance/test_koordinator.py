# SPDX-License-Identifier: Apache-2.0
"""Koordinator's Device, written into a cluster that has its CRD."""

import json
from pathlib import Path
from typing import Any

import pytest
from tegra_device_plugin.board.detection import detect
from tegra_device_plugin.board.health import Health
from tegra_device_plugin.config.settings import load_plugin
from tegra_device_plugin.sharing import koordinator

from tests import boards
from tests.acceptance.playbook import run_playbook
from tests.lab import lab
from tests.lab.paths import lab_dir
from tests.unit.roles.playing import play
from tools.cache import CHECKOUT

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "koordinator"
KIND = "devices.scheduling.koordinator.sh"
# A role's module is found where the role is named.
PLAYBOOK = """\
- hosts: server
  become: true
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: k3s, tasks_from: observe.yml}
      when: false
    - ansible.builtin.import_role: {name: gpu_device_plugin, tasks_from: offered.yml}
      when: false
    - koordinator_device: {device: "{{ device }}"}
      register: made
    - ansible.builtin.debug: {msg: "changed={{ made.changed }} found={{ made.found }}."}
"""


def device(place: Path) -> dict[str, Any]:
    config = place / "config.yaml"
    config.write_text("version: v1\nsharing: {units: {preset: koordinator, memoryTotal: 2Gi}}\n")
    units = load_plugin(config, {}, {}).units
    assert units
    boards.build(boards.load()["agxorin-jp6"], place / "host")
    infos = koordinator.device_infos(detect(place / "host"), units, Health(True, "ok", "ready"))
    return koordinator.device("jetson-1", infos)


def test_device_is_written_once_and_left_to_koordlet(tmp_path: Path) -> None:
    (tmp_path / "play.yml").write_text(PLAYBOOK)
    wanted = device(tmp_path)
    with lab.fresh(LAB, ["agxorin-jp6"]) as (one,):
        run_playbook(LAB, "site.yml", "--tags=nvidia_docker,k3s").checked()

        def said(*arguments: str) -> str:
            given = f"--extra-vars={json.dumps({'device': wanted})}"
            return play(lab_dir(LAB) / "inventory.ini", tmp_path / "play.yml", given, *arguments).stdout

        assert "changed=False found=the cluster does not have the CRD" in said()
        crd = (CHECKOUT / "tests/unit/plugin/koordinator_crd.yaml").read_text()
        one.exec("sh", "-c", 'echo "$1" | k3s kubectl apply --filename=-', "sh", crd)
        one.exec("k3s", "kubectl", "wait", "--for=condition=Established", f"crd/{KIND}")
        for arguments, changed in ((["--check"], True), ([], True), ([], False)):
            assert f"changed={changed} found=." in said(*arguments)
        there = json.loads(one.exec("k3s", "kubectl", "get", KIND, "jetson-1", "--output=json"))
        assert there["spec"] == wanted["spec"]
        assert [owner["name"] for owner in there["metadata"]["ownerReferences"]] == ["jetson-1"]
        # As koordlet takes it over.
        one.exec("k3s", "kubectl", "label", KIND, "jetson-1", "app.kubernetes.io/managed-by-")
        assert "changed=False found=koordlet makes it." in said()

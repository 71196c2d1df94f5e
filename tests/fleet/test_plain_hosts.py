# SPDX-License-Identifier: Apache-2.0
"""The playbooks over a plain server and boards: each host gets the steps of its kind.

Tasks that run once for the boards must not depend on a plain host that the inventory names before them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.ansible_core import NEWEST, OLDEST, core
from tests.fleet.fleet import TIMEOUT_SECONDS
from tests.fleet.scripted import Fleet, fault, said
from tests.hostile.answers import Answer
from tests.hostile.site import Run

pytestmark = pytest.mark.timeout(TIMEOUT_SECONDS)
PLAIN, BOARDS = "jetson-1", ("jetson-2", "jetson-3")
KIND = "jetson_k3s_host_kind=plain k3s_container_runtime=containerd"
# Modules that change a board alone.
OF_BOARDS = {
    "docker_environment",
    "docker_daemon_config",
    "stand_by_container",
    "nvpmodel",
    "container_command",
}


class Mixed(Fleet):
    """A plain server without Docker of ours, and two boards."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, 1, 2)
        inventory = root / "site/inventory"
        inventory.write_text(inventory.read_text().replace(f"{PLAIN}\n", f"{PLAIN} {KIND}\n"))
        self.reports = root / "reports"

    def mixed(self, playbook: str, *arguments: str, line: str = NEWEST, faults: Iterable[Answer] = ()) -> Run:
        settings = self.settings(faults) | {"SCRIPTED_PLAIN": PLAIN}
        given = (f"--extra-vars=gpu_verify_reports={self.reports}", *arguments)
        return self.site.play(core(line), playbook, {}, *given, **settings)


def hosts(run: Run, *modules: str) -> dict[str, set[str]]:
    """The hosts that have run each of these modules."""
    found: dict[str, set[str]] = {}
    for host, module, _ in run.calls:
        if module in modules:
            found.setdefault(module, set()).add(host)
    return found


def checks(run: Run) -> dict[str, set[str]]:
    """The checks of the verification, by node."""
    found: dict[str, set[str]] = {}
    for _, module, arguments in run.calls:
        if module == "gpu_checks":
            found.setdefault(arguments["pods"]["node"], set()).update(
                one["id"] for one in arguments["checks"]
            )
    return found


@pytest.mark.parametrize("line", [NEWEST, pytest.param(OLDEST, marks=pytest.mark.acceptance)])
def test_site_gives_each_host_the_steps_of_its_kind(tmp_path: Path, line: str) -> None:
    fleet = Mixed(tmp_path)
    run = fleet.mixed("site", line=line)
    assert run.code == 0, run.logged or run.said
    changed = hosts(run, *OF_BOARDS)
    assert changed, "the boards are configured"
    assert not any(PLAIN in found for found in changed.values()), changed
    manifests = [one for _, module, one in run.calls if module == "k3s_manifest"]
    assert len(manifests) == 1 and "runtimeClassName" not in manifests[0]["manifest"], (
        "Docker's, of the boards"
    )
    labels = {one["name"]: one["labels"] for _, module, one in run.calls if module == "k3s_node"}
    ours = {name: "jetson-k3s.github.io/device-plugin" in found for name, found in labels.items()}
    assert ours == {PLAIN: False, **dict.fromkeys(BOARDS, True)}
    found = checks(run)
    assert found[PLAIN] == {"node-ready"}
    assert all("device-query" in found[name] and "node-ready" not in found[name] for name in BOARDS)
    report = json.loads((fleet.reports / f"{PLAIN}.json").read_text())
    assert (report["ok"], report["board"]["kind"], report["gpu"]["allocatable"]) == (True, "plain", 0)


@pytest.mark.acceptance
@pytest.mark.parametrize("playbook", ["verify", "upgrade", "reboot", "drift", "status", "power_mode", "jtop"])
def test_every_playbook_goes_on_with_a_plain_server(tmp_path: Path, playbook: str) -> None:
    full = ("--extra-vars=gpu_verify_mode=full", "--extra-vars=gpu_verify_reboot=true")
    run = Mixed(tmp_path).mixed(playbook, *(full if playbook == "verify" else ()))
    words = said(run)
    assert run.code in ((0, 1) if playbook == "drift" else (0,)), run.logged or run.said
    changed = hosts(run, *OF_BOARDS)
    assert not any(PLAIN in found for found in changed.values()), changed
    assert set(checks(run).get(PLAIN, set())) <= {"node-ready"}
    assert "UNREACHABLE" not in words


# NVIDIA's chart, as the modules k3s_nodes and k3s_observe return it: a DaemonSet, and a pod of it.
CHART = {"namespace": "gpus", "name": "nvdp", "release": "nvdp", "operator": False}
OPERATED = {"namespace": "gpu-operator", "name": "nvidia-device-plugin-daemonset", "release": ""}


def test_second_device_plugin_stops_preflight_and_is_in_the_status(tmp_path: Path) -> None:
    fleet = Mixed(tmp_path)
    there: Answer = {**CHART, "selector": {}, "terms": None, "nodes": [PLAIN, BOARDS[0]]}
    plugins = fault(fleet.servers, "k3s_nodes", {"gpu_plugins": [there]})
    run = fleet.mixed("preflight", faults=[plugins])
    words = said(run)
    assert run.code == 2, run.logged or run.said
    # The server of the GPU is not concerned; on the last board no pod of it runs yet.
    assert [words.count(f"{name}: preflight found") for name in (PLAIN, *BOARDS)] == [0, 1, 1]
    assert words.count("[error] second-device-plugin found") == 1
    assert "[warning] second-device-plugin-selects" in words
    assert "helm upgrade nvdp nvdp/nvidia-device-plugin --namespace gpus --version VERSION" in words

    node = {"ready": True, "message": "", "capacity": {"nvidia.com/gpu": 1}}
    nodes = [
        {**node, "name": name, "allocatable": node["capacity"], "labels": labels}
        for name, labels in ((PLAIN, {}), (BOARDS[0], {"jetson-k3s.github.io/device-plugin": "true"}))
    ]
    seen = {"nodes": nodes, "answers": {one["name"]: {"problem": "none"} for one in nodes}}
    seen |= {"gpu_plugins": [{**CHART, "node": one["name"]} for one in nodes]}
    run = fleet.mixed("status", faults=[fault(fleet.servers, "k3s_observe", seen)])
    words = said(run)
    assert run.code == 0, run.logged or run.said
    assert "nvidia.com/gpu: 0 of 1 used, by gpus/nvdp" in words
    assert words.count("two device plugins: NVIDIA's device plugin (DaemonSet nvdp in namespace gpus)") == 1


def test_gpu_operator_on_a_board_does_not_stop_site_yml_which_labels_the_board(tmp_path: Path) -> None:
    fleet = Mixed(tmp_path)
    there: Answer = {**OPERATED, "operator": True, "selector": {}, "terms": None, "nodes": [BOARDS[0]]}
    run = fleet.mixed("site", faults=[fault(fleet.servers, "k3s_nodes", {"gpu_plugins": [there]})])
    assert run.code == 0, run.logged or run.said
    labels = {one["name"]: one["labels"] for _, module, one in run.calls if module == "k3s_node"}
    given = {name: found.get("nvidia.com/gpu.deploy.operands") for name, found in labels.items()}
    assert given == {PLAIN: None, **dict.fromkeys(BOARDS, "false")}


def test_host_of_another_kind_is_refused_and_so_is_a_word_that_is_no_kind(tmp_path: Path) -> None:
    fleet = Mixed(tmp_path)
    run = fleet.mixed(
        "preflight",
        f"--limit={PLAIN}",
        "--extra-vars=jetson_k3s_host_kind=board k3s_container_runtime=docker",
    )
    assert (run.code, "[error] not-a-jetson" in said(run)) == (2, True), run.said
    inventory = fleet.site.root / "site/inventory"
    inventory.write_text(inventory.read_text().replace("kind=plain", "kind=plian"))
    # Also of a host outside of the run, of which Ansible validates nothing.
    run = fleet.mixed("preflight", f"--limit={BOARDS[0]}")
    assert (run.code, f"jetson_k3s_host_kind of {PLAIN} is plian" in said(run)) == (2, True), run.said

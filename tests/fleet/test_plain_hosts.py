# SPDX-License-Identifier: Apache-2.0
"""The playbooks over a plain server and boards: each host gets the steps of its kind.

Tasks that run once for the boards must not depend on a plain host that the inventory names before them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.ansible_core import NEWEST, OLDEST, core
from tests.fleet.fleet import TIMEOUT_SECONDS
from tests.fleet.scripted import Fleet, said
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

    def mixed(self, playbook: str, *arguments: str, line: str = NEWEST) -> Run:
        settings = self.settings([]) | {"SCRIPTED_PLAIN": PLAIN}
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

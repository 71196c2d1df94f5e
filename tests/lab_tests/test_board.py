# SPDX-License-Identifier: Apache-2.0
"""A virtual board is what the playbooks and the plugin find on a real one."""

from collections.abc import Iterator

import pytest

from tests import boards
from tests.lab import board, bundle, lab, ssh
from tests.lab.board import Board
from tools.process import run

pytestmark = pytest.mark.lab


def sh(on: Board, command: str) -> str:
    options = [word for option in ssh.options(on.lab) for word in ("-o", option)]
    argv = ["ssh", "-F", "none", *options, "-i", str(ssh.key_path(on.lab)), f"jetson@{on.address}", command]
    return run(argv, timeout=60).stdout.strip()


@pytest.fixture(scope="module")
def boards_up() -> Iterator[list[Board]]:
    """A Xavier NX under JetPack 5 (nvgpu, a platform device) and a Thor under JetPack 7 (a PCI device)."""
    with pytest.MonkeyPatch.context() as patch:
        # Takes minutes with an empty cache, and nothing here installs anything from it.
        patch.setattr(bundle, "write", lambda _directory, **_options: None)
        with lab.fresh("labtest", ("xaviernx-jp5", "thor5000-jp70")) as up:
            yield up


@pytest.fixture
def xavier(boards_up: list[Board]) -> Board:
    return boards_up[0]


@pytest.fixture
def thor(boards_up: list[Board]) -> Board:
    return boards_up[1]


@pytest.fixture
def changed(xavier: Board) -> Iterator[Board]:
    yield xavier
    board.set_state(xavier, "ready")


@pytest.mark.parametrize("name", ["xavier", "thor"])
def test_the_simulated_tegra_is_at_its_true_paths(name: str, request: pytest.FixtureRequest) -> None:
    one: Board = request.getfixturevalue(name)
    fixture = boards.load()[one.type]
    assert sh(one, "cat /sys/devices/soc0/family") == "Tegra"
    assert sh(one, "tr -d '\\0' < /sys/firmware/devicetree/base/model") == fixture.data["dt_model"]
    assert sh(one, "cat /etc/nv_tegra_release") == fixture.data["nv_tegra_release"].strip()
    device = sh(one, f"readlink -f /sys/class/devfreq/{fixture.data['devfreq']}/device")
    assert device == f"/sys/{fixture.gpu_device}"
    nodes = sorted(f"/dev/{node}" for node in (*fixture.nodes_always, *fixture.nodes_after_poweron))
    assert sorted(sh(one, f"ls -d {' '.join(nodes)}").split()) == nodes
    assert f"{fixture.memory_bytes // 1024} kB" in sh(one, "head -1 /proc/meminfo")


def test_the_machine_below_does_not_shine_through(xavier: Board) -> None:
    fixture = boards.load()[xavier.type]
    assert sh(xavier, "ls /sys/class/devfreq") == fixture.data["devfreq"]
    assert len(sh(xavier, "ls /sys/class/thermal").split()) == len(fixture.data["thermal"])
    assert sh(xavier, "ls /sys/firmware") == "devicetree"
    assert sh(xavier, "ls /sys/bus/pci/devices") == ""
    assert "eth0" in sh(xavier, "ls /sys/class/net")


def test_a_state_is_seen_at_once_and_outlives_a_reboot(changed: Board) -> None:
    fixture = boards.load()[changed.type]
    board.set_state(changed, "dead")
    assert sh(changed, "cat /sys/devices/gpu.0/gpu_powered_on; ls /sys/class/devfreq") == "off"
    board.reboot(changed)
    assert sh(changed, "cat /sys/devices/gpu.0/gpu_powered_on") == "off"
    assert sh(changed, f"ls /dev/{fixture.nodes_after_poweron[0]} 2>/dev/null || echo none") == "none"
    board.set_state(changed, "ready")
    assert sh(changed, "cat /sys/devices/gpu.0/gpu_powered_on") == "on"
    assert (
        sh(changed, f"ls /dev/{fixture.nodes_after_poweron[0]}") == f"/dev/{fixture.nodes_after_poweron[0]}"
    )

# SPDX-License-Identifier: Apache-2.0
"""Emulated boards: arm64 machines with a kernel of their own and a device tree that it has read.

The unchanged site.yml makes one of them a node, with the arm64 images; others show that the board is known by
its device tree. `make acceptance-arm64` runs this, nothing else does: the processor is emulated.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tegra_device_plugin.detection import detect

from images.arm64 import build as plugin
from tests import boards
from tests.acceptance.cluster import Cluster, starts, wait_until
from tests.acceptance.command import run_here
from tests.acceptance.playbook import PlaybookRun, reports_dir, run_playbook
from tests.lab import inventory, lab
from tests.lab.paths import CHECKOUT, lab_dir
from tests.lab.vm.machine import Machine

pytestmark = [pytest.mark.lab, pytest.mark.arm64]

LAB = "arm64"
TYPE = "orinnano-jp6"
NAME = "jetson-1"
PLAYBOOK_SECONDS = 3000
CLUSTER_SECONDS = 300
# The oldest JetPack that boots with UEFI, and a board whose GPU is on PCI: no GPU node in the device tree.
OTHER_TYPES = ("xaviernx-jp5", "thor5000-jp70")
# Of a pod's sandbox: pkg/kubelet/dockershim/docker_sandbox.go, defaultSandboxOOMAdj.
SANDBOX_OOM_SCORE = -998
# All that Docker 20.10 knows: the last one is CAP_AUDIT_READ, 37 (include/uapi/linux/capability.h).
EVERY_CAPABILITY = (1 << 38) - 1


@contextmanager
def emulated(name: str, kind: str) -> Iterator[Machine]:
    """A fresh emulated board in a lab of its own, of which nothing is left in the end."""
    lab.down(name)
    try:
        (fresh,) = lab.up_graded(name, [kind], [lab.ARM64])
        assert isinstance(fresh, Machine)
        interface = Path("/sys/class/net", fresh.qemu.interface)
        assert interface.exists()
        yield fresh
    finally:
        lab.down(name)
    assert not lab_dir(name).exists()
    assert not interface.exists(), "QEMU still runs: the interface lives as long"


@pytest.fixture(scope="module")
def board() -> Iterator[Machine]:
    """The board that becomes a node."""
    with emulated(LAB, TYPE) as fresh:
        yield fresh


def site(*arguments: str) -> PlaybookRun:
    """Run site.yml, which takes longer on such a board than elsewhere."""
    return run_playbook(LAB, "site.yml", *arguments, timeout_seconds=PLAYBOOK_SECONDS)


@pytest.fixture(scope="module")
def first_run(board: Machine) -> PlaybookRun:
    """The first run of site.yml."""
    assert board.running
    return site()


@pytest.fixture(scope="module")
def cluster(board: Machine, first_run: PlaybookRun) -> Cluster:
    """The cluster of this board alone."""
    assert first_run.returncode == 0, first_run.output
    return Cluster([board])


def the_kernel_knows_the_board(board: Machine) -> None:
    """Compare what the kernel read at boot with the board's data."""
    fixture = boards.load()[board.type]
    assert board.exec("uname", "-m") == "aarch64"
    tree = "/proc/device-tree"
    assert board.exec("cat", f"{tree}/model").rstrip("\0") == fixture.data["dt_model"]
    listed = board.exec("cat", f"{tree}/compatible").rstrip("\0").split("\0")
    assert listed == fixture.data["dt_compatible"]
    # The simulated tree has no processors; the one that the kernel has read must.
    assert "arm,cortex-a76" in board.exec("cat", f"{tree}/cpus/cpu@0/compatible")


def facts_of_ansible(name: str, directory: Path) -> Any:
    """What the role jetson_facts gathers on the board."""
    said = run_here(
        str(Path(sys.executable).with_name("ansible")),
        f"--inventory={lab_dir(name) / 'inventory.ini'}",
        "--become",
        "--module-name=jetson_facts",
        f"--tree={directory}",
        "k3s_cluster",
        ANSIBLE_LIBRARY=str(CHECKOUT / "roles/jetson_facts/library"),
        ANSIBLE_MODULE_UTILS=str(CHECKOUT / "roles/jetson_facts/module_utils"),
    )
    assert said.returncode == 0, said.stdout
    return json.loads((directory / NAME).read_text())["ansible_facts"]["jetson"]


def facts_of_the_plugin(board: Machine) -> Any:
    """What the plugin's arm64 image detects on the board, without the runtime's or the kubelet's help."""
    board.load_image(inventory.bundle_path(board.lab) / "tegra-device-plugin-arm64.tar.gz")
    mounts = [f"--volume={path}:/host{path}:ro" for path in ("/sys", "/dev", "/etc/nv_tegra_release")]
    restricted = ("--rm", "--read-only", "--cap-drop=ALL", "--network=none")
    detect = ("detect", "--host-root=/host", "--output=json")
    return json.loads(board.exec("docker", "run", *restricted, *mounts, plugin.reference(), *detect))


@pytest.fixture(scope="module")
def described() -> dict[str, str]:
    """The bundle's description, which names the images."""
    found: dict[str, str] = yaml.safe_load((inventory.bundle_path(LAB) / "bundle.yml").read_text())
    return found


def test_first_run_makes_the_emulated_board_a_gpu_node(
    board: Machine, first_run: PlaybookRun, cluster: Cluster
) -> None:
    the_kernel_knows_the_board(board)
    assert cluster.allocatable() == {NAME: 1}
    assert "Result = PASS" in first_run.output
    assert "Insufficient nvidia.com/gpu" in first_run.output
    report = json.loads((reports_dir(LAB) / f"{NAME}.json").read_text())
    assert (report["ok"], report["failures"]) == (True, [])
    assert {check["status"] for check in report["checks"]} <= {"passed", "skipped"}


def test_everything_that_runs_there_is_arm64(
    board: Machine, cluster: Cluster, described: dict[str, str]
) -> None:
    for image in ("plugin_image", "device_query_image", "pause_image"):
        architecture = board.exec(
            "docker", "image", "inspect", "--format={{.Architecture}}", described[image]
        )
        assert architecture == "arm64", image
    assert (
        json.loads(cluster.kubectl("version", "--output=json"))["serverVersion"]["platform"] == "linux/arm64"
    )


def test_plugin_in_its_pod_reads_the_device_tree_of_the_kernel(board: Machine, cluster: Cluster) -> None:
    fixture = boards.load()[TYPE]
    inside = ("python3.11", "-m", "tegra_device_plugin", "detect", "--host-root=/host", "--output=json")
    pod = str(cluster.plugin_pod(NAME))
    found = json.loads(cluster.kubectl("--namespace=kube-system", "exec", pod, "--", *inside))
    assert (found["platform"], found["model"], found["soc"]) == (
        "tegra",
        fixture.data["dt_model"],
        fixture.soc,
    )
    assert found["gpu"]["state"] == "ready"
    evidence = {entry["source"]: entry["detail"] for entry in found["evidence"]}
    assert evidence["/sys/firmware/devicetree/base/compatible"] == " ".join(fixture.data["dt_compatible"])


def test_what_containers_ask_for_is_applied_where_nothing_is_clamped(
    board: Machine, cluster: Cluster, described: dict[str, str]
) -> None:
    privileged = {"securityContext": {"privileged": True}}
    cluster.create_sleeper("privileged", NAME, described["device_query_image"], privileged)
    wait_until(lambda: cluster.phase("privileged") == "Running", "the privileged pod runs", CLUSTER_SECONDS)
    of_pod = "--filter=label=io.kubernetes.pod.name=privileged"
    kinds = {
        kind: board.exec(
            "docker", "ps", "--quiet", of_pod, f"--filter=label=io.kubernetes.docker.type={kind}"
        )
        for kind in ("container", "podsandbox")
    }
    process = {
        kind: board.exec("docker", "inspect", "--format={{.State.Pid}}", one) for kind, one in kinds.items()
    }
    assert int(board.exec("cat", f"/proc/{process['podsandbox']}/oom_score_adj")) == SANDBOX_OOM_SCORE
    has = int(board.exec("awk", "/^CapEff:/ {print $2}", f"/proc/{process['container']}/status"), base=16)
    assert has & EVERY_CAPABILITY == EVERY_CAPABILITY
    assert "clamped" not in board.exec("cat", "/var/log/nvidia-container-runtime.log")
    cluster.kubectl("delete", "pod", "privileged")
    wait_until(
        lambda: not board.exec("docker", "ps", "--quiet", of_pod), "its containers end", CLUSTER_SECONDS
    )


def test_second_run_changes_and_restarts_nothing(board: Machine, cluster: Cluster) -> None:
    before = starts([board])
    second = site("--extra-vars=gpu_verify_mode=undisturbed")
    assert second.returncode == 0, second.output
    assert second.recap[NAME].changed == 0, second.output
    assert starts([board]) == before


@pytest.mark.parametrize("kind", OTHER_TYPES)
def test_board_is_known_by_the_device_tree_that_its_kernel_has_read(kind: str, tmp_path: Path) -> None:
    fixture = boards.load()[kind]
    boards.build(fixture, tmp_path / "board")
    expected = detect(tmp_path / "board").as_dict()
    with emulated(f"{LAB}-detect", kind) as one:
        the_kernel_knows_the_board(one)
        found = facts_of_the_plugin(one)
        gathered = facts_of_ansible(one.lab, tmp_path / "facts")
    for key in ("platform", "soc", "l4t", "jetpack", "module", "model"):
        assert found[key] == expected[key], key
    for key in ("chip", "compute_capability", "state", "sysfs", "device_nodes"):
        assert found["gpu"][key] == json.loads(json.dumps(expected["gpu"][key])), key
    assert (gathered["arch"], gathered["soc"], gathered["l4t"]) == ("aarch64", fixture.soc, fixture.l4t)
    assert gathered["jetpack"] == fixture.jetpack

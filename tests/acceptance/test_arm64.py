# SPDX-License-Identifier: Apache-2.0
"""An emulated board: an arm64 machine with a kernel of its own and a device tree that it has read.

The unchanged site.yml makes it a node, with the arm64 images. `make acceptance-arm64` runs this, nothing else
does: the processor is emulated.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tegra_device_plugin.board.detection import detect

from tests import boards
from tests.acceptance.cluster import Cluster, wait_until
from tests.acceptance.playbook import PlaybookRun, reports_dir, run_playbook
from tests.lab import inventory, lab, lab_dir
from tests.lab.vm.machine import Machine

pytestmark = [pytest.mark.lab, pytest.mark.arm64]

LAB, NAME = "arm64", "jetson-1"
TYPE = "orinnano-jp6"
PLAYBOOK_SECONDS = 3000
CLUSTER_SECONDS = 300
# Of a pod's sandbox: pkg/kubelet/dockershim/docker_sandbox.go, defaultSandboxOOMAdj.
SANDBOX_OOM_SCORE = -998
# All that Docker 20.10 knows: the last one is CAP_AUDIT_READ, 37 (include/uapi/linux/capability.h).
EVERY_CAPABILITY = (1 << 38) - 1


@pytest.fixture(scope="module")
def board() -> Iterator[Machine]:
    """A fresh emulated board, of which nothing is left in the end."""
    lab.down(LAB)
    try:
        (fresh,) = lab.up(LAB, [TYPE], grade=lab.ARM64)
        assert isinstance(fresh, Machine)
        interface = Path("/sys/class/net", fresh.interface)
        assert interface.exists()
        yield fresh
    finally:
        lab.down(LAB)
    assert not lab_dir(LAB).exists()
    assert not interface.exists(), "QEMU still runs: the interface exists as long"


def site(*arguments: str) -> PlaybookRun:
    return run_playbook(LAB, "site.yml", *arguments, timeout_seconds=PLAYBOOK_SECONDS)


@pytest.fixture(scope="module")
def first_run(board: Machine) -> PlaybookRun:
    assert board.running
    return site()


@pytest.fixture(scope="module")
def cluster(board: Machine, first_run: PlaybookRun) -> Cluster:
    assert first_run.returncode == 0, first_run.why
    return Cluster([board])


@pytest.fixture(scope="module")
def described() -> dict[str, str]:
    found: dict[str, str] = yaml.safe_load((inventory.bundle_path(LAB) / "bundle.yml").read_text())
    return found


def test_first_run_makes_the_emulated_board_a_gpu_node(
    board: Machine, first_run: PlaybookRun, cluster: Cluster
) -> None:
    assert board.exec("uname", "-m") == "aarch64"
    # The simulated tree has no processors; the one that the kernel has read must.
    assert "arm,cortex-a76" in board.exec("cat", "/proc/device-tree/cpus/cpu@0/compatible")
    assert cluster.allocatable() == {NAME: 1}
    assert "Result = PASS" in first_run.output
    assert "Insufficient nvidia.com/gpu" in first_run.output
    report = json.loads((reports_dir(LAB) / f"{NAME}.json").read_text())
    assert (report["ok"], report["failures"]) == (True, [])
    assert {check["status"] for check in report["checks"]} <= {"passed", "skipped"}


def test_everything_that_runs_there_is_arm64(
    board: Machine, cluster: Cluster, described: dict[str, str]
) -> None:
    for image in ("plugin_image", "pause_image"):
        architecture = board.exec(
            "docker", "image", "inspect", "--format={{.Architecture}}", described[image]
        )
        assert architecture == "arm64", image
    assert (
        json.loads(cluster.kubectl("version", "--output=json"))["serverVersion"]["platform"] == "linux/arm64"
    )


def test_plugin_in_its_pod_reads_the_device_tree_of_the_kernel(cluster: Cluster, tmp_path: Path) -> None:
    fixture = boards.load()[TYPE]
    boards.build(fixture, tmp_path)
    expected = json.loads(json.dumps(detect(tmp_path).as_dict()))
    inside = ("python3.11", "-m", "tegra_device_plugin", "detect", "--host-root=/host", "--output=json")
    pod = str(cluster.plugin_pod(NAME))
    found = json.loads(cluster.kubectl("--namespace=kube-system", "exec", pod, "--", *inside))
    for key in ("platform", "soc", "l4t", "jetpack", "module", "model"):
        assert found[key] == expected[key], key
    for key in ("chip", "compute_capability", "state", "sysfs"):
        assert found["gpu"][key] == expected["gpu"][key], key
    evidence = {entry["source"]: entry["detail"] for entry in found["evidence"]}
    assert evidence["/sys/firmware/devicetree/base/compatible"] == " ".join(fixture.data["dt_compatible"])


def test_what_containers_ask_for_is_applied_where_nothing_is_clamped(
    board: Machine, cluster: Cluster, described: dict[str, str]
) -> None:
    privileged = {"securityContext": {"privileged": True}}
    cluster.create_sleeper("privileged", NAME, privileged)
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

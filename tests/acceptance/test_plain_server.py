# SPDX-License-Identifier: Apache-2.0
"""A plain host is the K3s server of three boards with different JetPacks.

The tests are one story, in the order of the file. The plain host is the same container as a board, without a
SIMULATED Tegra and without anything of NVIDIA's. Its pods run in K3s' containerd, those of the boards in
Docker.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.cluster import Cluster, starts
from tests.acceptance.openpgp import keyring
from tests.acceptance.playbook import PlaybookRun, cluster_status, reports_dir, run_playbook
from tests.acceptance.site import later_bundle
from tests.lab import board, lab_dir
from tests.lab.board import Board
from tests.lab.k3s import named_version

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "plain"
TYPES = (board.PLAIN, "agxorin-jp6", "xaviernx-jp5", "thor5000-jp70")
PLAIN, *BOARDS = NAMES = ("jetson-1", "jetson-2", "jetson-3", "jetson-4")
BACKUPS = lab_dir(LAB) / "backups"
LABEL = "jetson-k3s.github.io/device-plugin"


@pytest.fixture(scope="module")
def key() -> Iterator[Path]:
    with keyring() as public:
        yield public


@pytest.fixture(scope="module")
def cluster(boards: list[Board]) -> Cluster:
    return Cluster(boards)


def report(name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((reports_dir(LAB) / f"{name}.json").read_text())
    return found


def refusal(host: str, kind: str) -> str:
    """What preflight says of a host that is declared to be of this kind."""
    given = f"--extra-vars=jetson_k3s_host_kind={kind} k3s_container_runtime=docker"
    run = run_playbook(LAB, "site.yml", f"--limit={host}", given)
    assert (run.returncode != 0, run.recap[host].changed) == (True, 0), run.output
    return " ".join(run.output.split())


def upgrade() -> PlaybookRun:
    return run_playbook(LAB, "upgrade.yml", f"--extra-vars=jetson_k3s_bundle={later_bundle(LAB)}")


def test_host_of_the_other_kind_is_refused_before_anything_is_changed(boards: list[Board]) -> None:
    said = refusal(PLAIN, "board")
    assert "[error] not-a-jetson" in said
    assert "set jetson_k3s_host_kind=plain for this host in the inventory" in said
    said = refusal(BOARDS[0], "plain")
    assert "[error] declared-plain-but-jetson" in said
    assert "Take jetson_k3s_host_kind out of the variables of this host" in said
    assert "must be one of: board, plain, got: plian" in refusal(PLAIN, "plian")


def test_one_run_makes_the_cluster_and_proves_the_gpus_of_the_boards(
    boards: list[Board], cluster: Cluster
) -> None:
    run = run_playbook(LAB, "site.yml").checked()
    assert set(run.recap) == set(NAMES)
    assert cluster.allocatable() == {PLAIN: 0, **dict.fromkeys(BOARDS, 1)}
    runtimes = {
        node["metadata"]["name"]: node["status"]["nodeInfo"]["containerRuntimeVersion"].partition(":")[0]
        for node in cluster.nodes()
    }
    assert runtimes == {PLAIN: "containerd", **dict.fromkeys(BOARDS, "docker")}
    labelled = {node["metadata"]["name"]: node["metadata"]["labels"].get(LABEL) for node in cluster.nodes()}
    assert labelled == {PLAIN: None, **dict.fromkeys(BOARDS, "true")}
    assert [cluster.plugin_pod(name) is not None for name in NAMES] == [False, True, True, True]
    assert boards[0].exec("sh", "-c", "ls /etc/docker/daemon.json /usr/bin/nvidia-*", check=False) == ""


def test_second_run_changes_and_restarts_nothing(boards: list[Board], cluster: Cluster) -> None:
    before = starts(boards)
    run_playbook(LAB, "site.yml").unchanged()
    assert starts(boards) == before


def test_verification_starts_no_pod_on_the_plain_host_and_says_that_its_node_is_ready(
    cluster: Cluster,
) -> None:
    run = run_playbook(LAB, "verify.yml", "--extra-vars=gpu_verify_mode=full").checked()
    assert f"{PLAIN}: PASSED, 1 of 1 checked" in run.output
    assert "4 of 4 hosts have passed" in " ".join(run.output.split())
    found = report(PLAIN)
    assert (found["ok"], found["board"]["kind"]) == (True, "plain")  # type: ignore[index]
    checks: list[dict[str, str]] = found["checks"]  # type: ignore[assignment]
    assert [(check["id"], check["status"]) for check in checks] == [("node-ready", "passed")]
    assert report(BOARDS[0])["board"]["kind"] == "board"  # type: ignore[index]


def test_status_and_drift_include_the_plain_host(cluster: Cluster, tmp_path: Path) -> None:
    found = cluster_status(LAB, tmp_path)
    assert {node["name"]: node["kind"] for node in found["nodes"]} == {
        PLAIN: "plain",
        **dict.fromkeys(BOARDS, "board"),
    }
    assert {node["name"]: node["problem"] for node in found["nodes"]} == dict.fromkeys(NAMES)
    run = run_playbook(LAB, "drift.yml")
    assert run.returncode == 0, run.why


def test_backup_upgrade_and_restore(boards: list[Board], cluster: Cluster, key: Path) -> None:
    cluster.kubectl("create", "configmap", "before")
    run_playbook(LAB, "backup.yml", f"--extra-vars=k3s_backup_recipient={key}").checked()
    (backup,) = BACKUPS.iterdir()
    cluster.kubectl("create", "configmap", "after")
    run_playbook(LAB, "restore.yml", f"--extra-vars=k3s_backup_file={backup}").checked()
    names = cluster.kubectl("get", "configmaps", "--output=name").split()
    assert ("configmap/before" in names, "configmap/after" in names) == (True, False)
    assert cluster.allocatable() == {PLAIN: 0, **dict.fromkeys(BOARDS, 1)}

    run = upgrade().checked()
    assert f"upgraded: {', '.join(NAMES)}" in " ".join(run.output.split())
    assert set(cluster.kubelets().values()) == {named_version("2")}
    assert cluster.allocatable() == {PLAIN: 0, **dict.fromkeys(BOARDS, 1)}


def test_reset_leaves_nothing_of_k3s(boards: list[Board]) -> None:
    run_playbook(LAB, "reset.yml", f"--extra-vars=k3s_reset_cluster={PLAIN}").checked()
    for one in boards:
        left = one.exec("sh", "-c", "ls -d /var/lib/rancher/k3s /usr/local/bin/k3s", check=False)
        assert left == "", one.name
    assert boards[0].exec("sh", "-c", "ps -eo comm | grep -c '^containerd-shim'", check=False) == "0"

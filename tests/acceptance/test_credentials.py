# SPDX-License-Identifier: Apache-2.0
"""What lets people and boards into a cluster: kubeconfigs, and certificates that end."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cluster import Cluster, starts
from tests.acceptance.playbook import PlaybookRun, cluster_status, run_playbook
from tests.lab import k3s, lab, lab_dir
from tools.cache import CHECKOUT

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "credentials"
UNDISTURBED = {"gpu_verify_mode": "undisturbed"}
# For how many days K3s signs (rancher/dynamiclistener, cert/cert.go).
DAYS_VARIABLE = "CATTLE_NEW_SIGNED_CERT_EXPIRATION_DAYS"
# The unit reads it, so K3s' next start does.
ENVIRONMENT = "/etc/default/k3s"
# The longest that Kubernetes signs for by itself (kube-controller-manager's --cluster-signing-duration).
MOST_DAYS = 365
NOBODY = "10.207.255.254"  # an address of the labs' range that no lab has
BOOTSTRAP = {"token-id": "q4bjus", "token-secret": "7k1x6b1fz0d72prp", "expiration": "2040-01-15T09:00:00Z"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster whose certificates are valid for 30 days."""
    with lab.fresh(LAB, ("agxorin-jp6", "orinnano-jp6")) as boards:
        boards[0].exec("sh", "-c", f"echo {DAYS_VARIABLE}=30 > {ENVIRONMENT}")
        play("site.yml").checked()
        yield Cluster(boards)


def play(playbook: str, *arguments: str, **variables: object) -> PlaybookRun:
    return run_playbook(LAB, playbook, f"--extra-vars={json.dumps(UNDISTURBED | variables)}", *arguments)


def changed(run: PlaybookRun) -> int:
    assert run.returncode == 0, run.why
    return sum(recap.changed for recap in run.recap.values())


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("operator") / "kubeconfig.yaml"


def let_in(path: Path, **variables: object) -> PlaybookRun:
    return play("kubeconfig.yml", kubeconfig_file=str(path), kubeconfig_user="anna", **variables)


def as_anna(cluster: Cluster, path: Path, *what: str) -> str:
    """What kubectl says with this kubeconfig."""
    server = cluster.boards[0]
    server.exec("sh", "-c", 'umask 077; echo "$1" > /root/anna', "sh", path.read_text())
    said = server.exec("k3s", "kubectl", "--kubeconfig=/root/anna", *what, check=False)
    server.exec("rm", "/root/anna")
    return said


def may(cluster: Cluster, path: Path, *what: str) -> bool:
    answer = as_anna(cluster, path, "auth", "can-i", *what).split()[0]
    assert answer in ("yes", "no")
    return answer == "yes"


def documented() -> list[str]:
    """The arguments of kubectl with which the handbook shows a kubeconfig."""
    begin = "kubectl --kubeconfig kubeconfig-jetson-1.yaml "
    (line,) = (
        line for line in (CHECKOUT / "docs/access.md").read_text().splitlines() if line.startswith(begin)
    )
    return line.removeprefix(begin).split()


def test_operator_may_look_and_no_more(cluster: Cluster, kubeconfig: Path) -> None:
    run = let_in(kubeconfig, kubeconfig_days=30)
    assert changed(run) > 0
    said = " ".join(run.output.split())
    assert "lets anna in as view, until " in said
    assert "(30 days). " in said
    assert "Asked for" not in said
    assert kubeconfig.stat().st_mode & 0o777 == 0o600
    assert may(cluster, kubeconfig, "list", "pods", "--all-namespaces")
    assert "tegra-device-plugin" in as_anna(cluster, kubeconfig, *documented())
    assert f"node/{cluster.boards[0].name}" in as_anna(cluster, kubeconfig, "get", "nodes", "--output=name")
    assert not may(cluster, kubeconfig, "get", "secrets")
    assert not may(cluster, kubeconfig, "create", "deployments")
    assert cluster.kubectl("get", "certificatesigningrequests", "--output=name") == ""
    assert "PRIVATE KEY" not in run.output


def test_server_decides_how_long_a_certificate_may_last(cluster: Cluster, kubeconfig: Path) -> None:
    run = let_in(kubeconfig.with_name("longer.yaml"), kubeconfig_days=MOST_DAYS + 35)
    assert changed(run) > 0
    said = f"({MOST_DAYS} days). Asked for were {MOST_DAYS + 35} days, but the server decides."
    assert said in " ".join(run.output.split())


def test_second_run_for_the_operator_changes_nothing(cluster: Cluster, kubeconfig: Path) -> None:
    before = kubeconfig.read_text()
    assert changed(let_in(kubeconfig)) == 0
    assert kubeconfig.read_text() == before


def test_role_is_changed_and_taken_away(cluster: Cluster, kubeconfig: Path) -> None:
    assert changed(let_in(kubeconfig, kubeconfig_role="edit")) == 1
    assert may(cluster, kubeconfig, "create", "deployments")
    assert [changed(let_in(kubeconfig, jetson_k3s_state="absent")) for _ in range(2)] == [1, 0]
    assert not may(cluster, kubeconfig, "list", "pods")


def days(status: dict[str, Any]) -> dict[str, dict[str, int]]:
    return {
        board["name"]: {one["name"]: one["days"] for one in board["certificates"]}
        for board in status["boards"]
    }


def test_status_says_what_ends_when(cluster: Cluster, tmp_path: Path) -> None:
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": "bootstrap-token-q4bjus", "namespace": "kube-system"},
        "stringData": BOOTSTRAP,
    }
    cluster.apply(secret)
    status = cluster_status(LAB, tmp_path)
    left = days(status)
    assert left["jetson-1"] | left["jetson-2"] == left["jetson-1"], "a server has all that an agent has"
    assert {left["jetson-1"]["serving-kube-apiserver"], left["jetson-2"]["serving-kubelet"]} == {29}
    assert left["jetson-2"]["server-ca"] == 3649
    assert status["tokens"] == [
        {
            "name": "q4bjus",
            "description": "",
            "ends": BOOTSTRAP["expiration"],
            "days": status["tokens"][0]["days"],
        }
    ]
    assert BOOTSTRAP["token-secret"] not in (tmp_path / "status.json").read_text()


def test_status_names_boards_that_do_not_answer(cluster: Cluster, tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.ini"
    text = (lab_dir(LAB) / "inventory.ini").read_text()
    inventory.write_text(text.replace("[agent]\n", f"[agent]\njetson-9 ansible_host={NOBODY}\n"))
    run = run_playbook(LAB, "status.yml", inventory=inventory).checked()
    assert "jetson-9 not known: the board did not answer" in " ".join(run.output.split())
    assert run.output.count("ends soon: K3s renews it when it starts") == 2
    assert BOOTSTRAP["token-secret"] not in run.output


def test_short_certificates_that_are_meant_to_be_short_restart_nothing(cluster: Cluster) -> None:
    before = starts(cluster.boards)
    assert changed(play("site.yml")) == 0
    assert starts(cluster.boards) == before


def test_certificates_that_end_soon_are_renewed_by_a_restart_in_turn(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.boards[0].exec("rm", ENVIRONMENT)
    docker = ("systemctl", "show", "--property=MainPID", "docker")
    before = [board.exec(*docker) for board in cluster.boards]
    run = play("site.yml")
    assert changed(run) > 0
    assert [board.exec(*docker) for board in cluster.boards] == before
    for board in cluster_status(LAB, tmp_path)["boards"]:
        # That of the port may come back from its Secret, for up to 6 hours.
        leaves = {one["name"]: one["days"] for one in board["certificates"] if one["kind"] == "leaf"}
        assert {name: left for name, left in leaves.items() if left != 364} == {}
    assert changed(play("site.yml")) == 0


def server_files(cluster: Cluster) -> str:
    """Checksums of the token and of all that K3s signs with."""
    return cluster.boards[0].exec("sh", "-c", "cd /var/lib/rancher/k3s/server; sha256sum token tls/*ca*")


@pytest.mark.parametrize(
    ("playbook", "refusal"),
    [
        ("rotate_token.yml", f"K3s {k3s.VERSION} cannot change its token"),
        ("rotate_ca.yml", f"K3s {k3s.VERSION} takes no other CAs"),
    ],
)
def test_k3s_that_cannot_rotate_is_left_as_it_is(cluster: Cluster, playbook: str, refusal: str) -> None:
    before = starts(cluster.boards), server_files(cluster)
    run = play(playbook)
    assert run.returncode != 0
    assert refusal in " ".join(run.output.split())
    assert (starts(cluster.boards), server_files(cluster)) == before

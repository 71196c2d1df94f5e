# SPDX-License-Identifier: Apache-2.0
"""Two boards join a K3s cluster that this project did not make: by SSH to its server, then by a kubeconfig.

The tests are one story, in the order of the file. The server is a plain host on which K3s was installed by
hand. What its cluster has before, while and after the boards are in it is compared.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.acceptance.cluster import Cluster, starts, wait_until
from tests.acceptance.playbook import PlaybookRun, cluster_status, run_playbook
from tests.acceptance.site import later_bundle
from tests.lab import board, bundle, inventory, k3s, lab_dir
from tests.lab.board import Board
from tools.cache import CHECKOUT
from tools.engine import docker

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "existing"
TYPES = (board.PLAIN, "agxorin-jp6", "orinnano-jp6")
SERVER, *BOARDS = ("jetson-1", "jetson-2", "jetson-3")
SECRET = "agents-of-the-owner-0123456789"
# As K3s' own script writes it, in short.
UNIT = f"""[Unit]
Description=Lightweight Kubernetes of somebody

[Install]
WantedBy=multi-user.target

[Service]
Type=notify
KillMode=process
Delegate=yes
TimeoutStartSec=0
Restart=always
ExecStart=/usr/local/bin/k3s server --agent-token {SECRET}
"""
# Kinds whose objects come and go by themselves.
UNSTEADY = ("events", "leases", "componentstatuses")
PLUGIN = {"DaemonSet/kube-system/tegra-device-plugin"}
OF_NODES = {
    f"{kind}/{place}"
    for name in BOARDS
    for kind, place in (
        ("Node", f"/{name}"),
        ("CSINode", f"/{name}"),
        ("Secret", f"kube-system/{name}.node-password.k3s"),
    )
}
FILES = "find /etc /usr/local/bin /var/lib/rancher/k3s/server/manifests -type f -exec sha256sum {} + | sort"
LEFT = "ls -d /var/lib/rancher/k3s /etc/rancher/k3s/config.yaml.d/50-jetson-k3s.yaml /usr/local/bin/k3s"


@pytest.fixture(scope="module")
def cluster(boards: list[Board]) -> Cluster:
    """The cluster of somebody: one server, and no board."""
    server, source = boards[0], inventory.bundle_path(LAB)
    docker("cp", str(source / "k3s-amd64"), f"{server.container}:/usr/local/bin/k3s")
    images = "/var/lib/rancher/k3s/agent/images"
    server.exec("mkdir", "-p", images, "/etc/rancher/k3s")
    docker("cp", str(source / "k3s-airgap-images-amd64.tar.gz"), f"{server.container}:{images}/images.tar.gz")
    settings = yaml.safe_dump(k3s.SERVER_SETTINGS | {"node-name": SERVER})
    for path, text in (("/etc/rancher/k3s/config.yaml", settings), ("/etc/systemd/system/k3s.service", UNIT)):
        server.exec("sh", "-c", 'printf "%s" "$1" > "$2"', "sh", text, path)
    server.exec("systemctl", "daemon-reload")
    server.exec("systemctl", "enable", "--now", "k3s")
    found = Cluster(boards)
    wait_until(lambda: SERVER in found.kubelets(), "the node of the server", 60)
    found.kubectl("create", "configmap", "owners", "--from-literal=is=mine")
    return found


@pytest.fixture(scope="module")
def before(boards: list[Board], cluster: Cluster) -> tuple[set[str], str, set[str]]:
    """The objects, the server's files and its processes before a board joins."""
    wait_until(lambda: "ConfigMap/kube-system/kube-root-ca.crt" in objects(cluster), "the CA", 60)
    return objects(cluster), boards[0].exec("sh", "-c", FILES), starts(boards[:1])


def objects(cluster: Cluster) -> set[str]:
    """All objects of the cluster but the pods and what the DaemonSet makes of itself."""
    kinds = cluster.kubectl("api-resources", "--verbs=list", "--output=name").split()
    steady = [
        kind for kind in kinds if kind.partition(".")[0] not in (*UNSTEADY, "pods", "controllerrevisions")
    ]
    line = '{range .items[*]}{.kind}/{.metadata.namespace}/{.metadata.name}{"\\n"}{end}'
    return set(
        cluster.kubectl("get", ",".join(steady), "--all-namespaces", f"--output=jsonpath={line}").split()
    )


def token(server: Board, user: str = "node", secret: str = SECRET) -> str:
    own = server.exec("cat", "/var/lib/rancher/k3s/server/token")
    return f"{own.partition('::')[0]}::{user}:{secret}"


def write_inventory(boards: list[Board], way: str, **settings: str) -> None:
    """The inventory of this lab, without a group [server]."""
    text = inventory.render(LAB, boards).partition("[server:vars]")[0]
    text = text.replace("[server]", "[existing_server]" if way == "ssh" else "[unused]")
    text = text.replace("[k3s_cluster:children]\nserver\n", "[k3s_cluster:children]\n")
    text = text.replace("[k3s_cluster:vars]", "[all:vars]")
    given = {
        "k3s_server_url": f"https://{boards[0].address}:6443",
        "k3s_agent_token": token(boards[0]),
    } | settings
    lines = "".join(f"{name}={value}\n" for name, value in given.items())
    (lab_dir(LAB) / "inventory.ini").write_text(f"{text}[k3s_cluster:vars]\n{lines}")


def refusal(*arguments: str, playbook: str = "preflight.yml") -> str:
    run = run_playbook(LAB, playbook, *arguments)
    assert run.returncode != 0, run.output
    assert {recap.changed for recap in run.recap.values()} <= {0}, run.output
    return " ".join(run.output.split())


def join(boards: list[Board], cluster: Cluster, before: tuple[set[str], str, set[str]]) -> None:
    """The boards join, their GPU is proved, and a second run changes nothing."""
    run_playbook(LAB, "site.yml").checked()
    assert cluster.allocatable() == {SERVER: 0, **dict.fromkeys(BOARDS, 1)}
    assert objects(cluster) - before[0] == PLUGIN | OF_NODES
    assert before[0] <= objects(cluster)
    run_playbook(LAB, "site.yml").unchanged()
    assert "2 of 2" in " ".join(run_playbook(LAB, "verify.yml").checked().output.split())
    drift = run_playbook(LAB, "drift.yml")
    assert drift.returncode == 0, drift.why
    assert boards[0].exec("sh", "-c", FILES) == before[1]
    assert starts(boards[:1]) == before[2]


def pods_on_boards(cluster: Cluster) -> list[str]:
    pods = cluster.get("pods", "--all-namespaces")["items"]
    return [pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName") in BOARDS]


def leave(boards: list[Board], cluster: Cluster, before: tuple[set[str], str, set[str]]) -> None:
    """After a reset of the boards the cluster is as it was."""
    run_playbook(LAB, "reset.yml").checked()
    wait_until(lambda: objects(cluster) == before[0], "the cluster is as it was before", 60)
    # Kubernetes removes the pods of a deleted node after 40 s (pkg/controller/podgc).
    wait_until(lambda: not pods_on_boards(cluster), "no pod of the boards is left", 120)
    for one in boards[1:]:
        assert one.exec("sh", "-c", LEFT, check=False) == "", one.name
    assert boards[0].exec("sh", "-c", FILES) == before[1]
    assert starts(boards[:1]) == before[2]


def upgrade(name: str, minors: int = 0) -> PlaybookRun:
    directory = later_bundle(LAB)
    if minors:
        directory = inventory.bundle_path(LAB).with_name(name)
        bundle.write(directory, minors=minors)
    return run_playbook(LAB, "upgrade.yml", f"--extra-vars=jetson_k3s_bundle={directory}")


def test_wrong_token_is_refused_before_a_board_is_changed(
    boards: list[Board], cluster: Cluster, before: tuple[set[str], str, set[str]]
) -> None:
    write_inventory(boards, "ssh", k3s_agent_token=token(boards[0], "server"))
    assert "is a token of servers" in refusal()
    write_inventory(boards, "ssh", k3s_agent_token=f"K10{'0' * 64}::node:{SECRET}")
    assert "the join token is for another cluster" in refusal()
    write_inventory(boards, "ssh", k3s_agent_token=token(boards[0], secret="of-another"))
    assert "refuses the join token" in refusal()
    write_inventory(boards, "ssh", k3s_server_url=f"https://{boards[1].address}:6443")
    assert "[error] existing-url-unreachable" in refusal()
    assert objects(cluster) == before[0]


def test_boards_join_by_ssh_to_one_server(
    boards: list[Board], cluster: Cluster, before: tuple[set[str], str, set[str]], tmp_path: Path
) -> None:
    write_inventory(boards, "ssh")
    join(boards, cluster, before)
    found = cluster_status(LAB, tmp_path)
    assert {node["name"]: node["problem"] for node in found["nodes"] if node["name"] in BOARDS} == (
        dict.fromkeys(BOARDS)
    )


def test_boards_are_upgraded_and_never_beyond_their_server(boards: list[Board], cluster: Cluster) -> None:
    before = cluster.kubelets()
    run = upgrade("next-minor", minors=1)
    assert run.returncode != 0, run.output
    assert "[error] existing-skew" in run.output
    assert cluster.kubelets() == before
    run = upgrade("newer").checked()
    assert f"upgraded: {', '.join(BOARDS)}" in " ".join(run.output.split())
    assert cluster.kubelets() == before | dict.fromkeys(BOARDS, k3s.named_version("2"))
    assert cluster.allocatable() == {SERVER: 0, **dict.fromkeys(BOARDS, 1)}


def test_playbooks_for_servers_are_refused(boards: list[Board], cluster: Cluster) -> None:
    for playbook in ("backup.yml", "restore.yml", "rotate_ca.yml", "rotate_token.yml", "kubeconfig.yml"):
        assert "This inventory joins a cluster that exists already" in refusal(playbook=playbook)


def test_after_a_reset_the_cluster_is_as_it_was(
    boards: list[Board], cluster: Cluster, before: tuple[set[str], str, set[str]]
) -> None:
    leave(boards, cluster, before)


@pytest.fixture(scope="module")
def kubectl() -> Iterator[Path]:
    """The kubectl of the controller: that of K3s."""
    directory = lab_dir(LAB) / "bin"
    directory.mkdir(exist_ok=True)
    (directory / "kubectl").write_text(f'#!/bin/sh\nexec {k3s.k3s()} kubectl "$@"\n')
    (directory / "kubectl").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
        yield directory / "kubectl"


@pytest.fixture(scope="module")
def kubeconfig(boards: list[Board], cluster: Cluster, kubectl: Path) -> Path:
    """A kubeconfig with the rights of the manifest, as docs/existing-clusters.md makes it."""
    rights = (CHECKOUT / "plugin/deploy/existing-cluster/rights.yaml").read_text()
    boards[0].exec("sh", "-c", 'printf "%s" "$1" | k3s kubectl apply --filename=-', "sh", rights)
    made = cluster.kubectl(
        "--namespace=kube-system", "create", "token", "jetson-k3s", "--duration=24h"
    ).strip()
    ca, path = lab_dir(LAB) / "ca.crt", lab_dir(LAB) / "jetson.kubeconfig"
    ca.write_text(boards[0].exec("cat", "/var/lib/rancher/k3s/server/tls/server-ca.crt"))
    path.unlink(missing_ok=True)
    url = f"https://{boards[0].address}:6443"
    for arguments in (
        ("set-cluster", "k3s", f"--server={url}", f"--certificate-authority={ca}", "--embed-certs"),
        ("set-credentials", "jetson-k3s", f"--token={made}"),
        ("set-context", "jetson-k3s", "--cluster=k3s", "--user=jetson-k3s"),
        ("use-context", "jetson-k3s"),
    ):
        subprocess.run([kubectl, f"--kubeconfig={path}", "config", *arguments], check=True)
    return path


def test_missing_right_is_named_before_a_board_is_changed(
    boards: list[Board], cluster: Cluster, kubeconfig: Path
) -> None:
    write_inventory(boards, "kubeconfig", k3s_existing_kubeconfig=str(kubeconfig))
    role = ("--namespace=kube-system", "role", "jetson-k3s")
    rules = cluster.get(*role)["rules"]
    fewer = json.dumps({"rules": [rule for rule in rules if rule["resources"] != ["daemonsets"]]})
    cluster.kubectl("patch", *role, "--type=merge", f"--patch={fewer}")
    said = refusal()
    assert "[error] existing-rights" in said
    assert "create daemonsets.apps in kube-system" in said
    assert "kubectl apply -f plugin/deploy/existing-cluster/rights.yaml" in said
    cluster.kubectl("patch", *role, "--type=merge", f"--patch={json.dumps({'rules': rules})}")
    run_playbook(LAB, "preflight.yml").unchanged()


def test_boards_join_by_a_kubeconfig_with_the_least_rights_and_leave(
    boards: list[Board],
    cluster: Cluster,
    before: tuple[set[str], str, set[str]],
    kubeconfig: Path,
    tmp_path: Path,
) -> None:
    now = (objects(cluster), *before[1:])
    join(boards, cluster, now)
    found = cluster_status(LAB, tmp_path)
    assert {node["name"] for node in found["nodes"]} == {SERVER, *BOARDS}
    for one in boards[1:]:
        text = kubeconfig.read_text().partition("token: ")[2].strip()
        grep = one.exec("grep", "-rlF", text, "/etc", "/var/lib/rancher", "/root", "/tmp", check=False)
        assert grep == "", one.name
    run = upgrade("newer").checked()
    assert f"upgraded: {', '.join(BOARDS)}" in " ".join(run.output.split())
    leave(boards, cluster, now)

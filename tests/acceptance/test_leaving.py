# SPDX-License-Identifier: Apache-2.0
"""An agent leaves its cluster and comes back, and another board takes its name."""

from collections.abc import Iterator

import pytest

from tests.acceptance.cluster import Cluster, wait_until
from tests.acceptance.playbook import run_playbook
from tests.lab import lab, workloads
from tests.lab.board import Board

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "leaving"
# What K3s and its pods have on a board besides their directories.
TRACES = """grep --extended-regexp '/var/lib/kubelet|/var/lib/rancher/k3s|/run/k3s' /proc/mounts
find /usr/local/bin -name 'k*'; systemctl list-unit-files --no-legend 'k3s*'
pgrep --list-name 'k3s|kubelet|etcd|kube-'"""
# 60-virtual-board.yaml is the lab's.
LEFT = [
    "/etc/rancher/k3s",
    "/etc/rancher/k3s/config.yaml",
    "/etc/rancher/k3s/config.yaml.d",
    "/etc/rancher/k3s/config.yaml.d/60-virtual-board.yaml",
    "/etc/rancher/node",
    "/etc/rancher/node/password",
]
PLACES = ("/var/lib/rancher", "/var/lib/kubelet", "/run/jetson-k3s", "/etc/rancher")
OWN_CONTAINER = ("docker", "inspect", "--format={{.Id}} {{.State.StartedAt}}", "mine")


@pytest.fixture(scope="module")
def boards() -> Iterator[list[Board]]:
    with lab.fresh(LAB, ("agxorin-jp6", "nano-jp4")) as up:
        run_playbook(LAB, "site.yml").checked()
        yield up


def test_reset_leaves_what_is_the_owners_and_nothing_of_k3s(boards: list[Board]) -> None:
    agent, cluster = boards[1], Cluster(boards)
    agent.exec("docker", "run", "--detach", "--name=mine", workloads.PAUSE_IMAGE)
    own = agent.exec(*OWN_CONTAINER)
    agent.exec("sh", "-c", "iptables --new-chain MINE && iptables --append INPUT --jump MINE")
    agent.exec("sh", "-c", "echo 'node-label: [mine=true]' > /etc/rancher/k3s/config.yaml")
    cluster.create_sleeper("abandoned", agent.name, {})
    wait_until(lambda: cluster.phase("abandoned") == "Running", "the pod that nobody deletes runs", 60)

    run_playbook(LAB, "reset.yml", f"--limit={agent.name}").checked()
    assert agent.exec(*OWN_CONTAINER) == own
    assert agent.exec("docker", "ps", "--all", "--format={{.Names}}") == "mine"
    filters = agent.exec("sh", "-c", "iptables-save; ip6tables-save")
    assert "KUBE-" not in filters and "flannel" not in filters.lower()
    assert "-A INPUT -j MINE" in filters
    assert "-j DOCKER" in filters
    assert agent.exec("sh", "-c", TRACES, check=False) == ""
    assert sorted(agent.exec("find", *PLACES, "-mindepth", "1", check=False).split()) == LEFT


def test_agent_that_is_reset_alone_is_forgotten_by_its_cluster(boards: list[Board]) -> None:
    server, agent = boards
    assert set(Cluster(boards).allocatable()) == {server.name}
    secrets = Cluster(boards).kubectl("--namespace=kube-system", "get", "secrets", "--output=name")
    assert f"{agent.name}.node-password" not in secrets
    assert f"{server.name}.node-password" in secrets

    again = run_playbook(LAB, "reset.yml", f"--limit={agent.name}")
    assert again.recap[agent.name].changed == 0, again.output

    nobody = run_playbook(LAB, "forget.yml", f"--limit={agent.name}")
    assert nobody.recap[agent.name].failed == 1, nobody.output
    assert f"has no node of this name, so nothing was changed. It has {server.name}." in " ".join(
        nobody.output.split()
    )


def test_new_board_takes_the_name_of_one_that_is_gone(boards: list[Board]) -> None:
    server, agent = boards
    run_playbook(LAB, "site.yml").checked()
    # What a new card has not: the password by which the server knows the old board.
    run_playbook(LAB, "reset.yml", f"--limit={agent.name}", "--extra-vars=k3s_reset_leave=false").checked()
    agent.exec("rm", "/etc/rancher/node/password")

    refused = run_playbook(LAB, "site.yml")
    assert refused.recap[agent.name].failed == 1, refused.output
    assert "Node password rejected" in refused.output

    forgotten = run_playbook(LAB, "forget.yml", f"--limit={agent.name}")
    assert forgotten.recap[agent.name].changed == 1, forgotten.output
    run_playbook(LAB, "site.yml").checked()
    assert Cluster(boards).allocatable() == {server.name: 1, agent.name: 1}


def test_a_new_first_server_does_not_take_the_agents_away(boards: list[Board]) -> None:
    server, agent = boards
    asked = run_playbook(LAB, "forget.yml", f"--limit={server.name}")
    assert "is the server that would be asked, so it cannot be forgotten" in " ".join(asked.output.split())
    kept = "/etc/systemd/system/k3s.service"
    server.exec("sh", "-c", f"systemctl stop k3s && mv {kept} /root/ && systemctl daemon-reload")
    run = run_playbook(LAB, "site.yml")
    server.exec("sh", "-c", f"mv /root/k3s.service {kept} && systemctl daemon-reload && systemctl start k3s")
    assert f"{server.name} would begin a cluster and has no K3s, while {agent.name} (agent)" in run.output
    assert {name: recap.changed for name, recap in run.recap.items()} == {server.name: 0, agent.name: 0}
    run_playbook(LAB, "site.yml").checked()


def test_nobody_is_forgotten_without_being_named(boards: list[Board]) -> None:
    run = run_playbook(LAB, "forget.yml")
    assert run.returncode != 0
    assert "--limit" in run.output
    assert len(Cluster(boards).allocatable()) == len(boards)

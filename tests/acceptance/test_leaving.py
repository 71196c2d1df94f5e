# SPDX-License-Identifier: Apache-2.0
"""An agent leaves its cluster and comes back, and another board takes its name.

What the playbooks change on a board, and leave there, is compared with docs/changes.md.
"""

import re
from collections.abc import Iterator

import pytest

from tests.acceptance.cluster import Cluster, wait_until
from tests.acceptance.playbook import run_playbook
from tests.docs.changes import changes
from tests.lab import lab, workloads
from tests.lab.board import Board

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "leaving"
# What K3s and its pods have on a board besides their directories.
TRACES = """grep --extended-regexp '/var/lib/kubelet|/var/lib/rancher/k3s|/run/k3s' /proc/mounts
find /usr/local/bin -name 'k*'; systemctl list-unit-files --no-legend 'k3s*'
pgrep --list-name 'k3s|kubelet|etcd|kube-'"""
OWN_CONTAINER = ("docker", "inspect", "--format={{.Id}} {{.State.StartedAt}}", "mine")
PAGE = changes()
ROOTS = """/boot /etc /home /opt /root /srv /usr /var/backups /var/lib /var/lib/rancher
/run/cdi /run/jetson-k3s /run/jetson-k3s-lock /var/log/containers /var/log/pods"""
# Not compared, and why.
NOISE = {
    "*/__pycache__": "caches of Python",
    "/var/lib/containerd": "content of Docker",
    "/var/lib/docker": "content of Docker",
    "/var/lib/simulated-tegra": "hardware of the lab",
    "/var/lib/systemd": "times of timers, seeds",
}
PRUNED = " -o ".join(f"-path '{path}'" for path in NOISE)
FIND = f"find {' '.join(ROOTS.split())} -xdev '(' {PRUNED} ')' -prune -o"
# cri-dockerd names no port for its streaming server, so Linux chooses one.
EPHEMERAL = "32768-60999/tcp"
# Details and name of each file, package, kernel setting and open port, with a tab between.
SNAPSHOT = rf"""{FIND} -printf '%y %u:%g %m %l\t%p\n' 2>/dev/null
{FIND} -type f -exec sha256sum '{{}}' + 2>/dev/null | sed 's/  /\t/'
dpkg-query --show --showformat '${{db:Status-Abbrev}} ${{Version}}\tpackage ${{Package}}\n'
sysctl --all 2>/dev/null | sed --quiet --regexp-extended 's/^([^ ]+) = (.*)/\2\tsysctl \1/p'
ss -Htuln | awk '$5 !~ /^127|^.::1/ {{n = split($5, part, ":"); port = part[n] "/" $1
  print "open\t" (part[n] < 32768 ? port : "{EPHEMERAL}")}}'"""
# Counters, and settings of single interfaces.
UNSTEADY = re.compile(
    r"sysctl (fs\.|kernel\.(random|pty|ns_last_pid)|net\.ipv[46]\.(conf|neigh)\.(?!all|default))"
)

Snapshot = set[tuple[str, str]]


def snapshot(board: Board) -> Snapshot:
    lines = board.exec("sh", "-c", SNAPSHOT, check=False, timeout=300).splitlines()
    return {
        (details, name)
        for details, name in (line.rsplit("\t", 1) for line in lines)
        if not UNSTEADY.match(name)
    }


def unnamed(before: Snapshot, after: Snapshot, *, reset: bool = False) -> list[str]:
    """Return what differs and is not on the page, after a reset also what the page does not say stays."""
    there = {name for _, name in after}
    expected = [change for change in PAGE if change.stays or not reset]

    def is_named(name: str) -> bool:
        among = expected if name in there else PAGE
        parent = any(path.startswith(f"{name}/") for change in among for path in change.paths)
        inside = any(change.covers(name) for change in among)
        return parent or inside or any(change.names(name.removeprefix("sysctl ")) for change in among)

    return sorted({name for _, name in before ^ after if not is_named(name)})


@pytest.fixture(scope="module")
def bare() -> Iterator[list[Board]]:
    with lab.fresh(LAB, ("agxorin-jp6", "nano-jp4")) as up:
        yield up


@pytest.fixture(scope="module")
def before(bare: list[Board]) -> dict[str, Snapshot]:
    return {board.name: snapshot(board) for board in bare}


@pytest.fixture(scope="module")
def boards(bare: list[Board], before: dict[str, Snapshot]) -> list[Board]:
    run_playbook(LAB, "site.yml").checked()
    return bare


def test_each_change_of_site_is_on_the_page(boards: list[Board], before: dict[str, Snapshot]) -> None:
    for board in boards:
        after = snapshot(board)
        assert after != before[board.name]
        found = unnamed(before[board.name], after)
        assert found == [], "\n".join(found)


def test_reset_leaves_what_is_the_owners_and_nothing_of_k3s(
    boards: list[Board], before: dict[str, Snapshot]
) -> None:
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
    left = unnamed(before[agent.name], snapshot(agent), reset=True)
    assert left == ["/etc/rancher/k3s/config.yaml"], "\n".join(left)


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
    alone = (f"--limit={agent.name}", "--extra-vars=jetson_k3s_confirm=without-server")
    run_playbook(LAB, "reset.yml", *alone).checked()
    agent.exec("rm", "/etc/rancher/node/password")

    refused = run_playbook(LAB, "site.yml")
    assert refused.recap[agent.name].failed == 1, refused.output
    assert "Node password rejected" in refused.output

    forgotten = run_playbook(LAB, "forget.yml", f"--limit={agent.name}")
    assert forgotten.recap[agent.name].changed == 1, forgotten.output
    run_playbook(LAB, "site.yml").checked()
    assert Cluster(boards).allocatable() == {server.name: 1, agent.name: 1}


def test_nobody_is_forgotten_without_being_named_nor_the_only_server(boards: list[Board]) -> None:
    server = boards[0]
    for arguments, words in (
        ((), "--limit"),
        ((f"--limit={server.name}",), "no server would be left, so the node cannot be deleted"),
    ):
        run = run_playbook(LAB, "forget.yml", *arguments)
        assert (run.returncode != 0, words in " ".join(run.output.split())) == (True, True), run.output
    assert len(Cluster(boards).allocatable()) == len(boards)


def test_reset_of_the_cluster_is_confirmed_and_leaves_what_the_page_says(
    boards: list[Board], before: dict[str, Snapshot]
) -> None:
    server = boards[0]
    refused = run_playbook(LAB, "reset.yml")
    assert (refused.returncode != 0, sum(one.changed for one in refused.recap.values())) == (True, 0)
    assert f"-e k3s_reset_cluster={server.name}" in " ".join(refused.output.split()), refused.output
    assert len(Cluster(boards).allocatable()) == len(boards)
    run_playbook(LAB, "reset.yml", f"--extra-vars=k3s_reset_cluster={server.name}").checked()
    assert server.exec("sh", "-c", TRACES, check=False) == ""
    left = unnamed(before[server.name], snapshot(server), reset=True)
    assert left == [], "\n".join(left)

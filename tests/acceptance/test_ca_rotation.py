# SPDX-License-Identifier: Apache-2.0
"""Other CAs for a cluster that runs: nodes, pods and clients go on, and a run that was cut off is ended.

The tests are one story, in the order of the file, on a server and an agent.
"""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.acceptance import real_k3s
from tests.acceptance.cas import AGENT_CA, DATA, SERVER_CA, is_trusted_by_openssl, read
from tests.acceptance.cluster import Cluster, starts, wait_until
from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.lab import workloads
from tests.lab.board import Board
from tests.lab.k3s_standin import certs, tokens
from tests.lab.paths import lab_dir
from tests.lab.vm.machine import Machine

pytestmark = [pytest.mark.lab, pytest.mark.fleet]

LAB = "ca-rotation"
TOKEN_FILE = f"{DATA}/server/token"
STAGED = f"{DATA}/server/jetson-k3s-rotate-ca"
POD = "long-job"
READY_SECONDS = 60
NOBODY = "10.207.255.253"  # an address of the labs' range that no lab has


@dataclass(frozen=True)
class Before:
    """The cluster as it was, with what only knows its first CA."""

    cluster: Cluster
    ca: str
    issuers: list[str]
    kubeconfig: Path
    pod: tuple[str, int] | None

    @property
    def server(self) -> Board:
        board = self.cluster.boards[0]
        assert isinstance(board, Board)
        return board

    def server_ca(self) -> str:
        """The bundle that the server shows now."""
        return read(self.server, SERVER_CA)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Before]:
    """A cluster whose agent runs a pod with a GPU, and a kubeconfig of its operator."""
    kubeconfig = tmp_path_factory.mktemp("operator") / "kubeconfig.yaml"
    with real_k3s.fresh(LAB, ("agxorin-jp6", "orinnano-jp6")) as boards:
        # Its tests with pods bring the image of the pods below.
        for run in (run_playbook(LAB, "site.yml"), play("kubeconfig.yml", **operator(kubeconfig))):
            assert run.returncode == 0, run.why
        cluster = Cluster(boards)
        hold(cluster, POD, "jetson-2")
        yield Before(
            cluster, read(boards[0], SERVER_CA), issuers(boards[0]), kubeconfig, cluster.started(POD)
        )


def operator(path: Path) -> dict[str, str]:
    """What kubeconfig.yml is told."""
    return {"kubeconfig_file": str(path), "kubeconfig_user": "anna"}


def play(playbook: str, *arguments: str, **variables: object) -> PlaybookRun:
    """Run a playbook with these variables."""
    extra = {"gpu_verify_mode": "undisturbed"} | variables
    return run_playbook(LAB, playbook, f"--extra-vars={json.dumps(extra)}", *arguments)


def words(run: PlaybookRun) -> str:
    """What a run has said, however its lines were broken."""
    return " ".join(run.output.split())


def changed(run: PlaybookRun) -> int:
    """How much a run has changed that went well."""
    assert run.returncode == 0, run.why
    return sum(recap.changed for recap in run.recap.values())


def hold(cluster: Cluster, pod: str, node: str) -> None:
    """Have a pod with a GPU run on a node."""
    cluster.hold_gpu(pod, node, workloads.device_query_image())
    wait_until(lambda: cluster.started(pod) is not None, f"{pod} runs", READY_SECONDS)


def ready(cluster: Cluster) -> list[str]:
    """The nodes that are Ready."""
    lines = cluster.kubectl("get", "nodes", "--no-headers").splitlines()
    return sorted(line.split()[0] for line in lines if line.split()[1] == "Ready")


def lets_in(before: Before) -> bool:
    """Whether the operator's kubeconfig may list pods; kubectl is on the server."""
    before.server.exec("sh", "-c", 'umask 077; echo "$1" > /root/anna', "sh", before.kubeconfig.read_text())
    may = before.server.exec("k3s", "kubectl", "--kubeconfig=/root/anna", "auth", "can-i", "list", "pods")
    before.server.exec("rm", "/root/anna")
    return may.strip() == "yes"


def issuers(board: Board | Machine) -> list[str]:
    """Who has signed the certificates by which a board's kubelet is known: K3s names each CA by its date."""
    show = ("openssl", "x509", "-noout", "-issuer", "-in")
    return [board.exec(*show, f"{DATA}/agent/{name}-kubelet.crt") for name in ("client", "serving")]


def test_check_mode_tells_of_it_and_changes_nothing(before: Before) -> None:
    since = starts(before.cluster.boards)
    run = play("rotate_ca.yml", "--check")
    assert changed(run) > 0
    assert run.recap["jetson-1"].changed > 0
    assert before.server_ca() == before.ca
    before.server.exec("test", "!", "-e", STAGED)
    assert starts(before.cluster.boards) == since


def test_board_that_does_not_answer_stops_it(before: Before, tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.ini"
    text = (lab_dir(LAB) / "inventory.ini").read_text()
    inventory.write_text(text.replace("[agent]\n", f"[agent]\njetson-9 ansible_host={NOBODY}\n"))
    run = run_playbook(LAB, "rotate_ca.yml", inventory=inventory)
    assert run.returncode != 0
    assert "jetson-9 did not answer or had a finding" in words(run)
    assert {run.recap[name].changed for name in ("jetson-1", "jetson-2")} == {0}
    assert before.server_ca() == before.ca


def test_board_is_not_left_out(before: Before) -> None:
    run = play("rotate_ca.yml", "--limit=jetson-1")
    assert run.returncode != 0
    assert "Run it without --limit" in words(run)


def test_token_that_names_the_old_ca_is_refused(before: Before, tmp_path: Path) -> None:
    variables = tmp_path / "token.yml"
    variables.write_text(f"k3s_token: {before.server.exec('cat', TOKEN_FILE).strip()}\n")
    run = play("rotate_ca.yml", f"--extra-vars=@{variables}")
    assert run.returncode != 0
    assert "in the inventory names the present CA (K10...)" in words(run)
    assert before.server_ca() == before.ca


def test_run_that_was_cut_off_twice_is_ended_by_the_same_command(before: Before) -> None:
    arguments = ('--extra-vars={"gpu_verify_mode": "undisturbed"}', "--diff", "-vv")

    def cut_off(moment: str) -> PlaybookRun:
        run = run_playbook(LAB, "rotate_ca.yml", *arguments, on_line=lambda line: line.startswith(moment))
        assert run.returncode != 0, run.output
        return run

    # K3s has got the new CAs, and does not use them yet.
    runs = [cut_off("TASK [k3s : Ensure the service is enabled and started]")]
    assert before.server_ca() == before.ca
    staged = read(before.server, f"{STAGED}/tls/server-ca.crt")
    # The server uses them, and the agent does not know of it.
    runs.append(cut_off("TASK [k3s : Ensure the agent has a token"))
    assert before.server_ca() == staged
    assert certs.split(staged.encode())[-1] == before.ca.encode()
    server, agent = [issuers(board) for board in before.cluster.boards]
    assert not set(server) & set(before.issuers)
    assert agent == before.issuers
    assert ready(before.cluster) == ["jetson-1", "jetson-2"], "the agent goes on with the old CA"
    runs.append(play("rotate_ca.yml", "--diff", "-vv"))
    assert changed(runs[-1]) > 0
    assert before.server_ca() == staged, "it is not changed a second time"
    before.server.exec("test", "!", "-e", STAGED)
    assert "Backups from before do not fit any more" in words(runs[-1])
    shown = [run.output for run in runs] + [
        board.exec("journalctl", "--no-pager") for board in before.cluster.boards
    ]
    secret = tokens.parse(before.server.exec("cat", TOKEN_FILE)).password
    assert not any("PRIVATE KEY" in text or secret in text for text in shown)


def test_nodes_and_pods_go_on(before: Before) -> None:
    cluster = before.cluster
    assert ready(cluster) == ["jetson-1", "jetson-2"]
    assert cluster.allocatable() == {"jetson-1": 1, "jetson-2": 1}
    assert cluster.started(POD) == before.pod
    hold(cluster, "new-job", "jetson-1")


def test_every_board_has_certificates_of_the_new_ca(before: Before) -> None:
    texts = {read(board, AGENT_CA) for board in before.cluster.boards}
    assert texts == {before.server_ca()}
    text = before.cluster.boards[1].exec("cat", "/etc/rancher/k3s/jetson-k3s.token")
    assert tokens.parse(text).ca_hash == tokens.ca_hash(before.server_ca().encode())
    server, agent = [issuers(board) for board in before.cluster.boards]
    assert agent == server
    assert not set(agent) & set(before.issuers)


def test_clients_of_before_are_let_in(before: Before) -> None:
    assert lets_in(before)
    assert is_trusted_by_openssl(before.server, before.ca)
    assert is_trusted_by_openssl(before.server, before.server_ca())


def test_second_run_changes_nothing(before: Before) -> None:
    since = starts(before.cluster.boards)
    run = play("rotate_ca.yml")
    assert changed(run) == 0
    assert "-e k3s_ca=again changes them once more" in words(run)
    assert starts(before.cluster.boards) == since


def test_backups_are_from_before_and_after(before: Before) -> None:
    assert len(before.server.exec("ls", "/var/backups/jetson-k3s").split()) == 2


def test_kubeconfig_gets_the_new_ca(before: Before) -> None:
    assert changed(play("kubeconfig.yml", **operator(before.kubeconfig))) > 0
    cluster = yaml.safe_load(before.kubeconfig.read_text())["clusters"][0]["cluster"]
    assert base64.b64decode(cluster["certificate-authority-data"]).decode() == before.server_ca()
    assert lets_in(before)


def test_old_ca_is_taken_away(before: Before) -> None:
    assert changed(play("rotate_ca.yml", k3s_ca="alone")) > 0
    assert len(certs.split(before.server_ca().encode())) == 2
    assert ready(before.cluster) == ["jetson-1", "jetson-2"]
    assert before.cluster.allocatable() == {"jetson-1": 1, "jetson-2": 1}
    assert before.cluster.started(POD) == before.pod
    assert not is_trusted_by_openssl(before.server, before.ca)
    assert lets_in(before), "the renewed kubeconfig is of the new CA"
    assert changed(play("rotate_ca.yml", k3s_ca="alone")) == 0

# SPDX-License-Identifier: Apache-2.0
"""A change of settings on a server and an agent: drift.yml names it, site.yml makes it, node by node.

drift.yml changes nothing. A change that restarts Docker or K3s stops at the first failure. At the end the
boards are behind a proxy with a password, and pull from a registry with another one.
"""

import ipaddress
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cluster import Cluster, starts, wait_until
from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.acceptance.site import Proxy, gateway, proxy, registry
from tests.lab import workloads
from tests.lab.board import Board
from tests.lab.k3s import SERVER_SETTINGS
from tests.lab.vm.machine import Machine
from tests.planted import PLANTED, leaked

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "settings"
# What the roles write on a board.
PLACES = "/etc/docker /etc/nvidia-container-runtime /etc/rancher /etc/systemd/system /usr/local/bin"
FILES = f"find {PLACES} -type f | sort | xargs sha256sum; ls /run/jetson-k3s; true"
CONFIG = "/etc/rancher/k3s/config.yaml.d/50-jetson-k3s.yaml"
TOKEN = "/etc/rancher/k3s/jetson-k3s.token"
OTHER_RUNTIME = "sed -i /default-runtime/s/nvidia/runc/ /etc/docker/daemon.json"
THIRTY_PODS = json.dumps({"k3s_server_config": SERVER_SETTINGS | {"kubelet-arg": ["max-pods=30"]}})
NOT_READY = "node.kubernetes.io/not-ready"
DAEMONSET = ("--namespace=kube-system", "daemonset/tegra-device-plugin")
SETTINGS = "k3s : Write K3s' configuration, unit and links"
RUNTIME = "nvidia_docker : Ensure daemon.json has the settings of the role"
JOINING = "k3s : Ensure the agent has a token that the server accepts"
LABELS = "k3s : Ensure the node is Ready and has its labels"
PLUGIN = "gpu_device_plugin : Apply the DaemonSets of plugin and DRA driver"
DOCKER = "nvidia_docker : Set iptables, the proxy and the toolkit's configuration"
# Only the proxy knows this name.
REGISTRY = "registry.site.example"
# An owner's own variables: one that the inventory says as well, and one that stays.
OWN_ENVIRONMENT = "HTTPS_PROXY=http://before.example:3128\nSOMEBODYS=1\n"
STARTED = ("systemctl", "show", "--property=ActiveEnterTimestampMonotonic", "--value")
FEWER_PODS = {
    "nvidia_docker_daemon_config": {"icc": True},
    "k3s_server_config": {"kubelet-arg": ["max-pods=40"]},
    "k3s_agent_config": {"kubelet-arg": ["max-pods=30"]},
}


@pytest.fixture(scope="module")
def cluster(boards: list[Board]) -> Cluster:
    run_playbook(LAB, "site.yml", "--skip-tags=gpu_verify").checked()
    return Cluster(boards)


def drift(directory: Path, *arguments: str) -> tuple[PlaybookRun, dict[str, Any]]:
    file = directory / "drift.json"
    run = run_playbook(LAB, "drift.yml", f"--extra-vars=jetson_k3s_drift_file={file}", *arguments)
    assert file.exists(), run.why
    return run, json.loads(file.read_text())


def state(cluster: Cluster) -> set[str]:
    """What must not change, a line for each: files, when services were started, and the cluster's objects."""
    described = {
        " ".join((item["kind"], item["metadata"]["name"], part, json.dumps(content)))
        for item in cluster.get("nodes,daemonsets,pods", "--all-namespaces")["items"]
        for part, content in (("labels", item["metadata"].get("labels")), ("spec", spec(item)))
    }
    lines = {f"{board.name} {line}" for board in cluster.boards for line in files(board).splitlines()}
    return lines | starts(cluster.boards) | described


def spec(item: dict[str, Any]) -> dict[str, Any]:
    """What an object is to be. Kubernetes takes the taint not-ready away some 5 s after the node is Ready."""
    taints = [taint for taint in item["spec"].get("taints", []) if taint["key"] != NOT_READY]
    return {**item["spec"], "taints": taints}


def files(board: Board | Machine) -> str:
    return board.exec("sh", "-c", FILES)


def gpu_label(cluster: Cluster, node: str) -> str:
    labels = cluster.get("node", node)["metadata"]["labels"]
    found: str = next(label for label in sorted(labels) if label.startswith("nvidia.com/gpu."))
    return found


def test_boards_as_the_inventory_says(cluster: Cluster, tmp_path: Path) -> None:
    before = state(cluster)
    run, found = drift(tmp_path)
    assert run.returncode == 0, run.why
    assert {recap.changed for recap in run.recap.values()} == {0}, run.output
    assert found == {"changes": [], "compared": ["jetson-1", "jetson-2"], "not_compared": {}}
    assert "Boards compared: 2 of 2." in run.output
    assert state(cluster) ^ before == set()


def test_what_somebody_has_changed_is_named_and_stays(cluster: Cluster, tmp_path: Path) -> None:
    server, agent = cluster.boards
    label = gpu_label(cluster, agent.name)
    server.exec("sh", "-c", OTHER_RUNTIME)
    agent.exec("sh", "-c", f"echo 'debug: true' >> {CONFIG}; echo another > {TOKEN}")
    cluster.kubectl("label", "node", agent.name, f"{label}-")
    rolling = json.dumps({"spec": {"updateStrategy": {"type": "RollingUpdate"}}})
    cluster.kubectl("patch", *DAEMONSET, f"--patch={rolling}")
    before = state(cluster)

    run, found = drift(tmp_path, f"--extra-vars={THIRTY_PODS}")
    assert run.returncode == 1, run.why
    assert state(cluster) ^ before == set()
    diffs = {(change["board"], change["task"]): json.dumps(change["diff"]) for change in found["changes"]}
    assert "/etc/docker/daemon.json" in diffs[server.name, RUNTIME]
    assert "max-pods=30" in diffs[server.name, SETTINGS]
    assert "debug: true" in diffs[agent.name, SETTINGS]
    assert label in diffs[agent.name, LABELS]
    assert "OnDelete" in diffs["(cluster)", PLUGIN]
    assert (agent.name, JOINING) in diffs
    assert (server.name, LABELS) not in diffs
    _, _, told = run.output.partition("WHAT DIFFERS")
    for board, task in diffs:
        assert any(line.startswith(board) and task in line for line in told.splitlines()), told
    password = server.exec("cat", "/var/lib/rancher/k3s/server/node-token").strip().rpartition(":")[2]
    assert password not in run.output + json.dumps(found)


def test_site_yml_changes_what_was_named(cluster: Cluster, tmp_path: Path) -> None:
    run_playbook(LAB, "site.yml", "--skip-tags=gpu_verify").checked()
    run, found = drift(tmp_path)
    assert (run.returncode, found["changes"]) == (0, []), run.why


def room(cluster: Cluster) -> list[int]:
    by_name = {node["metadata"]["name"]: int(node["status"]["capacity"]["pods"]) for node in cluster.nodes()}
    return [by_name[board.name] for board in cluster.boards]


def site(**variables: object) -> PlaybookRun:
    given = json.dumps({"gpu_verify_mode": "undisturbed"} | variables)
    return run_playbook(LAB, "site.yml", f"--extra-vars={given}")


def with_docker(**settings: object) -> PlaybookRun:
    return site(nvidia_docker_daemon_config=settings)


def started(boards: Sequence[Board | Machine], unit: str = "docker") -> list[int]:
    units = {board: "k3s-agent" if unit == "k3s" and board is not boards[0] else unit for board in boards}
    return [int(board.exec(*STARTED, units[board])) for board in boards]


def unschedulable(cluster: Cluster) -> list[str]:
    return [node["metadata"]["name"] for node in cluster.nodes() if node["spec"].get("unschedulable")]


def job(cluster: Cluster) -> str:
    return cluster.kubectl("get", "pods", "--selector=app=jobs", "--output=name")


def test_nodes_restart_docker_one_after_the_other(cluster: Cluster) -> None:
    cluster.create_jobs()
    before, pod = started(cluster.boards), job(cluster)
    with_docker(icc=True).checked()
    after = started(cluster.boards)
    assert before[0] < after[0] < after[1]
    assert unschedulable(cluster) == []
    assert cluster.allocatable() == {board.name: 1 for board in cluster.boards}
    # Moved, not ended where it was.
    assert job(cluster) != pod
    again = with_docker(icc=True)
    assert all(again.recap[board.name].changed == 0 for board in cluster.boards), again.output
    assert started(cluster.boards) == after


def test_nodes_restart_k3s_one_after_the_other_below_their_pods(cluster: Cluster) -> None:
    before, docker, pod = started(cluster.boards, "k3s"), started(cluster.boards), job(cluster)
    site(**FEWER_PODS).checked()
    after = started(cluster.boards, "k3s")
    assert before[0] < after[0] < after[1]
    assert room(cluster) == [40, 30]
    assert started(cluster.boards) == docker
    assert job(cluster) == pod


def test_setting_that_is_taken_out_of_the_inventory_goes_from_the_boards(cluster: Cluster) -> None:
    with_docker(icc=True).checked()
    assert room(cluster) == [110, 110]  # the kubelet's default


def test_no_board_after_the_one_that_failed_is_restarted(cluster: Cluster) -> None:
    before = started(cluster.boards)
    # dockerd before 23 cannot check a file, so it finds this at its start. Preflight does not know types.
    run = with_docker(icc="yes")
    assert run.returncode != 0
    assert "a changed setting needs a restart of Docker or K3s, and that went wrong" in run.output
    assert "cannot unmarshal string" in run.output
    assert started(cluster.boards)[1] == before[1]
    assert unschedulable(cluster) == []

    with_docker(icc=True).checked()
    assert unschedulable(cluster) == []
    wait_until(
        lambda: cluster.allocatable() == {board.name: 1 for board in cluster.boards}, "GPUs again", 120
    )
    after = started(cluster.boards)
    assert after[0] > before[0]
    assert after[1] == before[1]  # it has kept what the inventory says again


@pytest.fixture(scope="module")
def behind(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Proxy, str]]:
    """A proxy with a password, and a registry with another one, which the proxy alone reaches."""
    login, logins = f"fleet:{PLANTED['proxy']}", {REGISTRY: f"site:{PLANTED['token']}"}
    server = cluster.boards[0]
    assert isinstance(server, Board)
    with registry(tmp_path_factory.mktemp("registry")) as found:
        found.push(workloads.pause_archive(), workloads.PAUSE_IMAGE, "pause:1")
        with proxy(gateway(server), login, {REGISTRY: found.port}, logins) as made:
            yield made, f"{REGISTRY}:{found.port}"


def proxied(behind: tuple[Proxy, str]) -> dict[str, Any]:
    made, place = behind
    return {
        "jetson_k3s_proxy": {"http_proxy": made.url, "no_proxy": [".elsewhere.example"]},
        "k3s_registries": {"configs": {place: {"auth": {"username": "site", "password": PLANTED["token"]}}}},
        "nvidia_docker_daemon_config": {"insecure-registries": [place]},
    }


def environment(board: Board | Machine, unit: str) -> dict[str, str]:
    """The variables that the process of a unit has."""
    process = board.exec("systemctl", "show", "--property=MainPID", "--value", unit).strip()
    pairs = board.exec("cat", f"/proc/{process}/environ").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def services(cluster: Cluster) -> list[tuple[Board | Machine, str]]:
    server, agent = cluster.boards
    return [(server, "docker"), (agent, "docker"), (server, "k3s"), (agent, "k3s-agent")]


def test_drift_names_the_proxy_without_its_password(
    cluster: Cluster, behind: tuple[Proxy, str], tmp_path: Path
) -> None:
    server, agent = cluster.boards
    server.exec("sh", "-c", f"printf '{OWN_ENVIRONMENT}' > /etc/default/k3s; systemctl restart k3s")
    assert environment(server, "k3s")["HTTPS_PROXY"] == "http://before.example:3128"
    wait_until(lambda: cluster.allocatable() == {server.name: 1, agent.name: 1}, "GPUs again", 120)
    before = state(cluster)
    run, found = drift(tmp_path, f"--extra-vars={json.dumps(proxied(behind))}", "-vvv")
    assert run.returncode == 1, run.why
    assert state(cluster) ^ before == set()
    named = {(change["board"], change["task"]) for change in found["changes"]}
    assert {(one.name, task) for one in (server, agent) for task in (SETTINGS, DOCKER)} <= named
    assert leaked(json.dumps(found)) == []
    assert leaked(run.output) == []


def test_k3s_and_docker_have_the_proxy_and_pods_pull_through_it(
    cluster: Cluster, behind: tuple[Proxy, str]
) -> None:
    server, agent = cluster.boards
    made, place = behind
    run = site(**proxied(behind)).checked()
    assert leaked(run.output) == []
    assert unschedulable(cluster) == []
    for one, unit in services(cluster):
        has = environment(one, unit)
        assert (has["HTTP_PROXY"], has["HTTPS_PROXY"]) == (made.url, made.url)
        without = has["NO_PROXY"].split(",")
        assert {"127.0.0.0/8", "10.42.0.0/16", "10.43.0.0/16", ".svc", ".elsewhere.example"} <= set(without)
        networks = [ipaddress.ip_network(entry) for entry in without if "/" in entry and ":" not in entry]
        assert isinstance(agent, Board)
        assert any(ipaddress.ip_address(agent.address) in network for network in networks)
    assert environment(server, "k3s")["SOMEBODYS"] == "1"
    for number, one in enumerate((server, agent)):
        # Anybody may ask systemd for the variables of a unit, and read files that are not root's alone.
        shown = one.exec("runuser", "--user=nobody", "--", "systemctl", "show", "docker", "k3s", "k3s-agent")
        readable = one.exec(
            "sh",
            "-c",
            "runuser --user=nobody -- grep --recursive --files-with-matches planted /etc /run || :",
        )
        assert (leaked(shown), readable) == ([], "")
        pod = {"nodeName": one.name, "terminationGracePeriodSeconds": 0}
        arguments = (f"--image={place}/pause:1", "--image-pull-policy=Always", "--restart=Never")
        cluster.kubectl("run", f"pulled-{number}", *arguments, f"--overrides={json.dumps({'spec': pod})}")
    wait_until(
        lambda: {cluster.phase(f"pulled-{one}") for one in (0, 1)} == {"Running"}, "pulled images", 120
    )
    cluster.kubectl("delete", "pod", "pulled-0", "pulled-1")
    assert any(asked.startswith(f"GET http://{place}/v2/pause/") for asked in made.asked)
    again = site(**proxied(behind))
    assert all(again.recap[one.name].changed == 0 for one in cluster.boards), again.output


def test_proxy_and_passwords_go_from_the_boards_again(cluster: Cluster, behind: tuple[Proxy, str]) -> None:
    server, _ = cluster.boards
    run = site().checked()
    assert leaked(run.output) == []
    for one, unit in services(cluster):
        assert "NO_PROXY" not in environment(one, unit)
        left = one.exec(
            "sh", "-c", "grep --recursive --files-with-matches planted /etc /var/lib/kubelet || :"
        )
        assert left == ""
    assert environment(server, "k3s")["HTTPS_PROXY"] == "http://before.example:3128"
    site().unchanged()

# SPDX-License-Identifier: Apache-2.0
"""One server and two agents of three board generations: site.yml as a user runs it, and operations once.

Upgrades, and what an operation does when something fails, are in the stories of `make acceptance`.
"""

import json
import sys
from pathlib import Path

import pytest
from tegra_device_plugin.snapshot import snapshot_archive

from tests import boards as board_types
from tests.acceptance.cluster import RESOURCE, Cluster, starts, wait_until
from tests.acceptance.openpgp import keyring
from tests.acceptance.playbook import PlaybookRun, cluster_status, reports_dir, run_here, run_playbook
from tests.lab import board, lab_dir
from tests.lab.board import Board

pytestmark = pytest.mark.lab

LAB = "acceptance"
TYPES = ("agxorin-jp6", "xaviernx-jp5", "thor5000-jp70")
NAMES = ("jetson-1", "jetson-2", "jetson-3")
BACKUPS = lab_dir(LAB) / "backups"


@pytest.fixture(scope="module")
def first_run(boards: list[Board]) -> PlaybookRun:
    assert len(boards) == len(TYPES)
    return run_playbook(LAB, "site.yml", "--extra-vars=gpu_verify_mode=full", screen=True)


@pytest.fixture(scope="module")
def cluster(boards: list[Board], first_run: PlaybookRun) -> Cluster:
    assert first_run.returncode == 0, first_run.why
    return Cluster(boards)


@pytest.fixture(scope="module")
def holders(cluster: Cluster) -> dict[str, object]:
    pods = [f"holder-{name}" for name in NAMES]
    for pod, name in zip(pods, NAMES, strict=True):
        cluster.hold_gpu(pod, name)
    wait_until(lambda: all(cluster.phase(pod) == "Running" for pod in pods), "a pod on each node runs", 60)
    return {pod: cluster.started(pod) for pod in pods}


def test_first_run_makes_every_board_a_gpu_node(first_run: PlaybookRun, cluster: Cluster) -> None:
    assert set(first_run.recap) == set(NAMES)
    assert cluster.allocatable() == dict.fromkeys(NAMES, 1)


# Also with one board, and in a terminal: tests/fleet/test_screen.py.
def test_first_run_is_short_and_says_simulated(first_run: PlaybookRun, cluster: Cluster) -> None:
    assert len(first_run.output.splitlines()) <= 25, first_run.output
    for name in NAMES:
        assert f"{name}: PASSED, 10 of 11 checked, SIMULATED board" in first_run.output
    assert "WARNING" not in first_run.output


@pytest.mark.parametrize("name", NAMES)
def test_report_of_each_board_says_what_was_proven(cluster: Cluster, name: str) -> None:
    report = json.loads((reports_dir(LAB) / f"{name}.json").read_text())
    assert (report["ok"], report["failures"]) == (True, [])
    statuses = {check["id"]: check["status"] for check in report["checks"]}
    assert statuses == dict.fromkeys(statuses, "passed") | {"reboot": "skipped"}


def test_second_run_changes_and_restarts_nothing(boards: list[Board], cluster: Cluster) -> None:
    before = starts(boards)
    run_playbook(LAB, "site.yml").unchanged()
    assert starts(boards) == before


def test_agents_have_a_token_that_no_server_joins_with(
    boards: list[Board], cluster: Cluster, tmp_path: Path
) -> None:
    def secret(one: Board, path: str) -> str:
        return one.exec("cat", path).strip().rpartition(":")[2]

    server, *agents = boards
    of_servers = secret(server, "/var/lib/rancher/k3s/server/token")
    held = {secret(one, "/etc/rancher/k3s/jetson-k3s.token") for one in agents}
    assert held == {secret(server, "/var/lib/rancher/k3s/server/agent-token")}
    assert of_servers not in held
    search = ("grep", "--recursive", "--files-with-matches", of_servers, "/etc/rancher")
    assert [one.exec(*search, check=False) for one in agents] == ["", ""]
    assert cluster_status(LAB, tmp_path)["agents_join_with"] == "own"


def test_cluster_records_of_which_board_each_node_is(cluster: Cluster) -> None:
    for name in NAMES:
        secret = cluster.kubectl(
            "--namespace=kube-system", "get", "secret", f"{name}.node-password.k3s", "--output=json"
        )
        assert json.loads(secret)["metadata"]["annotations"]["jetson-k3s.github.io/board"] == name


@pytest.mark.usefixtures("holders")
def test_status_says_which_node_has_which_gpu_and_which_container_holds_it(tmp_path: Path) -> None:
    nodes = cluster_status(LAB, tmp_path)["nodes"]
    fixtures = board_types.load()
    assert [(node["name"], node["l4t"], node["jetpack"]) for node in nodes] == [
        (name, fixtures[kind].l4t, fixtures[kind].jetpack) for name, kind in zip(NAMES, TYPES, strict=True)
    ]
    for node in nodes:
        assert node["resources"] == [
            {"name": RESOURCE, "capacity": 1, "allocatable": 1, "used": 1, "free": 0, "sharing": "exclusive"}
        ]
        (holder,) = node["holders"]
        assert (holder["pod"], holder["container"]) == (f"holder-{node['name']}", "main")
        assert holder["held"] == [{"resource": RESOURCE, "device": "igpu0", "count": 1}]
        assert (holder["phase"], node["differences"]) == ("Running", [])


@pytest.mark.usefixtures("cluster")
def test_snapshot_says_elsewhere_what_the_board_is(boards: list[Board], tmp_path: Path) -> None:
    agent = boards[1]
    inventory = f"--inventory={lab_dir(LAB) / 'inventory.ini'}"
    settings = f"snapshot_directory={tmp_path} gpu_verify_reports={reports_dir(LAB)}"
    taken = run_here("./jetson-k3s", "snapshot", agent.name, inventory, "-e", settings)
    assert taken.returncode == 0, taken.stdout
    (archive,) = tmp_path.glob(f"{agent.name}-*.tar.gz")
    assert archive.stat().st_mode & 0o777 == 0o600
    snapshot = snapshot_archive.load(str(archive))
    everything = b"".join(snapshot.contents.values())
    token = agent.exec("cat", "/etc/rancher/k3s/jetson-k3s.token").strip()
    for secret in (
        *NAMES,
        token,
        *(one.address for one in boards),
        agent.exec("cat", "/etc/machine-id").strip(),
    ):
        assert secret.encode() not in everything
    assert b"k3s" in snapshot.contents["programs/journal-k3s-agent.txt"]
    assert b"docker" in snapshot.contents["programs/journal-docker.txt"].lower()
    assert snapshot_archive.data_of(snapshot, "report")["ok"]
    nodes = {one["path"]: one for one in snapshot.manifest["tree"] if one["type"] == "char"}
    assert {nodes["/dev/nvmap"][key] for key in ("mode", "gid")} == {"0660", 44}

    fixture = board_types.load()[TYPES[1]]
    detected = run_here(
        sys.executable, "-m", "tegra_device_plugin", "detect", "--output=json", f"--from={archive}"
    )
    found = json.loads(detected.stdout)
    assert (found["module"], found["l4t"]) == (fixture.reported_module, fixture.l4t)
    assert (found["gpu"]["state"], found["gpu"]["memory_bytes"]) == ("ready", fixture.memory_bytes)

    findings = snapshot_archive.data_of(snapshot, "findings")
    checked = run_here("./jetson-k3s", "preflight", "--from", str(archive))
    assert checked.returncode == 0, checked.stdout
    assert [one["id"] for one in findings if f"[{one['level']}] {one['id']}" not in checked.stdout] == []


@pytest.mark.usefixtures("holders")
def test_status_goes_on_when_an_agent_does_not_answer(
    boards: list[Board], cluster: Cluster, tmp_path: Path
) -> None:
    one = boards[2]
    registered = cluster.registrations(one.name)
    one.exec("systemctl", "stop", "k3s-agent")
    try:
        nodes = cluster_status(LAB, tmp_path)["nodes"]
    finally:
        one.exec("systemctl", "start", "k3s-agent")
    assert [node["problem"] is None for node in nodes] == [True, True, False]
    assert [len(node["holders"] or ()) for node in nodes] == [1, 1, 0]
    wait_until(lambda: cluster.registrations(one.name) > registered, f"the kubelet of {one.name} is back", 90)
    wait_until(lambda: cluster.allocatable()[one.name] == 1, f"the GPU of {one.name} is back", 60)


@pytest.mark.usefixtures("holders")
def test_gpu_is_back_after_the_plugin_was_killed(boards: list[Board], cluster: Cluster) -> None:
    one = boards[2]
    pod = str(cluster.plugin_pod(one.name))
    restarts = cluster.plugin_restarts(pod)
    one.exec("pkill", "-KILL", "-f", "tegra_device_plugin run")
    wait_until(lambda: cluster.plugin_restarts(pod) > restarts, "the kubelet starts the plugin again", 60)
    wait_until(lambda: cluster.allocatable()[one.name] == 1, f"the GPU of {one.name} is back", 60)


def test_pods_that_held_a_gpu_all_the_time_were_never_restarted(
    cluster: Cluster, holders: dict[str, object]
) -> None:
    assert {pod: cluster.started(pod) for pod in holders} == holders


@pytest.fixture
def _gpus_are_free(cluster: Cluster, holders: dict[str, object]) -> None:
    cluster.kubectl("delete", "pod", *holders)
    # Without a grace period their containers end after the pods.
    wait_until(lambda: not any("_holder-" in one for one in starts(cluster.boards)), "their end", 60)


@pytest.mark.usefixtures("_gpus_are_free")
def test_drift_names_what_a_changed_setting_would_change_and_nothing_else(
    boards: list[Board], tmp_path: Path
) -> None:
    def drift(**settings: object) -> tuple[int, set[str]]:
        file = tmp_path / "drift.json"
        variables = json.dumps({"jetson_k3s_drift_file": str(file), **settings})
        run = run_playbook(LAB, "drift.yml", f"--extra-vars={variables}")
        return run.returncode, {change["board"] for change in json.loads(file.read_text())["changes"]}

    before = starts(boards)
    assert drift() == (0, set())
    assert drift(k3s_node_labels={"site": "north"}) == (1, set(NAMES))
    assert starts(boards) == before
    boards[1].exec("docker", "stop", "tegra-device-plugin")
    assert drift() == (1, {NAMES[1]})
    boards[1].exec("docker", "start", "tegra-device-plugin")


def test_kubeconfig_lets_its_user_read_and_no_more(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "anna.yaml"
    run_playbook(LAB, "kubeconfig.yml", f"--extra-vars=kubeconfig_file={file} kubeconfig_user=anna").checked()
    server = cluster.boards[0]
    server.exec("sh", "-c", 'umask 077; echo "$1" > /root/anna', "sh", file.read_text())
    try:
        for what, answer in ((("list", "pods"), "yes"), (("get", "secrets"), "no")):
            ask = ("k3s", "kubectl", "--kubeconfig=/root/anna", "auth", "can-i", *what)
            # Its status is 1 where the answer is no.
            assert server.exec(*ask, check=False).split()[:1] == [answer]
    finally:
        server.exec("rm", "/root/anna")


def test_agent_reboots_and_offers_its_gpu_again(boards: list[Board], cluster: Cluster) -> None:
    agent = boards[2]
    board.switch_on_after_reboot(agent, always=True)
    boot = board.boot_id(agent)
    run_playbook(LAB, "reboot.yml", f"--limit={agent.name}").checked()
    assert board.boot_id(agent) != boot
    assert cluster.allocatable() == dict.fromkeys(NAMES, 1)
    assert [node["metadata"]["name"] for node in cluster.nodes() if node["spec"].get("unschedulable")] == []


def test_cluster_goes_back_to_its_backup(cluster: Cluster) -> None:
    with keyring() as key:
        cluster.kubectl("create", "configmap", "before")
        run_playbook(LAB, "backup.yml", f"--extra-vars=k3s_backup_recipient={key}").checked()
        cluster.kubectl("create", "configmap", "after")
        (file,) = BACKUPS.iterdir()
        run_playbook(LAB, "restore.yml", f"--extra-vars=k3s_backup_file={file}").checked()
    maps = cluster.kubectl("get", "configmaps", "--output=name").split()
    assert ("configmap/before" in maps, "configmap/after" in maps) == (True, False)
    assert cluster.allocatable() == dict.fromkeys(NAMES, 1)


def test_agent_that_is_reset_leaves_the_cluster(boards: list[Board], cluster: Cluster) -> None:
    agent = boards[1]
    run_playbook(LAB, "reset.yml", f"--limit={agent.name}").checked()
    assert set(cluster.allocatable()) == set(NAMES) - {agent.name}
    assert "inactive" in agent.exec("systemctl", "is-active", "k3s-agent", check=False)

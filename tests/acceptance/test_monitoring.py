# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus watches real plugins: on the server board, and as the owner's own.

The tests are one story, in the order of the file, on a server and two agents.
"""

import json
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cluster import Cluster, wait_until
from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.lab import board, bundle, inventory, lab
from tests.lab.board import Board
from tests.lab.workloads import DEFAULT_ARCH as ARCH
from tests.observability import promql
from tools import debian
from tools.debian import ensure_packages
from tools.engine import docker
from tools.process import run as run_command
from tools.process import say

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "monitoring"
SERVING = {"gpu_device_plugin_metrics_on_host": True, "gpu_device_plugin_agent": True}
# SIMULATED: a site without Internet.
NO_INTERNET = "echo 'Acquire::http::Proxy \"http://127.0.0.1:9\";' > /etc/apt/apt.conf.d/99no-internet"
# Where the role could leave something, but for what Prometheus records.
PLACES = ("/etc/prometheus", "/etc/systemd/system", "/usr/bin/prometheus")
STATE = f"find {' '.join(PLACES)} -printf '%p %y %m %s %T@ %l\\n' 2>/dev/null | sort"
SQUATTER = ("systemd-run", "--unit=squatter", "python3", "-m", "http.server", "--bind=127.0.0.1", "9090")
# What an owner has: a directory of rules and one of targets, in the unit that Debian ships.
OWNERS_CONFIGURATION = """\
rule_files: [/etc/prometheus/rules/*.yml]
scrape_configs:
  - job_name: files
    scrape_interval: 5s
    file_sd_configs: [{files: [/etc/prometheus/targets/*.json]}]
"""
OWNERS_RULES = "groups: [{name: owners, rules: [{alert: Always, expr: vector(1)}]}]\n"
OWNERS: dict[str, Any] = {
    "monitoring_rules_directory": "/etc/prometheus/rules",
    "monitoring_targets_directory": "/etc/prometheus/targets",
    "monitoring_dashboards_directory": "/srv/dashboards",
}
ALERTMANAGER = "route: {receiver: nobody}\nreceivers: [{name: nobody}]"
# WithoutMemory: it looks for no others.
ALERTMANAGER_COMMAND = (
    "/usr/local/bin/alertmanager",
    "--config.file=/etc/alertmanager.yml",
    "--storage.path=/var/lib/alertmanager",
    "--cluster.listen-address=",
)
# It does not start without Debian's templates. Nothing is written by them for nobody.
TEMPLATES = "/usr/share/prometheus/alertmanager"
MEMORY_BYTES = 150 * 1024 * 1024
# Limit, the most that was used, and how often the kernel has killed something for it; cgroup version 1 or 2.
MEMORY = """
pid=$(systemctl show --property=MainPID --value prometheus)
one=$(sed -n 's/^[0-9]*:memory://p' /proc/$pid/cgroup)
if [ -n "$one" ]
then cd "/sys/fs/cgroup/memory$one"; set -- limit_in_bytes max_usage_in_bytes oom_control
else cd "/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/$pid/cgroup)"; set -- max peak events
fi
cat memory.$1 memory.$2
sed -n 's/^oom_kill //p' memory.$3
sed -n 's/^VmHWM:[^0-9]*\\([0-9]*\\) kB$/\\1/p' /proc/$pid/status
"""
# Prometheus looks every 30 seconds, and an alert waits for a minute or two.
POLL_SECONDS = 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster whose boards serve their metrics, with node agents; no board reaches a package archive."""
    with lab.fresh(LAB, ("agxorin-jp6", "orinnano-jp6", "orinnano-jp6")) as boards:
        for one in boards:
            one.exec("sh", "-c", NO_INTERNET)
        run = play("site.yml", "--skip-tags=gpu_verify")
        assert run.returncode == 0, run.why
        yield Cluster(boards)


@pytest.fixture(scope="module")
def server(cluster: Cluster) -> Board:
    """The board that Prometheus runs on."""
    one = cluster.boards[0]
    assert isinstance(one, Board)
    return one


@pytest.fixture(scope="module")
def nodes(cluster: Cluster) -> set[str]:
    """Names of all nodes."""
    return {one.name for one in cluster.boards}


@pytest.fixture(scope="module")
def packages(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prometheus and what a board lacks for it, fetched as the offline guide does, and in the bundle."""
    ensure_packages("apt")
    directory = tmp_path_factory.mktemp("packages")
    (directory / "status").write_text(cluster.boards[2].exec("cat", "/var/lib/dpkg/status"))
    (directory / "debs/partial").mkdir(parents=True)
    options = {
        "Dir::State::status": directory / "status",
        "Dir::Cache::archives": directory / "debs",
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "1",
    }
    apt = ["apt-get", "--quiet", "--yes", *(f"--option={name}={value}" for name, value in options.items())]
    install = [*apt, "install", "--download-only", "--no-install-recommends", "prometheus"]
    if run_command(install, check=False).returncode != 0:
        run_command(["apt-get", "--quiet", "update"])
        run_command(install)
    archive = inventory.bundle_path(LAB) / "debs-jetpack6-amd64.tar"
    with tarfile.open(archive, "w") as tar:
        for deb in (directory / "debs").glob("*.deb"):
            tar.add(deb, deb.name)
    sums = archive.with_name(bundle.CHECKSUMS)
    sums.write_text(bundle.checksums(archive.parent))
    return archive


def play(playbook: str, *arguments: str, inventory: Path | None = None, **variables: Any) -> PlaybookRun:
    """Run a playbook with these variables."""
    settings = f"--extra-vars={json.dumps(SERVING | variables)}"
    return run_playbook(LAB, playbook, settings, *arguments, inventory=inventory)


def changed(run: PlaybookRun) -> int:
    """How much a run has changed that went well."""
    assert run.returncode == 0, run.why
    return sum(recap.changed for recap in run.recap.values())


def refused(run: PlaybookRun, host: str, *words: str) -> None:
    """The run has ended with these words and has changed nothing."""
    said = " ".join(run.output.split())
    assert run.returncode != 0, run.output
    assert all(word in said for word in (f"{host}: ", *words)), run.output
    assert run.recap[host].changed == 0, run.output


def ask(one: Board, path: str, **parameters: str) -> Any:
    """What the API of a board's Prometheus answers."""
    given = [word for name, value in parameters.items() for word in ("--data-urlencode", f"{name}={value}")]
    url = f"http://127.0.0.1:9090/api/v1/{path}"
    return json.loads(one.exec("curl", "--silent", "--show-error", "--get", *given, url))["data"]


def query(one: Board, expression: str) -> list[dict[str, Any]]:
    """Samples of an expression, now."""
    found: list[dict[str, Any]] = ask(one, "query", query=expression)["result"]
    return found


def health(one: Board) -> dict[tuple[str, str], str]:
    """Whether targets answer, by job and node."""
    return {
        (target["labels"]["job"], target["labels"]["node"]): target["health"]
        for target in ask(one, "targets")["activeTargets"]
    }


def firing(one: Board) -> set[tuple[str, str]]:
    """Alerts that fire, with their nodes."""
    return {
        (alert["labels"]["alertname"], alert["labels"].get("node", ""))
        for alert in ask(one, "alerts")["alerts"]
        if alert["state"] == "firing"
    }


def state(one: Board) -> list[str]:
    """What the role could have left on a board."""
    return one.exec("sh", "-c", STATE).splitlines()


def main_pid(one: Board) -> str:
    """Which process Prometheus is."""
    return one.exec("systemctl", "show", "--property=MainPID", "--value", "prometheus").strip()


def test_boards_that_do_not_serve_their_metrics_are_told(server: Board) -> None:
    before = state(server)
    run = play("monitoring.yml", gpu_device_plugin_metrics_on_host=False)
    refused(run, server.name, "Prometheus would reach no device plugin", "Nothing was changed")
    assert state(server) == before


def test_missing_package_is_told_and_what_was_begun_can_be_taken_back(server: Board) -> None:
    before = state(server)
    run = play("monitoring.yml")
    assert run.returncode != 0
    said = " ".join(run.output.split())
    assert f"{server.name}: this board needs prometheus, and installing failed" in said
    assert "from debs-jetpack6-amd64.tar in the bundle (docs/offline.md)" in said
    assert changed(play("monitoring.yml", monitoring_state="absent")) > 0
    files = [line for line in state(server) if " d " not in line]
    assert files == [line for line in before if " d " not in line]


def test_check_mode_says_what_would_come_and_writes_nothing(server: Board, packages: Path) -> None:
    before = state(server)
    run = play("monitoring.yml", "--check", "--diff")
    assert changed(run) > 0
    assert '"job": "tegra-device-plugin"' in run.output
    assert state(server) == before


def test_port_of_another_program_is_told(server: Board, packages: Path) -> None:
    before = state(server)
    server.exec(*SQUATTER)
    try:
        wait_until(lambda: "LISTEN" in server.exec("ss", "-Hltn", "sport = :9090"), "a listener", 20)
        run = play("monitoring.yml")
    finally:
        server.exec("systemctl", "stop", "squatter")
    refused(run, server.name, "another program answers at 127.0.0.1:9090", "monitoring_listen")
    assert state(server) == before


def test_server_board_watches_every_board(server: Board, packages: Path, nodes: set[str]) -> None:
    run = play("monitoring.yml")
    assert changed(run) > 0
    assert "asks 6 targets. All answer." in " ".join(run.output.split())
    jobs = ("tegra-device-plugin", "tegra-gpu-agent")
    assert health(server) == {(job, node): "up" for job in jobs for node in nodes}
    info = query(server, "tegra_device_plugin_info")
    found = {sample["metric"]["node"]: sample["metric"]["soc"] for sample in info}
    assert found == dict.fromkeys(nodes, "tegra234")
    # Debian's own settings would have it answer everybody.
    assert server.exec("ss", "-Hltn", "sport = :9090").split()[3] == "127.0.0.1:9090"


def test_second_run_and_check_mode_change_nothing(server: Board) -> None:
    before, process = state(server), main_pid(server)
    assert [changed(play("monitoring.yml", *more)) for more in ((), ("--check", "--diff"))] == [0, 0]
    assert (state(server), main_pid(server)) == (before, process)


def test_prometheus_that_was_not_restarted_is_by_the_next_run(server: Board) -> None:
    """A run that was cut off after the files leaves just this."""
    process = main_pid(server)
    server.exec("touch", "/etc/prometheus/jetson-k3s/alerts.yml")
    assert changed(play("monitoring.yml")) == 1
    assert main_pid(server) != process


@pytest.fixture(scope="module")
def alertmanager(cluster: Cluster) -> str:
    """Where an owner's Alertmanager, Debian's, hears of alerts: on a host that is no Prometheus' own."""
    one = cluster.boards[2]
    assert isinstance(one, Board)
    given = debian.program("prometheus-alertmanager", "/usr/bin/prometheus-alertmanager", ARCH)
    docker("cp", str(given), f"{one.container}:/usr/local/bin/alertmanager")
    one.exec("sh", "-c", 'echo "$1" > /etc/alertmanager.yml', "sh", ALERTMANAGER)
    one.exec("mkdir", "--parents", TEMPLATES)
    one.exec("touch", f"{TEMPLATES}/default.tmpl", f"{TEMPLATES}/email.tmpl")
    one.exec(
        "systemd-run", "--unit=alertmanager", "--property=StateDirectory=alertmanager", *ALERTMANAGER_COMMAND
    )
    wait_until(lambda: "LISTEN" in one.exec("ss", "-Hltn", "sport = :9093"), "Alertmanager", 60)
    return f"{one.address}:9093"


def heard(one: Board, alertmanager: str) -> set[tuple[str, str]]:
    """Alerts that an Alertmanager knows of and that go on, with their nodes."""
    alerts = json.loads(one.exec("curl", "--silent", "--show-error", f"http://{alertmanager}/api/v2/alerts"))
    return {(alert["labels"]["alertname"], alert["labels"].get("node", "")) for alert in alerts}


def test_alert_fires_for_the_board_whose_gpu_is_gone_and_alertmanager_hears_of_it(
    cluster: Cluster, server: Board, alertmanager: str
) -> None:
    ill = cluster.boards[1]
    assert isinstance(ill, Board)
    assert changed(play("monitoring.yml", monitoring_alertmanagers=[alertmanager])) > 0
    board.set_state(ill, "dead")
    try:
        expected = {("TegraGpuUnhealthy", ill.name)}
        wait_until(lambda: firing(server) == expected, "the alert", 240, POLL_SECONDS)
        wait_until(lambda: heard(server, alertmanager) == expected, "the alert at Alertmanager", 60)
    finally:
        board.set_state(ill, "ready")
    wait_until(lambda: firing(server) == set(), "the end of the alert", 180, POLL_SECONDS)
    wait_until(lambda: heard(server, alertmanager) == set(), "its end at Alertmanager", 60)
    assert changed(play("monitoring.yml")) > 0, "without an Alertmanager again"


# What no board of this lab says, and panels that are empty when all is well.
SILENT = {*promql.OF_JTOP, *promql.OF_UNITS, "tegra_gpu_agent_container_memory_used_bytes"}
WELL = {"Device plugins that do not answer", "Unhealthy"}


@pytest.mark.parametrize(
    "asked", list(promql.dashboard()), ids=lambda asked: f"{asked.place}: {asked.expression}"
)
def test_every_query_of_the_dashboard_has_an_answer(
    server: Board, nodes: set[str], asked: promql.Query
) -> None:
    samples = query(server, promql.with_values(asked.expression))
    metrics = {metric for metric, _ in asked.selectors()}
    of_driver = any(metric.startswith(promql.OF_DRIVER) for metric in metrics)
    if of_driver or metrics & SILENT or asked.place in WELL:
        assert samples == []
        return
    assert samples
    assert {sample["metric"].get("node") for sample in samples} in ({None}, nodes)


def test_it_stays_within_its_memory_when_the_dashboard_asks_for_days(server: Board) -> None:
    now = int(time.time())
    days = {"start": str(now - 14 * 86400), "end": str(now), "step": "120"}
    for asked in promql.dashboard():
        ask(server, "query_range", query=promql.with_values(asked.expression), **days)
    limit, peak, kills, resident = map(int, server.exec("sh", "-c", MEMORY).split())
    assert limit == MEMORY_BYTES
    assert (peak <= limit, kills) == (True, 0)
    assert resident * 1024 < MEMORY_BYTES
    restarts = server.exec("systemctl", "show", "--property=NRestarts", "--value", "prometheus")
    assert int(restarts) == 0
    say(f"Prometheus for 3 boards: {peak >> 20} MiB with the page cache, {resident >> 10} MiB resident")


def test_board_that_leaves_the_inventory_is_no_target_any_more(
    cluster: Cluster, server: Board, tmp_path: Path
) -> None:
    process = main_pid(server)
    fewer = tmp_path / "inventory.ini"
    fewer.write_text(inventory.render(LAB, cluster.boards[:2]))
    assert changed(play("monitoring.yml", inventory=fewer)) == 1
    assert {node for _, node in health(server)} == {one.name for one in cluster.boards[:2]}
    assert changed(play("monitoring.yml")) == 1
    assert main_pid(server) == process, "targets are read while it runs"


@pytest.fixture(scope="module")
def owners(cluster: Cluster, packages: Path) -> Board:
    """A host of an owner who has installed and configured a Prometheus himself."""
    one = cluster.boards[2]
    assert isinstance(one, Board)
    docker("cp", str(packages), f"{one.container}:/var/tmp/debs.tar")
    one.exec("sh", "-c", "mkdir /var/tmp/debs && tar -xf /var/tmp/debs.tar -C /var/tmp/debs")
    install = "DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends /var/tmp/debs/*.deb"
    one.exec("sh", "-c", install, timeout=300)
    one.exec("mkdir", "/etc/prometheus/rules", "/etc/prometheus/targets", "/srv/dashboards")
    for path, text in (("prometheus", OWNERS_CONFIGURATION), ("rules/owners", OWNERS_RULES)):
        one.exec("sh", "-c", 'printf "%s" "$2" > "$1"', "sh", f"/etc/prometheus/{path}.yml", text)
    one.exec("systemctl", "restart", "prometheus")
    wait_until(lambda: rules(one) == {"owners"}, "the owner's Prometheus", 60)
    return one


def rules(one: Board) -> set[str]:
    """Names of the groups of rules that a Prometheus has read."""
    return {group["name"] for group in ask(one, "rules")["groups"]}


def owners_files(one: Board) -> str:
    """What is in the owner's directories."""
    return one.exec("find", "/etc/prometheus", "/srv/dashboards", "-type", "f")


def test_owners_prometheus_watches_the_boards_and_gets_all_taken_away_again(
    cluster: Cluster, owners: Board, nodes: set[str], tmp_path: Path
) -> None:
    before, process = owners_files(owners), main_pid(owners)
    given = tmp_path / "inventory.ini"
    given.write_text(inventory.render(LAB, cluster.boards) + f"\n[monitoring]\n{owners.name}\n")

    def put(**variables: Any) -> int:
        run = play("monitoring.yml", inventory=given, **OWNERS, **variables)
        assert list(run.recap) == [owners.name], "no board is touched"
        return changed(run)

    assert [put() > 0, put()] == [True, 0]
    ours = {"tegra-device-plugin", "tegra-dra-driver"}
    wait_until(lambda: rules(owners) == {"owners", *ours}, "the rules", 30)
    wait_until(lambda: set(health(owners).values()) == {"up"}, "the targets", 60)
    assert {node for _, node in health(owners)} == nodes
    dashboard = json.loads(owners.exec("cat", "/srv/dashboards/jetson-k3s.json"))
    assert dashboard == json.loads((promql.FILES / "dashboard.json").read_text())
    absent: dict[str, Any] = {"monitoring_state": "absent"}
    assert [put(**absent) > 0, put(**absent)] == [True, 0]
    assert owners_files(owners) == before
    wait_until(lambda: rules(owners) == {"owners"}, "the owner's rules alone", 30)
    assert main_pid(owners) == process


def test_server_board_whose_owner_has_a_prometheus_is_left_alone(owners: Board, tmp_path: Path) -> None:
    alone = tmp_path / "inventory.ini"
    alone.write_text(inventory.render(LAB, [owners]))
    before, process = state(owners), main_pid(owners)
    run = play("monitoring.yml", inventory=alone)
    refused(run, owners.name, "it has a Prometheus that this playbook has not set up")
    assert changed(play("monitoring.yml", inventory=alone, monitoring_state="absent")) == 0
    assert (state(owners), main_pid(owners)) == (before, process)


def test_absent_takes_away_what_the_role_has_put_on_the_board(server: Board) -> None:
    absent: dict[str, Any] = {"monitoring_state": "absent"}
    assert [changed(play("monitoring.yml", **absent)) > 0 for _ in range(2)] == [True, False]
    paths = [line.split()[0] for line in state(server)]
    assert not [path for path in paths if "prometheus" in path and "jetson-k3s" in path]
    assert server.exec("ls", "/var/lib/prometheus").split() == ["metrics2"], "what the package has made"
    unit = server.exec(
        "systemctl", "show", "--property=ActiveState", "--property=UnitFileState", "prometheus"
    )
    assert set(unit.split()) == {"ActiveState=inactive", "UnitFileState=disabled"}
    # What was switched off is nobody else's: the role takes it again.
    assert changed(play("monitoring.yml")) > 0

# SPDX-License-Identifier: Apache-2.0
"""The owner's Prometheus, a real one, watches real plugins: one story, in the order of the file."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cluster import Cluster, wait_until
from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.lab import board, inventory, lab
from tests.lab.board import Board
from tests.lab.workloads import DEFAULT_ARCH as ARCH
from tests.observability import promql
from tools import debian
from tools.engine import docker

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "monitoring"
SERVING = {"gpu_device_plugin_metrics_on_host": True, "gpu_device_plugin_agent": {"enabled": True}}
JOBS = ("tegra-device-plugin", "tegra-gpu-agent")
# What an owner has: a directory of rules and one of targets.
CONFIGURATION = """\
global: {scrape_interval: 5s, evaluation_interval: 5s}
rule_files: [/etc/prometheus/rules/*.yml]
scrape_configs:
  - job_name: files
    file_sd_configs: [{files: [/etc/prometheus/targets/*.json]}]
"""
RULES = "groups: [{name: owners, rules: [{alert: Always, expr: vector(1)}]}]\n"
PROMETHEUS = (
    "/usr/local/bin/prometheus",
    "--config.file=/etc/prometheus/prometheus.yml",
    "--storage.tsdb.path=/var/lib/prometheus",
    "--web.listen-address=127.0.0.1:9090",
)
OWNERS = {
    "monitoring_rules_directory": "/etc/prometheus/rules",
    "monitoring_targets_directory": "/etc/prometheus/targets",
    "monitoring_dashboards_directory": "/srv/dashboards",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster whose boards serve their metrics, with node agents."""
    with lab.fresh(LAB, ("agxorin-jp6", "orinnano-jp6")) as boards:
        play("site.yml", "--skip-tags=gpu_verify").checked()
        yield Cluster(boards)


@pytest.fixture(scope="module")
def owners(cluster: Cluster) -> Board:
    """A host whose owner runs Debian's Prometheus; the agent's board is that host, too."""
    one = cluster.boards[1]
    assert isinstance(one, Board)
    given = debian.program("prometheus", "/usr/bin/prometheus", ARCH)
    docker("cp", str(given), f"{one.container}:{PROMETHEUS[0]}")
    one.exec("mkdir", "-p", "/var/lib/prometheus", *OWNERS.values())
    for path, text in (("prometheus", CONFIGURATION), ("rules/owners", RULES)):
        one.exec("sh", "-c", 'printf "%s" "$2" > "$1"', "sh", f"/etc/prometheus/{path}.yml", text)
    reload = "--property=ExecReload=/bin/kill -HUP $MAINPID"
    one.exec("systemd-run", "--unit=prometheus", reload, *PROMETHEUS)
    wait_until(lambda: "LISTEN" in one.exec("ss", "-Hltn", "sport = :9090"), "the owner's Prometheus", 60)
    return one


@pytest.fixture(scope="module")
def given(cluster: Cluster, owners: Board, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The inventory with the owner's host."""
    path = tmp_path_factory.mktemp("inventory") / "inventory.ini"
    path.write_text(inventory.render(LAB, cluster.boards) + f"\n[monitoring]\n{owners.name}\n")
    return path


def play(playbook: str, *arguments: str, inventory: Path | None = None, **variables: Any) -> PlaybookRun:
    settings = f"--extra-vars={json.dumps(SERVING | variables)}"
    return run_playbook(LAB, playbook, settings, *arguments, inventory=inventory)


def changed(given: Path, *arguments: str, **variables: Any) -> int:
    run = play("monitoring.yml", *arguments, inventory=given, **OWNERS, **variables).checked()
    return sum(recap.changed for recap in run.recap.values())


def ask(one: Board, path: str, **parameters: str) -> Any:
    given = [word for name, value in parameters.items() for word in ("--data-urlencode", f"{name}={value}")]
    url = f"http://127.0.0.1:9090/api/v1/{path}"
    return json.loads(one.exec("curl", "--silent", "--show-error", "--get", *given, url))["data"]


def health(one: Board) -> dict[tuple[str, str], str]:
    return {
        (target["labels"]["job"], target["labels"]["node"]): target["health"]
        for target in ask(one, "targets")["activeTargets"]
    }


def firing(one: Board) -> set[tuple[str, str]]:
    return {
        (alert["labels"]["alertname"], alert["labels"]["node"])
        for alert in ask(one, "alerts")["alerts"]
        if alert["state"] == "firing" and "node" in alert["labels"]
    }


def rules(one: Board) -> set[str]:
    return {group["name"] for group in ask(one, "rules")["groups"]}


def files(one: Board) -> set[str]:
    return set(one.exec("find", *OWNERS.values(), "-type", "f").split())


def test_owners_prometheus_watches_the_boards(cluster: Cluster, owners: Board, given: Path) -> None:
    before = files(owners)
    assert changed(given, "--check", "--diff") > 0
    assert files(owners) == before
    assert [changed(given) > 0, changed(given)] == [True, 0]
    ours = {"tegra-device-plugin", "tegra-dra-driver"}
    wait_until(lambda: rules(owners) == {"owners", *ours}, "the rules", 30)
    expected = {(job, one.name): "up" for job in JOBS for one in cluster.boards}
    wait_until(lambda: health(owners) == expected, "the targets", 60)
    dashboard = json.loads(owners.exec("cat", "/srv/dashboards/jetson-k3s.json"))
    assert dashboard == json.loads((promql.FILES / "dashboard.json").read_text())


def test_alert_fires_for_the_board_whose_gpu_is_gone(cluster: Cluster, owners: Board) -> None:
    ill = cluster.boards[0]
    assert isinstance(ill, Board)
    board.set_state(ill, "dead")
    try:
        # An alert waits for a minute or two.
        wait_until(lambda: firing(owners) == {("TegraGpuUnhealthy", ill.name)}, "the alert", 240)
    finally:
        board.set_state(ill, "ready")
    wait_until(lambda: firing(owners) == set(), "the end of the alert", 180)


# What no board of this lab says, and panels that are empty when all is well.
SILENT = {*promql.OF_JTOP, *promql.OF_UNITS, "tegra_gpu_agent_container_memory_used_bytes"}
WELL = {"Device plugins that do not answer", "Unhealthy"}


@pytest.mark.parametrize(
    "asked", list(promql.dashboard()), ids=lambda asked: f"{asked.place}: {asked.expression}"
)
def test_every_query_of_the_dashboard_has_an_answer(
    cluster: Cluster, owners: Board, asked: promql.Query
) -> None:
    samples = ask(owners, "query", query=promql.with_values(asked.expression))["result"]
    metrics = {metric for metric, _ in asked.selectors()}
    of_driver = any(metric.startswith(promql.OF_DRIVER) for metric in metrics)
    if of_driver or metrics & SILENT or asked.place in WELL:
        assert samples == []
        return
    assert samples
    nodes = {one.name for one in cluster.boards}
    assert {sample["metric"].get("node") for sample in samples} in ({None}, nodes)


def test_absent_takes_all_of_it_away(owners: Board, given: Path) -> None:
    assert [changed(given, jetson_k3s_state="absent") > 0 for _ in range(2)] == [True, False]
    assert files(owners) == {"/etc/prometheus/rules/owners.yml"}
    wait_until(lambda: rules(owners) == {"owners"}, "the owner's rules alone", 30)

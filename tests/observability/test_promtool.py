# SPDX-License-Identifier: Apache-2.0
"""Prometheus' own tool reads pages, rules and configuration, and plays the alerts through."""

import shutil
from pathlib import Path

import pytest
import yaml

from tests.lab.workloads import DEFAULT_ARCH as ARCH
from tests.observability import promql, scrapes
from tools import debian
from tools.cache import CHECKOUT
from tools.process import run

pytestmark = pytest.mark.lab

HERE = Path(__file__).parent
IN_THE_CLUSTER = CHECKOUT / "roles/monitoring/files/prometheus.yml"


@pytest.fixture(scope="session")
def promtool() -> Path:
    return debian.program("prometheus", "/usr/bin/promtool", ARCH)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for path in (IN_THE_CLUSTER, promql.FILES / "alerts.yml", HERE / "alerts.test.yml"):
        shutil.copy(path, tmp_path)
    return tmp_path


def test_the_alerts_fire_when_they_should(promtool: Path, files: Path) -> None:
    run([promtool, "test", "rules", "alerts.test.yml"], cwd=files)


def test_every_alert_is_played_both_ways() -> None:
    well, ill = yaml.safe_load((HERE / "alerts.test.yml").read_text())["tests"]
    names = {query.place for query in promql.alerts()}
    assert {case["alertname"] for case in well["alert_rule_test"]} == names
    assert all("exp_alerts" not in case for case in well["alert_rule_test"])
    (fired,) = ill["promql_expr_test"]
    assert all(any(name in sample["labels"] for sample in fired["exp_samples"]) for name in names)


async def test_every_page_is_good(promtool: Path, tmp_path: Path) -> None:
    pages = [
        *await scrapes.of_a_process(tmp_path / "plugin"),
        await scrapes.of_units(tmp_path),
        await scrapes.of_agent(tmp_path / "board"),
        await scrapes.of_jtop(tmp_path / "jtop"),
        await scrapes.of_sensors(tmp_path / "sensors"),
        await scrapes.of_driver(),
        await scrapes.of_throttle_taint(tmp_path / "taint"),
    ]
    for page in pages:
        checked = run([promtool, "check", "metrics"], stdin=page)
        assert (checked.stdout, checked.stderr) == ("", "")


def test_the_rules_are_good(promtool: Path, files: Path) -> None:
    assert "SUCCESS" in run([promtool, "check", "rules", "alerts.yml"], cwd=files).stdout


def test_the_configuration_is_good(promtool: Path, files: Path) -> None:
    path = files / "prometheus.yml"
    configuration = yaml.safe_load(path.read_text())
    # Debian builds it without Kubernetes' service discovery.
    for job in configuration["scrape_configs"]:
        assert job.pop("kubernetes_sd_configs")[0]["role"] == "pod"
        job["static_configs"] = [{"targets": ["localhost:9400"]}]
    path.write_text(yaml.safe_dump(configuration))
    checked = run([promtool, "check", "config", "prometheus.yml"], cwd=files)
    assert "rules found" in checked.stdout

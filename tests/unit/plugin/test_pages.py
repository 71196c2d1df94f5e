# SPDX-License-Identifier: Apache-2.0
"""/metrics, /healthz and /readyz over a real connection; Prometheus' own parser reads the metrics."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tegra_device_plugin.boardwatch import BoardWatch
from tegra_device_plugin.config.settings import Settings, Sharing
from tegra_device_plugin.kubelet.registrar import Registrar
from tegra_device_plugin.sharing.advertised import Advertised
from tegra_device_plugin.system.counters import Counters
from tegra_device_plugin.telemetry import httpd, pages
from tegra_device_plugin.telemetry.exposition import Metric, exposition
from tegra_device_plugin.telemetry.jtop import JtopProbe, Telemetry

from tests import boards


class Plugin:
    """The parts that are shown, on a simulated board."""

    def __init__(self, root: Path) -> None:
        self.advertised = Advertised()
        self.counted = Counters()
        settings = Settings(host_root=root, sharing=Sharing(replicas=2))
        self.board = BoardWatch(settings, self.advertised)
        self.registrar = Registrar(root, self.advertised, self.counted)
        self.jtop = JtopProbe(root)
        self.pages = pages.Pages(self.board, self.registrar, self.advertised, self.jtop, self.counted)


@pytest.fixture
async def plugin(tmp_path: Path) -> Plugin:
    """A plugin that has looked at a ready board once."""
    boards.build(boards.load()["orinnano-jp6"], tmp_path)
    plugin = Plugin(tmp_path)
    await plugin.board.look()
    return plugin


def values(page: httpd.Page) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Every sample by metric, as Prometheus reads them."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(page.text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


async def test_metrics_tell_devices_board_and_totals(plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin.counted.allocations = 3
    telemetry = Telemetry(gpu_memory_bytes=1 << 30, power_mode="15W")
    monkeypatch.setattr(plugin.jtop, "latest", lambda: telemetry)
    found = values(plugin.pages.metrics())
    assert found["tegra_device_plugin_devices"] == [
        ({"resource": "nvidia.com/gpu", "health": "healthy", "reason": "ok"}, 2)
    ]
    assert ({"result": "granted"}, 3) in found["tegra_device_plugin_allocations_total"]
    assert found["tegra_device_plugin_info"][0][0]["chip"] == "GA10B"
    assert found["tegra_gpu_memory_bytes"] == [({}, 1 << 30)]
    assert found["tegra_power_mode"] == [({"mode": "15W"}, 1)]
    assert 0 < found["tegra_gpu_temperature_celsius"][0][1] < 100


async def test_healthz_fails_when_a_loop_has_stopped(plugin: Plugin) -> None:
    now = asyncio.get_running_loop().time()
    plugin.registrar.looked_at = now
    assert plugin.pages.healthz().status == HTTPStatus.OK
    plugin.board.looked_at = now - pages.STUCK_SECONDS - 1
    assert plugin.pages.healthz().status == HTTPStatus.SERVICE_UNAVAILABLE
    assert "board" in plugin.pages.healthz().text


async def test_readyz_fails_without_a_kubelet(plugin: Plugin) -> None:
    assert "no kubelet" in plugin.pages.readyz().text
    endpoint: Any = SimpleNamespace(streams=1)
    plugin.registrar._endpoint = endpoint
    assert plugin.pages.readyz().status == HTTPStatus.OK


async def test_readyz_waits_for_the_first_look_and_is_content_with_another_machine(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path)
    assert plugin.pages.readyz().status == HTTPStatus.SERVICE_UNAVAILABLE
    await plugin.board.look()
    assert plugin.pages.readyz() == httpd.Page("not a Tegra: nothing to advertise\n")
    assert plugin.advertised.offer is None


def test_odd_label_values_survive() -> None:
    odd = 'a"b\\c\nd'
    page = httpd.Page(
        exposition([Metric("m", "gauge", "Help.", (({"l": odd}, 1.5),)), Metric("n", "gauge", "No.")])
    )
    assert values(page) == {"m": [({"l": odd}, 1.5)]}


async def request(port: int, text: bytes) -> bytes:
    """Send bytes, give all that comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return answer


async def test_pages_over_http() -> None:
    async with httpd.serving("127.0.0.1", 0, {"/a": lambda: httpd.Page("text")}) as port:
        good = await request(port, b"GET /a?x=1 HTTP/1.1\r\nHost: h\r\n\r\n")
        assert good.startswith(b"HTTP/1.1 200 OK\r\n") and good.endswith(b"\r\n\r\ntext")
        assert (await request(port, b"HEAD /a HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\n")
        assert (await request(port, b"GET /b HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 404")
        assert (await request(port, b"POST /a HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 405")
        assert await request(port, b"GET /" + b"a" * 70000) == b""
        assert (await request(port, b"\xff\r\n\r\n")).startswith(b"HTTP/1.1 405")

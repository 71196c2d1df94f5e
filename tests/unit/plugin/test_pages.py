# SPDX-License-Identifier: Apache-2.0
"""/metrics, /healthz and /readyz over a real connection; Prometheus' own parser reads the metrics."""

import asyncio
import gc
import logging
import socket
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client import Histogram as LibraryHistogram
from prometheus_client.parser import text_string_to_metric_families
from tegra_device_plugin.board.detection import detect
from tegra_device_plugin.board.health import Health, assess, sample
from tegra_device_plugin.config.file import Sharing
from tegra_device_plugin.config.settings import PluginSettings
from tegra_device_plugin.kubelet.endpoint import AdvertisedResources, Counters
from tegra_device_plugin.sharing.resources import make_resources
from tegra_device_plugin.system.durations import UPPER_BOUNDS, Durations
from tegra_device_plugin.system.mounts import StaleMountError
from tegra_device_plugin.telemetry import httpd, plugin_pages
from tegra_device_plugin.telemetry.exposition import HELP, Metric, exposition, gauge, histogram
from tegra_device_plugin.telemetry.jtop import Telemetry
from tegra_device_plugin.telemetry.process import process_metrics
from tegra_device_plugin.version import VERSION


class Plugin:
    """What the pages show: before the first observation of a board, or after one at `root`."""

    def __init__(self, root: Path | None = None, *, connected: bool = False) -> None:
        self.board = SimpleNamespace(
            detection=None,
            has_gpu=False,
            sample=None,
            health=None,
            conflict=None,
            observed_at=0.0,
            check_mounts=lambda: None,
        )
        self.registrars = SimpleNamespace(connected=connected, streams=0, observed_at=0.0)
        self.advertised = AdvertisedResources()
        self.counted = Counters()
        self.telemetry: Telemetry | None = None
        if root:
            self.observe(root)

    def observe(self, root: Path) -> None:
        self.board.detection = detect(root)
        self.board.has_gpu = self.board.detection.gpu.state != "absent"
        if self.board.has_gpu:
            self.board.sample = sample(root, self.board.detection.gpu)
            self.board.health = assess(self.board.sample)

    def advertise(self, settings: PluginSettings) -> None:
        found = make_resources(settings, (), self.board.health)
        self.advertised.resources = {one.name: one for one in found}

    def pages(self, settings: Callable[[], PluginSettings] = PluginSettings) -> plugin_pages.Pages:
        parts: tuple[Any, Any] = (self.board, self.registrars)
        more: tuple[Any, Any] = (lambda: self.telemetry, self.counted)
        return plugin_pages.Pages(*parts, self.advertised, *more, settings=settings)

    async def metrics(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        return values((await self.pages().metrics()).text)


def values(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            found.setdefault(one.name, []).append((one.labels, one.value))
    return found


async def test_metrics_show_devices_board_and_totals(orin: Path) -> None:
    (orin / "sys/devices/platform/bus@0/17000000.gpu/load").write_text("345\n")
    plugin = Plugin(orin)
    plugin.advertise(PluginSettings(sharing=Sharing(replicas=2)))
    plugin.counted.allocations, plugin.counted.rejected_allocations = 3, 2
    plugin.counted.failed_registrations, plugin.registrars.streams = 4, 1
    plugin.telemetry = Telemetry(gpu_memory_bytes=1 << 30, power_mode="15W")
    found = await plugin.metrics()
    assert found["tegra_device_plugin_devices"] == [
        ({"resource": "nvidia.com/gpu", "health": "healthy", "reason": "ok"}, 2)
    ]
    assert ({"result": "refused"}, 2) in found["tegra_device_plugin_allocations_total"]
    assert ({"result": "granted"}, 3) in found["tegra_device_plugin_allocations_total"]
    assert ({"result": "failed"}, 4) in found["tegra_device_plugin_registrations_total"]
    assert found["tegra_device_plugin_streams"] == [({}, 1)]
    ((info, _),) = found["tegra_device_plugin_info"]
    assert (info["chip"], info["version"]) == ("GA10B", VERSION)
    assert found["tegra_memory_bytes"] == [({}, plugin.board.detection.gpu.memory_bytes)]
    assert found["tegra_gpu_memory_bytes"] == [({}, 1 << 30)]
    assert found["tegra_power_mode"] == [({"mode": "15W"}, 1)]
    assert found["tegra_gpu_load_ratio"] == [({}, 0.345)]
    ((_, temperature),) = found["tegra_gpu_temperature_celsius"]
    assert temperature == pytest.approx(48, abs=1)


async def test_metrics_show_the_reason_of_an_unhealthy_gpu(orin: Path) -> None:
    plugin = Plugin(orin)
    plugin.board.health = Health(False, "too-hot", "")
    plugin.advertise(PluginSettings())
    found = await plugin.metrics()
    assert found["tegra_device_plugin_devices"] == [
        ({"resource": "nvidia.com/gpu", "health": "unhealthy", "reason": "too-hot"}, 1)
    ]


async def test_metrics_before_the_first_observation_are_totals() -> None:
    found = await Plugin().metrics()
    own = {name: samples for name, samples in found.items() if not name.startswith("process_")}
    durations = ("allocate", "registration")
    assert set(own) == {
        "tegra_device_plugin_allocations_total",
        "tegra_device_plugin_registrations_total",
        "tegra_device_plugin_config_reloads_total",
        "tegra_device_plugin_streams",
        *(
            f"tegra_device_plugin_{one}_duration_seconds_{part}"
            for one in durations
            for part in ("bucket", "sum", "count")
        ),
    }
    assert {value for samples in own.values() for _, value in samples} == {0}


@pytest.mark.parametrize("part", ["board", "registration"])
async def test_healthz_fails_when_a_loop_has_stopped(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    plugin = Plugin()
    shown = plugin.pages()
    loops = {"board": plugin.board, "registration": plugin.registrars}
    assert (await shown.healthz()).status == HTTPStatus.OK, "not observed yet"
    now += httpd.STUCK_SECONDS + 1
    for loop in loops.values():
        loop.observed_at = now
    assert (await shown.healthz()).status == HTTPStatus.OK
    loops[part].observed_at -= httpd.STUCK_SECONDS
    assert (await shown.healthz()).status == HTTPStatus.OK
    loops[part].observed_at -= 1
    assert await shown.healthz() == httpd.Page(f"stuck: {part} for 41 s\n", HTTPStatus.SERVICE_UNAVAILABLE)


async def test_healthz_names_a_directory_that_was_deleted_under_its_mount() -> None:
    def fail() -> None:
        raise StaleMountError("/var/run/cdi was deleted on the host")

    plugin = Plugin()
    assert (await plugin.pages().healthz()).text == "ok\n"
    plugin.board.check_mounts = fail
    found = await plugin.pages().healthz()
    assert (found.status, found.text) == (503, "/var/run/cdi was deleted on the host\n")


async def test_healthz_counts_from_the_start_until_the_first_observation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1151.0  # the computer is up for longer than a loop may be stuck
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    shown = Plugin().pages()
    assert await shown.healthz() == httpd.Page("ok\n")
    now += httpd.STUCK_SECONDS + 1
    assert (await shown.healthz()).text == "stuck: board for 41 s, registration for 41 s\n"


async def test_readyz_needs_a_gpu_and_a_kubelet_that_listens(orin: Path, tmp_path: Path) -> None:
    assert (await Plugin().pages().by_path()["/readyz"]()).status == HTTPStatus.SERVICE_UNAVAILABLE
    assert "no kubelet" in (await Plugin(orin).pages().readyz()).text
    plugin = Plugin(orin, connected=True)
    assert await plugin.pages().readyz() == httpd.Page("ok\n")
    plugin.board.conflict = "the DRA driver serves this board"
    conflict = httpd.Page(f"{plugin.board.conflict}\n", HTTPStatus.SERVICE_UNAVAILABLE)
    assert await plugin.pages().readyz() == conflict
    elsewhere = Plugin(tmp_path / "none", connected=True)
    assert await elsewhere.pages().readyz() == httpd.Page("not a Tegra: nothing to advertise\n")
    (tmp_path / "sys/devices/soc0").mkdir(parents=True)
    (tmp_path / "sys/devices/soc0/family").write_text("Tegra\n")
    page = await Plugin(tmp_path, connected=True).pages().readyz()
    assert page.status == HTTPStatus.SERVICE_UNAVAILABLE
    assert "without its GPU" in page.text


NAME = "tegra_memory_bytes"


def test_odd_label_values_survive() -> None:
    odd = 'a"b\\c\nd'
    page = exposition([Metric(NAME, "gauge", (({"l": odd}, 1.5),)), Metric("n", "gauge")])
    assert values(page) == {NAME: [({"l": odd}, 1.5)]}


@pytest.mark.parametrize(
    ("value", "text"),
    [(3, "3"), (2.0, "2"), (0.345, "0.345"), (-1.5e-7, "-1.5e-07"), (1 << 40, "1099511627776")],
)
def test_every_number_has_a_form_in_prometheus_format(value: float, text: str) -> None:
    page = exposition([gauge(NAME, value)])
    assert page.endswith(f"\n{NAME} {text}\n")
    ((_, read),) = values(page)[NAME]
    assert read == pytest.approx(value, nan_ok=True)


HISTOGRAM = "tegra_dra_driver_call_duration_seconds"


def test_a_histogram_is_that_of_prometheus_own_library() -> None:
    registry = CollectorRegistry()
    library = LibraryHistogram(HISTOGRAM, HELP[HISTOGRAM], ["call"], registry=registry, buckets=UPPER_BOUNDS)
    durations = Durations()
    for seconds in (0.0, 0.001, 0.0011, 0.3, 5.0, 5.1, 100.0):
        library.labels("prepare").observe(seconds)
        durations.observe(seconds)
    page = exposition([histogram(HISTOGRAM, durations, call="prepare")])
    assert values(page) == {
        name: samples for name, samples in values(exported(registry)).items() if not name.endswith("_created")
    }


def exported(registry: CollectorRegistry) -> str:
    return generate_latest(registry).decode()


def test_metrics_of_the_process_are_those_of_prometheus_own_library() -> None:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    theirs, ours = exported(registry), exposition(process_metrics())
    described = {line for line in theirs.splitlines() if line.startswith("#")}
    assert {line for line in ours.splitlines() if line.startswith("#")} == described
    for name, ((_, value),) in values(theirs).items():
        ((_, own),) = values(ours)[name]
        assert own == pytest.approx(value, rel=0.05), name


def test_what_takes_how_long_is_measured_also_if_it_fails() -> None:
    durations = Durations()
    with pytest.raises(ZeroDivisionError), durations.measure():
        _ = 1 / 0
    assert durations.cumulative() == [1] * (len(UPPER_BOUNDS) + 1)
    assert 0 < durations.sum < UPPER_BOUNDS[0]


async def answer(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()


LATE = 9  # turns of the loop, after which a connection is surely accepted
GET = b"GET /a HTTP/1.1\r\n\r\n"


def a_page(text: str) -> httpd.Pages:
    async def page() -> httpd.Page:
        return httpd.Page(text)

    return {"/a": page}


A_PAGE = a_page("text")
# More than the buffers of both ends of a connection take.
LARGE = a_page("x" * 20_000_000)


async def test_pages_over_http() -> None:
    async with httpd.serving("127.0.0.1", 0, A_PAGE) as port:
        good = await answer(port, b"GET /a?x=1 HTTP/1.1\r\nHost: h\r\n\r\n")
        assert good.startswith(b"HTTP/1.1 200 OK\r\n") and good.endswith(b"\r\n\r\ntext")
        assert (await answer(port, b"HEAD /a HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\n")
        assert (await answer(port, b"GET /b HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 404")
        assert (await answer(port, b"POST /a HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 405")
        assert await answer(port, b"GET /" + b"a" * 70000) == b""
        assert (await answer(port, b"\xff\r\n\r\n")).startswith(b"HTTP/1.1 405")


async def test_a_large_page_comes_complete_and_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with httpd.serving("127.0.0.1", 0, LARGE) as port:
        head, _, body = (await answer(port, GET)).partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert len(body) == 20_000_000
    gc.collect()  # asyncio logs a task's exception then
    assert not caplog.records


async def test_a_client_without_a_request_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpd, "_REQUEST_SECONDS", 0.05)
    async with httpd.serving("127.0.0.1", 0, A_PAGE) as port:
        assert await answer(port, b"GET /a") == b""


async def test_a_client_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpd, "_REQUEST_SECONDS", 0.05)
    async with httpd.serving("127.0.0.1", 0, LARGE) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(GET)
            async with asyncio.timeout(10):
                with pytest.raises((ConnectionResetError, BrokenPipeError)):
                    while True:  # who writes learns of the other side's end without reading
                        client.send(b"x")
                        await asyncio.sleep(0.01)


@pytest.mark.parametrize("request_", [b"", b"GET /a", GET], ids=["idle", "half a request", "does not read"])
def test_no_client_delays_the_end_or_logs_an_error(
    request_: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At no moment of its connection."""

    async def serve(turns: int) -> None:
        async with asyncio.timeout(10):
            with socket.socket() as client:
                async with httpd.serving("127.0.0.1", 0, LARGE) as port:
                    client.connect(("127.0.0.1", port))
                    client.sendall(request_)
                    for _ in range(turns):
                        await asyncio.sleep(0)
                if turns == LATE:
                    assert len(asyncio.all_tasks()) == 1, "only this one is left"

    monkeypatch.setattr(httpd, "_REQUEST_SECONDS", 3600)
    for turns in range(LATE + 1):
        asyncio.run(serve(turns))
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []

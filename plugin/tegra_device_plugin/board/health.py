# SPDX-License-Identifier: Apache-2.0
"""The health of the GPU: a cheap observation, its assessment, and a hysteresis over observations.

Only files that do not wake the GPU are read (nvgpu os/linux/sysfs.c): the masks of its units
(gpc_fs_mask, fbp_fs_mask, tpc_fs_mask) would. Reading `load` of an active GPU counts as use and postpones its
power-down by railgate_delay (500 ms). So POLL_SECONDS is ten times as long, and a suspended GPU is not read.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tegra_device_plugin.board import catalogue
from tegra_device_plugin.board.detection import Gpu, bound_driver, devfreq, missing_nodes
from tegra_device_plugin.system.hosttree import HostTree, raise_own_shortage

# Worst case from a change to another health, with the default Hysteresis: 5 + 2 x 1 s.
POLL_SECONDS = 5.0
RECHECK_SECONDS = 1.0  # while a change waits to be confirmed

_THERMAL = "/sys/class/thermal"
_GPU_ZONE = re.compile(r"gpu([-_].*)?", re.IGNORECASE)  # GPU-therm, gpu-thermal, GPU
_OFFLINE = -256000  # m°C of a zone whose power domain is off (R35; later kernels fail the read)
_MILLI = 1000
_NUMBER = re.compile(rb"-?[0-9]{1,18}")  # as the kernel prints; longer ones are no reading of a sensor


class Sample(NamedTuple):
    """An observation of the GPU, without assessment; None is unknown."""

    device: bool
    expected_driver: str | None
    supported: bool = True
    """Whether the device nodes of the board's L4T release are known."""
    driver: str | None = None
    """The driver that is bound to the device."""
    on_bus: bool | None = None
    """Whether a PCI device answers."""
    runtime_status: str | None = None
    power_control: str | None = None
    missing_nodes: tuple[str, ...] = ()
    devfreq: bool = False
    failed_reads: tuple[str, ...] = ()
    load_percent: float | None = None
    frequency_hz: int | None = None
    temperature_celsius: float | None = None
    critical_celsius: float | None = None


class Health(NamedTuple):
    """Whether the GPU can be allocated: `reason` is for programs, `detail` for people."""

    healthy: bool
    reason: str
    detail: str


HEALTHY = Health(True, "ok", "")
UNKNOWN = Health(False, "unknown", "the GPU could not be observed")


def unless_it_fails(work: Callable[[], object], failure: Health) -> Health:
    """Do `work`. Gives HEALTHY, or `failure` with the error's text after an OSError.

    Raises OSError for a shortage of descriptors or memory.
    """
    try:
        work()
    except OSError as error:
        raise_own_shortage(error)
        return failure._replace(detail=f"{failure.detail}: {error}")
    return HEALTHY


def sample(root: Path, gpu: Gpu) -> Sample:
    """Observe a GPU that `find_gpu` has found below the same host root. Takes about a millisecond."""
    host = HostTree(root)
    device = gpu.sysfs
    if device is None or gpu.driver is None or host.link(device) is None:
        return Sample(device=False, expected_driver=gpu.driver)
    status = host.text(f"{device}/power/runtime_status")
    load, load_failure = _load(host, device, status)
    scaling = devfreq(host, device)
    frequency, frequency_failure = _number(host, f"{scaling}/cur_freq") if scaling else (None, None)
    temperature, critical = _temperature(host)
    return Sample(
        device=True,
        expected_driver=gpu.driver,
        supported=gpu.state != "unsupported",
        driver=bound_driver(host, device),
        on_bus=_on_bus(host, device, status),
        runtime_status=status,
        power_control=host.text(f"{device}/power/control"),
        missing_nodes=missing_nodes(host, gpu.driver, device),
        devfreq=scaling is not None,
        failed_reads=tuple(filter(None, (load_failure, frequency_failure))),
        load_percent=load,
        frequency_hz=frequency,
        temperature_celsius=temperature,
        critical_celsius=critical,
    )


def assess(seen: Sample) -> Health:
    """Give the health by one sample: the first problem, the most severe first."""
    return next(_problems(seen), None) or Health(True, "ok", _state_of(seen))


class Hysteresis:
    """Turns the health by each observation into a health that does not flap.

    It takes `bad` observations in a row to become unhealthy and `good` to become healthy again. The first
    observation decides alone, and so does the first good one: a board that boots switches its GPU on, and the
    kubelet soon admits pods. After `reconsider`, the next one that is not UNKNOWN decides alone.

    UNKNOWN needs `bad` in a row as well to replace another reason, because a failed observation proves
    nothing.
    """

    def __init__(self, bad: int = 2, good: int = 3) -> None:
        self._needed = {False: bad, True: good}
        self._current: Health | None = None
        self._was_healthy = False
        self._next_decides = True
        self._pending, self._contradictions = False, 0

    @property
    def settled(self) -> bool:
        """False while observations contradict the health: observe again after RECHECK_SECONDS."""
        return self._contradictions == 0

    def reconsider(self) -> None:
        """Health now depends on other things than it did."""
        self._next_decides = True

    def observe(self, new: Health) -> Health:
        """Add an observation; UNKNOWN stands for an observation that failed or timed out."""
        current = self._current
        agrees = current is None or (new.healthy == current.healthy and (new != UNKNOWN or new == current))
        if agrees or new.healthy != self._pending:
            self._pending, self._contradictions = new.healthy, 0
        self._contradictions += not agrees
        first_good = new.healthy and not self._was_healthy
        decides = first_good or (self._next_decides and new != UNKNOWN)
        if current is None or decides or agrees or self._contradictions >= self._needed[new.healthy]:
            self._current, self._contradictions = new, 0
            self._next_decides &= new == UNKNOWN
            self._was_healthy |= new.healthy
            return new
        return current


def _problems(seen: Sample) -> Iterator[Health]:
    def unhealthy(reason: str, detail: str) -> Health:
        return Health(False, reason, detail)

    if not seen.supported:
        yield unhealthy(
            "unsupported",
            f"the board's L4T is older than R{catalogue.oldest_line()}, so its device nodes are not known, "
            "and a container would get none: flash JetPack 4.4 or newer",
        )
    if not seen.device:
        yield unhealthy("device-gone", "the GPU's device has vanished from /sys")
    elif seen.on_bus is False:
        yield unhealthy("fell-off-bus", "the GPU does not answer on the PCI bus: reboot the board")
    elif seen.driver != seen.expected_driver:
        yield unhealthy(
            "driver-unbound", f"driver {seen.driver or 'none'} is bound, not {seen.expected_driver}"
        )
    if seen.runtime_status == "error" or (seen.runtime_status == "suspended" and seen.power_control == "on"):
        yield unhealthy("power-failed", "the GPU could not be switched on: see `dmesg | grep nvgpu`")
    if seen.missing_nodes:
        absent = " ".join(seen.missing_nodes)
        if seen.runtime_status == "suspended" and not seen.devfreq:
            yield unhealthy("not-powered", f"never switched on since boot, so there is no {absent}")
        yield unhealthy("nodes-missing", f"no {absent}")
    if seen.expected_driver == "gk20a" and seen.runtime_status == "active" and not seen.devfreq:
        # nvgpu makes the entry at the end of its first power-on (gk20a_pm_finalize_poweron).
        yield unhealthy(
            "devfreq-missing", "the GPU is on but has no devfreq entry: its power-on did not finish"
        )
    if seen.failed_reads:
        yield unhealthy("unreadable", "; ".join(seen.failed_reads))
    temperature, critical = seen.temperature_celsius, seen.critical_celsius
    if temperature is not None and critical is not None and temperature >= critical:
        yield unhealthy("too-hot", f"{temperature:.1f} °C, critical is {critical:.1f} °C")


def _state_of(seen: Sample) -> str:
    return f"runtime_status {seen.runtime_status or 'unknown'}"


def _number(host: HostTree, path: str) -> tuple[int | None, str | None]:
    """Give the number in a file, or why the read failed. An absent file and other text give neither."""
    try:
        text = host.read(path).strip()
        return (int(text), None) if _NUMBER.fullmatch(text) else (None, None)
    except OSError as error:
        raise_own_shortage(error)
        if error.errno == errno.ENOENT:
            return None, None
        return None, f"{path}: {os.strerror(error.errno or 0)}"


def _load(host: HostTree, device: str, status: str | None) -> tuple[float | None, str | None]:
    """GPU load in percent (the file has tenths). Thor and nvgpu's production builds have no such file."""
    if status == "suspended":
        return 0.0, None
    tenths, failure = _number(host, f"{device}/load")
    return (None if tenths is None else tenths / 10), failure


def _on_bus(host: HostTree, device: str, status: str | None) -> bool | None:
    """True if a PCI device answers: off the bus, it reads as ones. A sleeping device is not read."""
    if status != "active":
        return None
    try:
        return host.read(f"{device}/config")[:2] != b"\xff\xff"
    except OSError as error:
        raise_own_shortage(error)
        return None


def _temperature(host: HostTree) -> tuple[float | None, float | None]:
    """The GPU's temperature and its critical trip in °C. A zone that is off, as the GPU may be, has none."""
    for name in host.names(_THERMAL):
        zone = f"{_THERMAL}/{name}"
        if not _GPU_ZONE.fullmatch(host.text(f"{zone}/type") or ""):
            continue
        temperature, _ = _number(host, f"{zone}/temp")
        if temperature is None or temperature == _OFFLINE:
            return None, None
        return temperature / _MILLI, _critical(host, zone)
    return None, None


def _critical(host: HostTree, zone: str) -> float | None:
    for name in host.names(zone):
        if (
            name.startswith("trip_point_")
            and name.endswith("_type")
            and host.text(f"{zone}/{name}") == "critical"
        ):
            trip, _ = _number(host, f"{zone}/{name.removesuffix('_type')}_temp")
            return None if trip is None else trip / _MILLI
    return None

# SPDX-License-Identifier: Apache-2.0
"""Runs beside a person's job, in the image of the device plugin: samples the board, and packs the results.

Without arguments it prints a line of JSON every two seconds until it is ended: temperatures in degrees
Celsius, clocks in hertz, power in watts, throttling, and the board's used memory in bytes. `pack BYTES`
writes the files below /results to standard output as a tar archive, and to standard error a line of JSON.
"""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

SECONDS = 2.0
HOST = Path("/host")
RESULTS = Path("/results")
TOO_LARGE = 3
MOST_FILES = 10_000
# The GPU's devfreq entry: by its chip, by its node of the device tree, of Thor by its engine.
GPU = re.compile(r"(^|[.])(gpu|gm20b|gp10b|gv11b|ga10b|gb10b)|^gpu-gpc")
# Cooling devices that slow the board down. A fan does not.
SLOWER = re.compile(r"cpufreq|devfreq|cpu|gpu|throttl", re.IGNORECASE)
Figures = dict[str, dict[str, float]]


def text(path: Path) -> str:
    """The content of a file of sysfs; '' where there is none, or where its driver refuses."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def number(path: Path) -> float | None:
    """The number in a file, None without one."""
    try:
        return float(text(path))
    except ValueError:
        return None


def below(path: Path, pattern: str) -> list[Path]:
    """Entries of a directory, [] without it."""
    try:
        return sorted(path.glob(pattern))
    except OSError:
        return []


def temperatures(sys_root: Path) -> Iterator[tuple[str, float]]:
    """(zone, degrees Celsius). A zone that is off, as on a board at rest, gives no value."""
    for zone in below(sys_root / "class/thermal", "thermal_zone*"):
        value = number(zone / "temp")
        if value is not None:
            yield text(zone / "type") or zone.name, value / 1000


def clocks(sys_root: Path) -> Iterator[tuple[str, float]]:
    """The GPU's clock, and the fastest clock of the CPUs, in hertz."""
    for device in below(sys_root / "class/devfreq", "*"):
        value = number(device / "cur_freq")
        if value is not None and GPU.search(device.name):
            yield "gpu", value
            break
    cpus = [number(one) for one in below(sys_root / "devices/system/cpu", "cpu*/cpufreq/scaling_cur_freq")]
    known = [value for value in cpus if value is not None]
    if known:
        yield "cpu", max(known) * 1000


def rails(sys_root: Path) -> Iterator[tuple[str, float]]:
    """(rail, watts) of the INA3221: by hwmon, on JetPack 4 by NVIDIA's own driver."""
    for monitor in below(sys_root / "class/hwmon", "hwmon*"):
        if text(monitor / "name") != "ina3221":
            continue
        for label in below(monitor, "in*_label"):
            channel = label.name[2 : -len("_label")]
            volts = number(monitor / f"in{channel}_input")
            amperes = number(monitor / f"curr{channel}_input")
            if volts is not None and amperes is not None and text(label) not in ("", "NC"):
                yield text(label), volts * amperes / 1e6
    for device in below(sys_root / "bus/i2c/drivers/ina3221x", "*/iio:device*"):
        for name in below(device, "rail_name_*"):
            watts = number(device / f"in_power{name.name[len('rail_name_') :]}_input")
            if watts is not None:
                yield text(name), watts / 1000


def throttling(sys_root: Path) -> Iterator[tuple[str, float]]:
    """Events of over-current since the board's start, and cooling devices that slow something down now."""
    for monitor in below(sys_root / "class/hwmon", "hwmon*"):
        for counter in below(monitor, "oc*_event_cnt"):
            value = number(counter)
            if value is not None:
                yield f"{counter.name[: -len('_event_cnt')]} events", value
    for device in below(sys_root / "class/thermal", "cooling_device*"):
        kind, state = text(device / "type"), number(device / "cur_state")
        if state is not None and SLOWER.search(kind) and "fan" not in kind.lower():
            yield f"{kind} ({device.name})", state


def used_memory(meminfo: str) -> Iterator[tuple[str, float]]:
    """The memory in use, in bytes, by /proc/meminfo."""
    found = {name: int(value) for name, value in re.findall(r"^(\w+): +(\d+) kB$", meminfo, re.MULTILINE)}
    if {"MemTotal", "MemAvailable"} <= found.keys():
        yield "used", (found["MemTotal"] - found["MemAvailable"]) * 1024


def sample(host: Path, meminfo: Path = Path("/proc/meminfo")) -> Figures:
    """The figures of the board now."""
    sys_root = host / "sys"
    return {
        "temperature": dict(temperatures(sys_root)),
        "clock": dict(clocks(sys_root)),
        "power": dict(rails(sys_root)),
        "throttling": dict(throttling(sys_root)),
        "memory": dict(used_memory(text(meminfo))),
    }


def files(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Directories, files and links below a directory, in order. Follows no link."""
    for directory, names, others in os.walk(root):
        for name in sorted([*names, *others]):
            path = Path(directory, name)
            try:
                yield path, path.lstat()
            except FileNotFoundError:  # the job still runs, after its limit
                continue
        names.sort()


def pack(root: Path, limit: int) -> int:
    """Write the archive; return the exit status."""
    found = list(files(root))
    total = sum(state.st_size for _, state in found if stat.S_ISREG(state.st_mode))
    count = sum(stat.S_ISREG(state.st_mode) for _, state in found)
    sys.stderr.write(json.dumps({"files": count, "bytes": total}) + "\n")
    if total > limit or len(found) > MOST_FILES:
        return TOO_LARGE
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for path, state in found:
            entry = archive.gettarinfo(path, str(path.relative_to(root)))
            if entry is None:  # a socket
                continue
            if not stat.S_ISREG(state.st_mode):
                archive.addfile(entry)
                continue
            # A hard link to an earlier file would have no content of its own.
            entry.type, entry.linkname, entry.size = tarfile.REGTYPE, "", state.st_size
            with path.open("rb") as content:
                archive.addfile(entry, content)
    return 0


def watch() -> None:
    """Print samples until SIGTERM."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    while True:
        line = {"at": round(time.time(), 1), **sample(HOST)}
        sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
        sys.stdout.flush()
        if ended.wait(SECONDS):
            return


if __name__ == "__main__":
    if sys.argv[1:2] == ["pack"]:
        sys.exit(pack(RESULTS, int(sys.argv[2])))
    watch()

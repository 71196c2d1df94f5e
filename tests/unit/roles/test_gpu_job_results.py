# SPDX-License-Identifier: Apache-2.0
"""Files of a job come to the controller by an archive that a board made: no name in it is trusted."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import gpu_job_figures as figures
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import gpu_job_results as results

from tests.unit.roles.places import ROLES

COMPANION = ROLES / "gpu_job/files/companion.py"
LIMIT = 1 << 20
KINDS = {
    "file": tarfile.REGTYPE,
    "directory": tarfile.DIRTYPE,
    "link": tarfile.SYMTYPE,
    "hard link": tarfile.LNKTYPE,
    "fifo": tarfile.FIFOTYPE,
    "device": tarfile.CHRTYPE,
}
Member = tuple[str, str, str]


def archive(path: Path, *members: Member) -> Path:
    """An archive of (kind, name, target or content)."""
    with tarfile.open(path, "w") as tar:
        for kind, name, text in members:
            member = tarfile.TarInfo(name)
            member.type = KINDS[kind]
            content = text.encode() if kind == "file" else b""
            member.size, member.linkname = len(content), "" if kind == "file" else text
            member.mode = 0o4777
            tar.addfile(member, io.BytesIO(content))
    return path


def test_files_are_written_with_the_rights_of_plain_files(tmp_path: Path) -> None:
    made = archive(
        tmp_path / "a.tar",
        ("directory", "deep", ""),
        ("file", "deep/er/report.xml", "<a/>"),
        ("file", "..data", "x"),
        ("link", "deep/latest", "er/report.xml"),
        ("hard link", "same", "deep/er/report.xml"),
    )
    old = tmp_path / "out/old"
    old.parent.mkdir()
    old.write_text("of an earlier run")
    found = results.unpack(made, tmp_path / "out", LIMIT)
    assert (found.files, found.bytes) == (["deep/er/report.xml", "..data"], 5)
    assert found.left_out == ["deep/latest", "same"]
    written = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*"))
    assert written == ["..data", "deep", "deep/er", "deep/er/report.xml"]
    assert (tmp_path / "out/deep/er/report.xml").stat().st_mode & 0o7111 == 0


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("file", "../escape", "x")], r"\.\./escape is a path with `\.\.`"),
        ([("file", "a/../../escape", "x")], r"is a path with `\.\.`"),
        ([("file", "/etc/escape", "x")], "is an absolute path"),
        ([("directory", "..", "")], r"is a path with `\.\.`"),
        ([("link", "a", "../../escape")], r"a is a link to \.\./\.\./escape, outside of the results"),
        ([("link", "a", "/etc/shadow")], "a is a link to /etc/shadow, outside"),
        ([("link", "b/a", "c/../../../x")], "outside of the results"),
        ([("hard link", "a", "../x")], "outside of the results"),
        ([("link", "a", "b"), ("file", "a/x", "x")], "a/x is there twice, or below something"),
        ([("file", "a", "x"), ("file", "a", "y")], "a is there twice"),
        ([("fifo", "a", "")], "a is a special file"),
        ([("device", "a", "")], "a is a special file"),
        ([("file", "a\x1b[2Jb", "x")], r"a\?\[2Jb is a name with a control character"),
        ([("file", "a\nb", "x")], r"a\?b is a name with a control character"),
        ([("file", "a\\b", "x")], "is a name with a control character or one of"),
        ([("file", "a" * 300, "x")], "is a name that is too long"),
        ([("file", "a", "x" * LIMIT), ("file", "b", "x")], "the files are more than 1048576 bytes"),
    ],
)
def test_archive_with_a_dangerous_member_is_refused_before_a_file_is_written(
    tmp_path: Path, members: list[Member], message: str
) -> None:
    made = archive(tmp_path / "a.tar", ("file", "good", "x"), *members)
    kept = tmp_path / "out/kept"
    kept.parent.mkdir()
    kept.touch()
    with pytest.raises(results.ResultsError, match=message):
        results.unpack(made, tmp_path / "out", LIMIT)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["kept"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "out"]


def test_name_that_is_no_utf_8_is_refused(tmp_path: Path) -> None:
    name = os.fsdecode(b"a\xff")
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo(name), io.BytesIO(b""))
    with pytest.raises(results.ResultsError, match="is a name that is no UTF-8"):
        results.unpack(tmp_path / "a.tar", tmp_path / "out", LIMIT)


def test_damaged_archive_is_named(tmp_path: Path) -> None:
    whole = archive(tmp_path / "a.tar", ("file", "a", "x" * 5000)).read_bytes()
    (tmp_path / "a.tar").write_bytes(whole[:2000])
    with pytest.raises(results.ResultsError, match="the archive of the files is damaged"):
        results.unpack(tmp_path / "a.tar", tmp_path / "out", LIMIT)


def test_directory_that_is_a_link_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(results.ResultsError, match="is there and is no directory: remove it"):
        results.unpack(archive(tmp_path / "a.tar", ("file", "a", "x")), tmp_path / "out", LIMIT)


def companion() -> Any:
    spec = importlib.util.spec_from_file_location("companion", COMPANION)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def packed(root: Path, limit: int = LIMIT) -> tuple[int, bytes, Any]:
    program = COMPANION.read_text().replace('Path("/results")', f"Path({str(root)!r})")
    done = subprocess.run(
        [sys.executable, "-c", program, "pack", str(limit)], capture_output=True, check=False
    )
    return done.returncode, done.stdout, json.loads(done.stderr)


def test_companion_packs_what_a_job_has_written(tmp_path: Path) -> None:
    root = tmp_path / "results"
    (root / "b/c").mkdir(parents=True)
    (root / "b/c/file").write_text("content")
    (root / "same").hardlink_to(root / "b/c/file")
    (root / "latest").symlink_to("b/c")
    os.mkfifo(root / "pipe")
    (root / "pipe").unlink()
    status, content, listing = packed(root)
    assert (status, listing) == (0, {"files": 2, "bytes": 14})
    (tmp_path / "a.tar").write_bytes(content)
    found = results.unpack(tmp_path / "a.tar", tmp_path / "out", LIMIT)
    assert sorted(found.files) == ["b/c/file", "same"]
    assert (tmp_path / "out/same").read_text() == "content"
    assert found.left_out == ["latest"]


def test_companion_packs_nothing_above_the_limit(tmp_path: Path) -> None:
    (tmp_path / "large").write_text("x" * 100)
    assert packed(tmp_path, 99) == (3, b"", {"files": 1, "bytes": 100})


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def test_companion_reads_the_board_from_sysfs(tmp_path: Path) -> None:
    sysfs, meminfo = tmp_path / "sys", tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       8000 kB\nMemFree: 1 kB\nMemAvailable:   3000 kB\n")
    write(
        sysfs,
        **{
            "class/thermal/thermal_zone0/type": "gpu-thermal",
            "class/thermal/thermal_zone0/temp": "45500",
            "class/thermal/thermal_zone1/type": "cv0-thermal",
            "class/thermal/thermal_zone1/temp": "",
            "class/thermal/cooling_device0/type": "pwm-fan",
            "class/thermal/cooling_device0/cur_state": "3",
            "class/thermal/cooling_device1/type": "devfreq-17000000.gpu",
            "class/thermal/cooling_device1/cur_state": "2",
            "class/devfreq/15340000.vic/cur_freq": "1",
            "class/devfreq/17000000.gpu/cur_freq": "918000000",
            "devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "729600",
            "devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "1510400",
            "class/hwmon/hwmon0/name": "ina3221",
            "class/hwmon/hwmon0/in1_label": "VDD_IN",
            "class/hwmon/hwmon0/in1_input": "5000",
            "class/hwmon/hwmon0/curr1_input": "1200",
            "class/hwmon/hwmon0/in2_label": "NC",
            "class/hwmon/hwmon0/in2_input": "0",
            "class/hwmon/hwmon0/curr2_input": "0",
            "class/hwmon/hwmon1/name": "soctherm_oc",
            "class/hwmon/hwmon1/oc1_event_cnt": "7",
            "bus/i2c/drivers/ina3221x/6-0040/iio:device0/rail_name_0": "POM_5V_IN",
            "bus/i2c/drivers/ina3221x/6-0040/iio:device0/in_power0_input": "2500",
        },
    )
    assert companion().sample(tmp_path, meminfo) == {
        "temperature": {"gpu-thermal": 45.5},
        "clock": {"gpu": 918e6, "cpu": 1510.4e6},
        "power": {"VDD_IN": 6.0, "POM_5V_IN": 2.5},
        "throttling": {"oc1 events": 7.0, "devfreq-17000000.gpu (cooling_device1)": 2.0},
        "memory": {"used": 5000 * 1024},
    }


def test_companion_says_nothing_of_a_board_without_sensors(tmp_path: Path) -> None:
    found = companion().sample(tmp_path, tmp_path / "meminfo")
    assert found == {"temperature": {}, "clock": {}, "power": {}, "throttling": {}, "memory": {}}


def test_figures_have_least_mean_most_and_units() -> None:
    samples: list[dict[str, Any]] = [
        {"temperature": {"gpu": 40.04}, "clock": {"gpu": 306e6}, "throttling": {"oc1 events": 7, "cpu": 0}},
        {"temperature": {"gpu": 50.0}, "clock": {"gpu": 918e6}, "throttling": {"oc1 events": 9, "cpu": 1}},
    ]
    text = "\n".join(["no sample", *map(json.dumps, samples), '{"temperature": {"x": "NaN"}}', "[1]"])
    read = figures.parse(text)
    found = {one["name"]: one for one in figures.figures(read) if one["group"] in ("temperature", "clock")}
    assert found == {"gpu": found["gpu"]}
    lines = [figures.line(one) for one in figures.figures(read)]
    assert lines[:2] == [
        "temperature gpu: 40 to 50 °C, mean 45 °C",
        "clock gpu: 306 to 918 MHz, mean 612 MHz",
    ]
    assert figures.throttled(read) == [
        "over-current: 2 oc1 events",
        "cooling device cpu in 1 of 2 samples",
    ]


def test_board_cannot_fill_the_report_with_figures() -> None:
    many = {"temperature": {f"zone{number}": 1.0 for number in range(1000)} | {"x" * 999: 1.0}}
    found = figures.figures([many, {"temperature": {"zone0": float("inf")}}])
    assert len(found) == figures.MOST_SERIES
    assert found[0]["max"] == 1.0

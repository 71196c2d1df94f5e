# SPDX-License-Identifier: Apache-2.0
"""docs/stability.md gives each public name in the sources exactly one level, and has no other names."""

import argparse
import json
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import (
    bundle_content,
    k3s_archive,
    report_fleet,
    snapshot_archive,
)
from ansible_collections.jetson_k3s.cluster.plugins.modules import bundle_index
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import gpu_verify
from tegra_device_plugin import cli
from tegra_device_plugin.board.detection import detect
from tegra_device_plugin.board.labels import node_labels
from tegra_device_plugin.config.dra_modes import Dra
from tegra_device_plugin.dra import checkpoint
from tegra_device_plugin.dra.claims import UNHEALTHY
from tegra_device_plugin.dra.devices import published
from tegra_device_plugin.system.kubernetes import DRIVER, parse_quantity
from tegra_device_plugin.telemetry.exposition import HELP

from tests import boards
from tests.docs import CHECKOUT, markdown
from tests.unit.plugin.dra.objects import gpu
from tools import front_door
from tools.docs import settings

PAGE = CHECKOUT / "docs/stability.md"
LEVELS = {"stable", "beta", "experimental"}
CODE = re.compile(r"`([^`]+)`")
SOURCES = ("plugin/tegra_device_plugin", "plugin/deploy", "plugins", "roles", "playbooks")

Row = dict[str, str]
Levels = dict[str, str]
"""By name or pattern."""


def rows() -> Iterator[Row]:
    """Each line of the page's tables whose last column is `Level`: its cells by the column's title."""
    header: list[str] = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            header = []
        elif not header:
            header = cells
        elif header[-1] == "Level" and set(cells[0]) != {"-"}:
            yield dict(zip(header, cells, strict=True))


def levels(title: str) -> Levels:
    """The level of each name in the columns of that title; a name that is there twice fails."""
    found: Levels = {}
    for row in rows():
        for name in CODE.findall(row.get(title, "")):
            assert name not in found, f"{name} has two levels"
            found[name] = row["Level"]
    return found


def known_length(pattern: str) -> int:
    return len(pattern.replace("*", ""))


def unlike(names: Iterable[str], given: Levels) -> set[str]:
    """Names without exactly one level, and lines of the page that are no name's level."""
    wrong, used = set(), set()
    for name in names:
        fitting = [pattern for pattern in given if fnmatchcase(name, pattern)]
        most = max(map(known_length, fitting), default=0)
        longest = [pattern for pattern in fitting if known_length(pattern) == most]
        if len(longest) != 1:
            wrong.add(name)
        used |= set(longest)
    return wrong | (given.keys() - used)


def test_each_line_has_one_of_the_levels() -> None:
    assert {row["Level"] for row in rows()} == LEVELS


def test_a_name_without_a_level_and_a_level_without_a_name_are_found() -> None:
    given = {"a_*": "stable", "a_b": "beta"}
    assert unlike(["a_b", "a_c"], given) == set()
    assert unlike(["a_b", "b"], given) == {"b", "a_*"}


def test_playbooks() -> None:
    names = [path.name for path in CHECKOUT.glob("playbooks/*.*") if path.suffix in (".yml", ".py")]
    assert unlike(names, levels("Playbook")) == set()


def test_commands_of_the_front_door() -> None:
    own = [row for row in rows() if "Playbook" in row]
    given = {name: row["Level"] for row in own for name in CODE.findall(row["Command"])}
    assert unlike([*front_door.COMMANDS, *front_door.OTHERS], given) == set()


def own_options(program: str) -> Levels:
    """The levels of options in the chapter about a program."""
    (chapter,) = (one for one in markdown.read(PAGE).sections if one.title == program)
    return {name: level for name, level in levels("Option").items() if f"`{name}`" in chapter.text}


def test_options_of_install_sh() -> None:
    text = (CHECKOUT / "install.sh").read_text()
    taken = set(re.findall(r"^ +((?:--?[\w-]+ \| )*--[\w-]+)\)", text, re.MULTILINE))
    names = {name for one in taken for name in one.split(" | ") if name.startswith("--")}
    assert unlike(names, own_options("install.sh")) == set()


def plugin_commands() -> Levels:
    (chapter,) = (one for one in markdown.read(PAGE).sections if one.title == "The device plugin's program")
    return {
        name: row["Level"]
        for row in rows()
        if "Command" in row and "Playbook" not in row and row["Command"] in chapter.text
        for name in CODE.findall(row["Command"])
    }


def test_commands_of_the_plugin() -> None:
    assert unlike(cli._COMMANDS, plugin_commands()) == set()


def test_options_of_the_commands_that_serve() -> None:
    names = set()
    for command in ("run", "dra", "agent", "throttle-taint"):
        parser = argparse.ArgumentParser(add_help=False)
        cli.find_command(command).add_arguments(parser)
        names |= {name for action in parser._actions for name in action.option_strings}
    assert unlike(names, own_options("The device plugin's program")) == set()


def test_settings() -> None:
    assert unlike(settings.settings(), levels("Setting")) == set()


def test_metrics() -> None:
    assert unlike(HELP, levels("Metric")) == set()


def test_alerts() -> None:
    groups = yaml.safe_load((CHECKOUT / "roles/monitoring/files/alerts.yml").read_text())["groups"]
    assert unlike([rule["alert"] for group in groups for rule in group["rules"]], levels("Alert")) == set()


NAME = re.compile(
    r"(?<![\w./-])((?:[\w-]+\.)*(?:jetson-k3s\.github\.io|nvidia\.com)|prometheus\.io)/([A-Za-z][\w.-]*)"
)
NOT_SERVED = {
    "nvidia.com/gpu.present": "NVIDIA's label, which the plugin does not set",
    "nvidia.com/mig.capable": "the same",
    "nvidia.com/priority": "HAMi's resource, which check-manifest finds",
}


def names_in_the_cluster(root: Path) -> set[str]:
    """Names with a domain in the sources, and those that the plugin makes of a board."""
    found = {DRIVER, f"shared.{DRIVER}", UNHEALTHY}
    for place in SOURCES:
        for path in (CHECKOUT / place).rglob("*"):
            if path.suffix in (".py", ".yml", ".yaml", ".j2", ".json", ".tpl"):
                found |= {"/".join(match).rstrip(".") for match in NAME.findall(path.read_text())}
    boards.build(boards.load()["orinnano-jp6"], root)
    found |= node_labels(
        detect(root), power_mode="15W", memory_unit="256Mi", gpu_share="weighted", devices="camera"
    ).keys()
    return {name for name in found if not name.endswith(("-", ".schema.json"))} - NOT_SERVED.keys()


def test_names_in_the_cluster(tmp_path: Path) -> None:
    assert unlike(names_in_the_cluster(tmp_path), levels("Name in the cluster")) == set()


def test_attributes_and_capacities_of_the_driver(tmp_path: Path) -> None:
    dra = Dra("capacity", memory_total=parse_quantity("4Gi"))
    (device,) = published(gpu(tmp_path, "orinnano-jp6"), dra, taints=True)
    given = levels("Attribute or capacity")
    text = (CHECKOUT / "plugin/tegra_device_plugin/dra/devices.py").read_text()
    # A simulated board does not have all of them.
    names = device["attributes"].keys() | device["capacity"].keys()
    assert names <= set(re.findall(r'"(\w+)"', text))
    body = text[text.index("def attributes") : text.index("def capacities")]
    assert unlike(names | set(re.findall(r'"(\w+)": (?!value|version|number|\{)', body)), given) == set()


FORMATS = {
    gpu_verify.SCHEMA: gpu_verify.SCHEMA_VERSION,
    report_fleet.SCHEMA: report_fleet.SCHEMA_VERSION,
    "jetson-k3s/verify-fleet": report_fleet.SCHEMA_VERSION,
    "bundle.yml": bundle_content.FORMAT,
    k3s_archive.FORMAT: int(k3s_archive.FORMAT.rpartition("/")[2]),
    "checkpoint.json": checkpoint.VERSION,
    snapshot_archive.FORMAT: snapshot_archive.VERSION,
}
VERSIONED = re.compile(r"^(?:SCHEMA_VERSION|FORMAT|VERSION) = (?:\d|\"[\w-]+/\d)", re.MULTILINE)


def test_formats_with_their_versions() -> None:
    given = {
        CODE.findall(row["Format"])[0]: (int(row["Version"]), row["Level"])
        for row in rows()
        if "Format" in row
    }
    assert {name: version for name, (version, _) in given.items()} == FORMATS
    assert bundle_index.FORMAT == bundle_content.FORMAT
    schema = json.loads((CHECKOUT / "roles/gpu_report/files/verify-report.schema.json").read_text())
    assert schema["properties"]["schema_version"]["const"] == gpu_verify.SCHEMA_VERSION


def test_each_file_with_the_version_of_a_format_is_known() -> None:
    found = {
        path.relative_to(CHECKOUT).as_posix()
        for place in ("plugin", "plugins", "release", "roles")
        for path in (CHECKOUT / place).rglob("*.py")
        if not path.is_symlink() and VERSIONED.search(path.read_text())
    }
    known = (
        gpu_verify,
        report_fleet,
        bundle_content,
        bundle_index,
        k3s_archive,
        checkpoint,
        snapshot_archive,
    )
    assert found == {Path(str(one.__file__)).resolve().relative_to(CHECKOUT).as_posix() for one in known}


def leaves(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def test_values_of_the_chart() -> None:
    values = yaml.safe_load((CHECKOUT / "plugin/deploy/chart/values.yaml").read_text())
    assert unlike(leaves(values), levels("Value")) == set()


@pytest.mark.parametrize(
    "page", ["README.md", "docs/settings.md", "docs/monitoring.md", "docs/collection.md"]
)
def test_pages_about_public_names_lead_to_the_levels(page: str) -> None:
    found = markdown.read(CHECKOUT / page).links
    assert any(link.partition("#")[0].endswith("stability.md") for link in found)

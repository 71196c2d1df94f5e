# SPDX-License-Identifier: Apache-2.0
"""The expressions of alerts and dashboard, and what they ask for by name."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from tools.cache import CHECKOUT

FILES = CHECKOUT / "roles/monitoring/files"
# What Prometheus and the scrape job add to every sample.
ADDED = frozenset({"job", "instance", "node"})
# What the pages say only while jtop's service runs.
OF_JTOP = frozenset(
    {
        *("tegra_gpu_memory_bytes", "tegra_memory_used_bytes", "tegra_power_mode"),
        "tegra_jtop_disagreement",
    }
)
# And only with configured units.
OF_UNITS = frozenset(
    {
        *("tegra_device_plugin_held_devices", "tegra_device_plugin_free_devices"),
        *("tegra_device_plugin_weight_percent", "tegra_device_plugin_memory_limit_bytes"),
        "tegra_device_plugin_memory_used_bytes",
    }
)
# And only with boardMetrics.
OF_SENSORS = frozenset(
    {
        *("tegra_power_watts", "tegra_temperature_celsius", "tegra_cooling_state"),
        *("tegra_overcurrent_events_total", "tegra_power_mode_number"),
    }
)
# The DRA driver's, which is never beside the device plugin.
OF_DRIVER = "tegra_dra_driver_"

_SELECTOR = re.compile(
    r"\b(?P<metric>(?:tegra|process|vGPU|DCGM|gpu_fractioning)_\w+)(?:\{(?P<matchers>[^}]*)\})?"
)
_MATCHER = re.compile(r'(?P<label>\w+)(?P<operator>=~|!~|!=|=)"(?P<value>[^"]*)"')
_GROUPING = re.compile(r"\b(?:by|on|without|ignoring) *\(([^)]*)\)")
_LABEL_VALUES = re.compile(r"""label_values\(\{__name__=~"(?P<metrics>[\w|]+)"\}, *(?P<label>\w+)\)""")
_SHOWN = re.compile(r"\{\{ *(?:\$labels\.)?(\w+) *\}\}")


@dataclass(frozen=True)
class Query:
    """An expression, with the labels that its legend or its annotations show."""

    place: str
    expression: str
    shown: frozenset[str] = frozenset()

    def selectors(self) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
        for match in _SELECTOR.finditer(self.expression):
            yield match["metric"], _MATCHER.findall(match["matchers"] or "")

    def labels(self) -> frozenset[str]:
        """Labels by which it groups, and that are shown."""
        groups = ",".join(_GROUPING.findall(self.expression)).split(",")
        return self.shown | {label.strip() for label in groups if label.strip()}


def alerts() -> Iterator[Query]:
    for group in yaml.safe_load((FILES / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            shown = frozenset(_SHOWN.findall(" ".join(rule["annotations"].values())))
            yield Query(rule["alert"], rule["expr"], shown)


def dashboard() -> Iterator[Query]:
    found = json.loads((FILES / "dashboard.json").read_text())
    for panel in found["panels"]:
        columns = frozenset(_columns(panel))
        for target in panel["targets"]:
            shown = frozenset(_SHOWN.findall(target.get("legendFormat", "")))
            yield Query(panel["title"], target["expr"], shown | columns)
    for variable in found["templating"]["list"]:
        if match := _LABEL_VALUES.fullmatch(
            str(variable["query"].get("query")) if variable["type"] == "query" else ""
        ):
            for metric in match["metrics"].split("|"):
                yield Query(f"variable {variable['name']}", metric, frozenset({match["label"]}))


def _columns(panel: Mapping[str, Any]) -> Iterator[str]:
    for change in panel.get("transformations", ()):
        if change["id"] == "filterFieldsByName":
            yield from change["options"]["include"]["names"]


def with_values(expression: str) -> str:
    """A dashboard's expression with values for Grafana's variables, as Prometheus gets it."""
    return expression.replace("$node", ".*").replace("$__rate_interval", "5m")

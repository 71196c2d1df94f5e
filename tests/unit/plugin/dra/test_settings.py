# SPDX-License-Identifier: Apache-2.0
"""`sharing.dra` of the file, the options of `dra`, and which command serves what."""

from pathlib import Path

import pytest
from tegra_device_plugin.config.dra_modes import Dra, describe
from tegra_device_plugin.config.options import ConfigError
from tegra_device_plugin.config.settings import DraSettings, load_dra, load_plugin
from tegra_device_plugin.system.kubernetes import GIB, MIB

UNITS = "units: {memoryTotal: 6Gi}"
REPLICAS = "timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}"


def read(tmp_path: Path, sharing: str, more: str = "") -> DraSettings:
    file = tmp_path / "config.yaml"
    file.write_text(f"version: v1\nsharing: {{{sharing}}}\n{more}")
    return load_dra(file, {"NODE_NAME": "jetson-1"}, {})


@pytest.mark.parametrize(
    ("text", "dra"),
    [
        ("mode: exclusive", Dra()),
        ("mode: exclusive, memoryTotal: 6Gi", Dra(memory_total=6 * GIB)),
        ("mode: shares, shares: 4", Dra("shares", 4)),
        ("mode: capacity, memoryTotal: 6Gi", Dra("capacity", 1, 6 * GIB, 64 * MIB)),
        (
            "mode: capacity, memoryTotal: 6Gi, memoryStep: 256Mi, contextOverhead: 10Mi",
            Dra("capacity", 1, 6 * GIB, 256 * MIB, 10 * MIB),
        ),
    ],
)
def test_a_valid_file_is_accepted(tmp_path: Path, text: str, dra: Dra) -> None:
    assert read(tmp_path, f"dra: {{{text}}}").dra == dra
    assert list(describe(dra))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("dra: {}", "sharing.dra.mode is missing"),
        ("dra: {mode: half}", "allowed: exclusive, shares, capacity"),
        ("dra: {mode: shares}", "sharing.dra.shares is missing"),
        ("dra: {mode: shares, shares: 65}", "allowed: 2 to 64"),
        ("dra: {mode: exclusive, shares: 2}", "sharing.dra.shares is not known"),
        ("dra: {mode: capacity}", "sharing.dra.memoryTotal is missing"),
        ("dra: {mode: capacity, memoryTotal: 100Mi}", "take 128Mi or 192Mi"),
        ("dra: {mode: capacity, memoryTotal: 6Gi, memoryStep: 1Ki}", "a multiple of 1Mi above 0"),
        ("dra: {mode: capacity, memoryTotal: 6Gi, contextOverhead: 6Gi}", "less than memoryTotal"),
        ("dra: {mode: shares, shares: 2, memoryStep: 64Mi}", "sharing.dra.memoryStep is not known"),
        ("dra: {mode: exclusive, memoryTotal: 0}", "more than 0 is needed"),
        (f"dra: {{mode: exclusive}}, {UNITS}", "leave all but one out"),
        (f"dra: {{mode: exclusive}}, {REPLICAS}", "leave all but one out"),
    ],
)
def test_a_wrong_file_is_rejected_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"config.yaml:2: .*{says}"):
        read(tmp_path, text)


def test_another_resource_name_is_not_for_claims(tmp_path: Path) -> None:
    renamed = 'resources: {gpus: [{pattern: "*", name: example.com/gpu}]}\n'
    with pytest.raises(ConfigError, match="extendedResourceName"):
        read(tmp_path, "dra: {mode: exclusive}", renamed)


def test_run_rejects_sharing_of_dra(tmp_path: Path) -> None:
    read(tmp_path, "dra: {mode: exclusive}")
    with pytest.raises(ConfigError, match="served by the command `dra`, not by `run`"):
        load_plugin(tmp_path / "config.yaml", {}, {})


@pytest.mark.parametrize(("text", "kind"), [(UNITS, "units"), (REPLICAS, "timeSlicing")])
def test_dra_rejects_sharing_of_run(tmp_path: Path, text: str, kind: str) -> None:
    with pytest.raises(ConfigError, match=rf"sharing.{kind} is served by the command `run`, not by `dra`"):
        read(tmp_path, text)


def test_dra_needs_the_node_s_name() -> None:
    with pytest.raises(ConfigError, match="NODE_NAME"):
        load_dra(None, {}, {})


@pytest.mark.parametrize("name", ["", "Jetson", "a_b", "-a", "a" * 254])
def test_a_name_that_no_node_has_is_rejected(name: str) -> None:
    with pytest.raises(ConfigError, match="NODE_NAME"):
        load_dra(None, {"NODE_NAME": name}, {})

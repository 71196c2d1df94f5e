# SPDX-License-Identifier: Apache-2.0
"""The configuration: NVIDIA's file taken as it is, everything else refused with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tegra_device_plugin.config.settings import OPTIONS, ConfigError, Settings, Sharing, load, resource_name

NVIDIA = """
version: v1
flags:
  migStrategy: "none"
  failOnInitError: true
  nvidiaDriverRoot: "/"
  plugin:
    passDeviceSpecs: true
    deviceListStrategy: envvar
    deviceIDStrategy: index
  gfd: {oneshot: false, sleepInterval: 60s}
resources:
  gpus:
  - pattern: "*"
    name: nvidia.com/gpu
sharing:
  timeSlicing:
    renameByDefault: false
    failRequestsGreaterThanOne: false
    resources:
    - name: nvidia.com/gpu
      replicas: 10
"""


def read(tmp_path: Path, text: str) -> Settings:
    """Settings of a file with that text."""
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return load(path, {}, {})[0]


def problems(tmp_path: Path, text: str) -> list[str]:
    """What is wrong with a file, without its directory."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    return [problem.removeprefix(f"{tmp_path}/") for problem in caught.value.problems]


def test_nvidias_own_example_is_taken(tmp_path: Path) -> None:
    assert read(tmp_path, NVIDIA) == Settings(
        device_id_strategy="index", sharing=Sharing(replicas=10, fail_requests_greater_than_one=False)
    )


def test_keys_without_effect_are_named(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(NVIDIA)
    notes = load(path, {}, {})[1]
    assert [note.rpartition(":")[2].split()[0] for note in notes] == [
        "flags.failOnInitError",
        "flags.nvidiaDriverRoot",
        "flags.gfd",
    ]


def test_json_is_taken_too(tmp_path: Path) -> None:
    file = {"version": "v1", "flags": {"plugin": {"logLevel": "debug"}}}
    assert read(tmp_path, json.dumps(file)).log_level == "debug"


def test_a_shared_resource_can_have_a_name_of_its_own(tmp_path: Path) -> None:
    renamed = read(tmp_path, NVIDIA.replace("renameByDefault: false", "renameByDefault: true"))
    assert (renamed.resource, renamed.sharing.renamed) == ("nvidia.com/gpu.shared", True)
    named = read(tmp_path, NVIDIA.replace("replicas: 10", "replicas: 10\n      rename: example.com/slice"))
    assert named.resource == "example.com/slice"


def test_more_than_one_share_is_refused_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    text = NVIDIA.replace("    failRequestsGreaterThanOne: false\n", "")
    assert read(tmp_path, text).sharing.fail_requests_greater_than_one


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "config.yaml:1: a mapping"),
        ("[]", "config.yaml:1: a mapping"),
        ("version: v1\na: b: c", "config.yaml:2: not YAML"),
        ("flags: {}", "config.yaml:1: version is missing"),
        ("version: v2", "config.yaml:1: version: 'v2': allowed: v1"),
        ("version: 1", "config.yaml:1: version must be text, not a number"),
        (
            "version: v1\nverison: v1",
            "config.yaml:2: verison is not known; allowed: flags, resources, sharing",
        ),
        ("version: v1\nflags: {}\nflags: {}", "config.yaml:3: flags is given twice"),
        ("version: v1\nflags: []", "config.yaml:2: flags must be a mapping, not a list"),
        (
            "version: v1\nflags:\n  migStrategy: single",
            "config.yaml:3: flags.migStrategy: 'single': allowed: none",
        ),
        ("version: v1\nflags:\n  gdsEnabled: true", "config.yaml:3: flags.gdsEnabled: allowed: false"),
        (
            "version: v1\nflags:\n  deviceDiscoveryStrategy: nvml",
            "flags.deviceDiscoveryStrategy: 'nvml': allowed: auto",
        ),
        (
            "version: v1\nflags:\n  plugin:\n    deviceListStrategy: cdi-annotations",
            ":4: flags.plugin.deviceListStra",
        ),
        ("version: v1\nflags:\n  plugin:\n    deviceListStrategy: {a: b}", "must be text, not a mapping"),
        ("version: v1\nflags:\n  plugin:\n    hostRoot: here", "an absolute path is needed"),
        ("version: v1\nflags:\n  plugin:\n    metricsAddress: 9400", "HOST:PORT is needed"),
        (
            "version: v1\nresources:\n  gpus: [{pattern: Orin, name: gpu}]",
            "gpus[0].pattern: 'Orin': allowed: *",
        ),
        (
            "version: v1\nresources:\n  gpus: [{pattern: '*', name: a b}]",
            "not the name of an extended resource",
        ),
        ("version: v1\nresources:\n  gpus: [1]", "resources.gpus[0] must be a mapping, not a number"),
        ("version: v1\nresources:\n  mig: [{pattern: a, name: b}]", "serves the whole GPU"),
        ("version: v1\nsharing: {mps: {}}", "sharing.mps: MPS needs"),
        ("version: v1\n? [a, b]\n: c", "is not known"),
    ],
)
def test_what_cannot_work_is_refused_with_its_line(tmp_path: Path, text: str, expected: str) -> None:
    assert any(expected in problem for problem in problems(tmp_path, text))


@pytest.mark.parametrize(
    "replicas", ["1", "0", "-1", "1025", "many", "2.5", "'4'", "true", "null", "0x10", "1_0"]
)
def test_a_number_of_replicas_that_cannot_be(tmp_path: Path, replicas: str) -> None:
    (problem,) = problems(tmp_path, NVIDIA.replace("replicas: 10", f"replicas: {replicas}"))
    assert problem.startswith("config.yaml:22: sharing.timeSlicing.resources[0].replicas")


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    assert len(problems(tmp_path, "version: v2\nfoo: 1\nsharing: {mps: {}, bar: 1}\n")) == 4


def test_a_second_gpu_is_refused(tmp_path: Path) -> None:
    entry = "\n    - name: nvidia.com/gpu\n      replicas: 10"
    (problem,) = problems(tmp_path, NVIDIA.rstrip() + entry)
    assert "a Jetson has one GPU" in problem


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "none.yaml", {}, {})


def test_flag_over_environment_over_file(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "version: v1\nflags: {plugin: {logLevel: error, logFormat: json, deviceIDStrategy: index}}"
    )
    environment = {"LOG_LEVEL": "warning", "LOG_FORMAT": "text", "UNRELATED": "1"}
    settings, _ = load(path, environment, {"log_level": "debug", "host_root": None})
    assert (settings.log_level, settings.log_format, settings.device_id_strategy) == (
        "debug",
        "text",
        "index",
    )


def test_a_wrong_flag_or_variable_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {"LOG_FORMAT": "xml"}, {"metrics_address": "nonsense"})
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "--metrics-address",
        "LOG_FORMAT",
    ]


def test_every_option_has_a_flag_a_variable_and_a_key() -> None:
    assert {option.field for option in OPTIONS} <= set(Settings.__dataclass_fields__)
    for names in ([o.flag for o in OPTIONS], [o.variable for o in OPTIONS], [o.key for o in OPTIONS]):
        assert len(set(names)) == len(OPTIONS)


@pytest.mark.parametrize("name", ["gpu", "nvidia.com/gpu.shared", "a.b/C_d-e.f"])
def test_names_that_a_kubelet_takes(name: str) -> None:
    assert resource_name(name).endswith(name)


@pytest.mark.parametrize(
    "name", ["", "/", "a/", "-a.b/c", "a.b/-c", "kubernetes.io/gpu", "A.b/c", "a.b/" + "c" * 64]
)
def test_names_that_a_kubelet_refuses(name: str) -> None:
    with pytest.raises(ValueError, match="extended resource"):
        resource_name(name)


@given(st.text(max_size=300))
def test_no_text_makes_the_reader_fail_otherwise(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8", errors="replace")
    with pytest.raises(ConfigError):
        load(path, {}, {})

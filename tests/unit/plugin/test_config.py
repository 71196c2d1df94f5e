# SPDX-License-Identifier: Apache-2.0
"""The configuration: NVIDIA's file taken as it is, everything else refused with its line."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tegra_device_plugin.config.file import MAX_REPLICAS, Sharing, read_file
from tegra_device_plugin.config.options import PLUGIN_OPTIONS, ConfigError, Option
from tegra_device_plugin.config.settings import PluginSettings, load_plugin
from tegra_device_plugin.config.units import MAX_IDS
from tegra_device_plugin.system.kubernetes import resource_name

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

UNITS = """
version: v1
sharing:
  units:
    preset: none
    coreResource: jetson-k3s.github.io/gpu-core
    memoryResource: jetson-k3s.github.io/gpu-memory
    memoryUnit: 256Mi
    memoryTotal: 6Gi
    contextOverhead: 0Mi
"""

DEVICES = """
version: v1
devices:
- preset: argus
  count: 4
- name: camera
  groups:
  - count: 1
    paths:
    - path: /dev/video*
      mountPath: /dev/video0
      permissions: rw
      type: Device
      udev:
        ID_MODEL_ID: "0825"
"""


def read(tmp_path: Path, text: str) -> PluginSettings:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return load_plugin(path, {}, {})


def problems(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    return [problem.removeprefix(f"{tmp_path}/") for problem in caught.value.problems]


def test_nvidias_own_example_is_accepted(tmp_path: Path) -> None:
    assert read(tmp_path, NVIDIA) == PluginSettings(
        device_id_strategy="index", sharing=Sharing(replicas=10, fail_requests_greater_than_one=False)
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("imex", {"channelIDs": [0], "required": False}),
        ("flags.failOnInitError", True),
        ("flags.gfd", {"oneshot": False}),
        ("flags.plugin.kubeletSocket", "/var/lib/kubelet/device-plugins/kubelet.sock"),
    ],
)
def test_keys_without_effect_are_accepted_with_a_note(name: str, value: Any, tmp_path: Path) -> None:
    for key in reversed(name.split(".")):
        value = {key: value}
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(value))
    content = read_file(path)
    assert not content.options
    assert list(content.notes) == [f"{path}:1: {name} has no effect in this plugin"]


@pytest.mark.parametrize("written", ["True", "yes"])
def test_a_boolean_is_written_as_yaml_has_it(written: str, tmp_path: Path) -> None:
    key = "passDeviceSpecs: true"
    assert read(tmp_path, NVIDIA.replace(key, f"passDeviceSpecs: {written}")).pass_device_specs
    text = NVIDIA.replace("renameByDefault: false", f"renameByDefault: {written}")
    assert read(tmp_path, text).sharing.renamed


def test_a_shared_resource_can_have_its_own_name(tmp_path: Path) -> None:
    named = read(tmp_path, NVIDIA.replace("replicas: 10", "replicas: 10\n      rename: example.com/slice"))
    assert (named.resource, named.sharing.renamed) == ("example.com/slice", True)


def test_more_than_one_share_is_rejected_by_default(tmp_path: Path) -> None:
    text = NVIDIA.replace("    failRequestsGreaterThanOne: false\n", "")
    assert read(tmp_path, text).sharing.fail_requests_greater_than_one


GPU_X2 = "{name: nvidia.com/gpu, replicas: 2}"


# After the line of the version.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: b: c", "config.yaml:2: not YAML"),
        (
            "verison: v1",
            ":2: verison is not known; allowed: devices, flags, imex, resources, sharing, version",
        ),
        ("flags: {}\nflags: {}", ":1: not YAML: a key is given twice"),
        ("flags: []", ":2: flags must be a mapping, not a list"),
        ("flags:\n  migStrategy: single", ":3: flags.migStrategy: 'single': allowed: none"),
        ("flags: {deviceDiscoveryStrategy: nvml}", "'nvml': allowed: auto"),
        ("flags:\n  gdsEnabled: true", ":3: flags.gdsEnabled: 'true': allowed: false"),
        ("flags:\n  plugin:\n    deviceListStrategy: cdi-annotations", ":4: flags.plugin.deviceListStra"),
        ("flags: {plugin: {deviceListStrategy: [[a]]}}", "must be text, not a list"),
        ("flags: {plugin: {hostRoot: here}}", "an absolute path is needed"),
        ("flags: {plugin: {logLevel: [info]}}", "flags.plugin.logLevel must be text, not a list"),
        ("flags: {plugin: {passDeviceSpecs: maybe}}", "'maybe': allowed: true, false"),
        ("flags: {plugin: {passDeviceSpec: true}}", "flags.plugin.passDeviceSpec is not known"),
        ("resources: {gpus: [{pattern: Orin, name: gpu}]}", "gpus[0].pattern: 'Orin': allowed: *"),
        ("resources: {gpus: [{pattern: '*', name: a b}]}", "not the name of an extended resource"),
        ("resources: {gpus: [1]}", "resources.gpus[0] must be a mapping, not text"),
        ("resources: {gpus: [{pattern: '*', name: a.b/c}, {}]}", "gpus[1]: a Jetson has one GPU"),
        ("resources: {mig: [{pattern: a, name: b}]}", "allocates the GPU without MIG"),
        ("sharing:\n  timeSlicing: {}", ":3: sharing.timeSlicing.resources is missing"),
        ("sharing:\n  timeSlicing: {resources: []}", ":3: sharing.timeSlicing.resources is empty"),
        ("sharing: {timeSlicing: {resources: }}", "resources must be a list, not text"),
        (
            f"sharing: {{timeSlicing: {{resources: [{GPU_X2}, {GPU_X2}]}}}}",
            "resources[1]: a Jetson has one GPU",
        ),
        ("sharing: {mps: {}}", "sharing.mps: MPS needs"),
        ("? [a, b]\n: c", "not YAML: found unhashable key"),
        (f"flags: {'[' * 999}{']' * 999}", "config.yaml: maximum recursion depth exceeded"),
    ],
)
def test_invalid_settings_are_rejected_with_their_line(tmp_path: Path, text: str, expected: str) -> None:
    assert any(expected in problem for problem in problems(tmp_path, f"version: v1\n{text}"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "config.yaml:1: a mapping"),
        ("[]", "config.yaml:1: a mapping"),
        ("version: 2", "config.yaml:1: version: '2': allowed: v1"),
    ],
)
def test_a_file_of_another_kind_is_rejected(tmp_path: Path, text: str, expected: str) -> None:
    assert any(problem.startswith(expected) for problem in problems(tmp_path, text))


def test_a_default_name_that_becomes_too_long_is_rejected(tmp_path: Path) -> None:
    text = NVIDIA.replace("nvidia.com/gpu", "nvidia.com/" + "g" * 57).replace(
        "Default: false", "Default: true"
    )
    (problem,) = problems(tmp_path, text)
    assert problem.startswith("config.yaml:18: sharing.timeSlicing: renameByDefault gives 'nvidia.com/ggg")


@pytest.mark.parametrize("replicas", ["1", "0", "-1", "1025", "many", "2.5", "null", "010", "1_0"])
def test_a_number_of_replicas_that_cannot_be(tmp_path: Path, replicas: str) -> None:
    (problem,) = problems(tmp_path, NVIDIA.replace("replicas: 10", f"replicas: {replicas}"))
    assert problem.startswith("config.yaml:22: sharing.timeSlicing.resources[0].replicas")


def test_all_problems_are_reported_together(tmp_path: Path) -> None:
    assert len(problems(tmp_path, "version: v2\nfoo: 1\nsharing: {mps: {}, bar: 1}\n")) == 4


def test_flag_over_environment_over_file(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "version: v1\nflags: {plugin: {logLevel: error, logFormat: json, deviceIDStrategy: index}}"
    )
    environment = {"LOG_LEVEL": "warning", "LOG_FORMAT": "text", "UNRELATED": "1"}
    settings = load_plugin(path, environment, {"log_level": "debug", "host_root": None})
    assert (settings.log_level, settings.log_format, settings.device_id_strategy) == (
        "debug",
        "text",
        "index",
    )


def test_a_wrong_flag_or_variable_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        load_plugin(None, {"LOG_FORMAT": "xml"}, {"metrics_address": "nonsense"})
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "--metrics-address",
        "LOG_FORMAT",
    ]


# Of every option a text that is not its default, and what it means.
CHOSEN: dict[str, tuple[str, Any]] = {
    "host_root": ("/host", Path("/host")),
    "device_plugin_dir": ("/run/plugins", Path("/run/plugins")),
    "metrics_address": ("[::1]:65535", ("::1", 65535)),
    "log_format": ("json", "json"),
    "foreign_metrics": ("hami,dcgm", ("dcgm", "hami")),
    "board_metrics": ("true", True),
    "log_level": ("warning", "warning"),
    "device_list_strategy": ("cdi-cri,envvar", ("envvar", "cdi-cri")),
    "device_id_strategy": ("index", "index"),
    "pass_device_specs": ("false", False),
    "cdi_version": ("0.7.0", "0.7.0"),
    "gpu_limit_dir": ("/run/limit", Path("/run/limit")),
    "gpu_limit_library": ("/opt/limit.so", Path("/opt/limit.so")),
}


@pytest.mark.parametrize("option", PLUGIN_OPTIONS, ids=lambda option: option.field)
def test_every_option_is_a_flag_a_variable_and_a_key(option: Option, tmp_path: Path) -> None:
    text, value = CHOSEN[option.field]
    chosen = PluginSettings()._replace(**{option.field: value})
    assert chosen != PluginSettings()
    assert load_plugin(None, {}, {option.field: text}) == chosen
    assert load_plugin(None, {option.variable: text}, {}) == chosen
    assert read(tmp_path, json.dumps({"flags": {"plugin": {option.key: text}}})) == chosen
    if option.many:
        assert read(tmp_path, json.dumps({"flags": {"plugin": {option.key: text.split(",")}}})) == chosen


@pytest.mark.parametrize("host", ["x..y", ".x", "x" * 64, "a b", "a\0b", "\u00fc", "fe80::1%", "x:y"])
def test_host_that_the_resolver_would_fail_on_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="is no address and no host's name"):
        load_plugin(None, {}, {"metrics_address": f"{host}:9400"})


@pytest.mark.parametrize("host", ["", "x", "x.y.", "192.0.2.1", "::", "fe80::1%eth0.1", "::ffff:192.0.2.1"])
def test_host_is_an_address_or_a_name(host: str) -> None:
    assert load_plugin(None, {}, {"metrics_address": f"{host}:9400"}).metrics_address == (host, 9400)


@pytest.mark.parametrize(
    "address", ["9400", "host", "host:", ":x", ":-1", ":65536", ":99999", ":1e3", ":9400 ", ":\u0661"]
)
def test_an_address_that_cannot_be(address: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT is needed"):
        load_plugin(None, {"METRICS_ADDRESS": address}, {})


# The rules of IsExtendedResourceName (kubernetes, pkg/apis/core/v1/helper/helpers.go).
@pytest.mark.parametrize(
    "name",
    [
        *("gpu", "nvidia.com/gpu.shared", "a.b/C_d-e.f", "requests.nvidia", "nvidia.com/requests.gpu"),
        *("kubernetes.io.example.com/gpu", "a" * 244 + "/gpu", "a.b/" + "c" * 63),
    ],
)
def test_names_that_a_kubelet_accepts(name: str) -> None:
    assert resource_name(name).endswith(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", "/", "a/", "-a.b/c", "a.b/-c", "A.b/c", "a/b/c", "a.b/c\n"),
        *("kubernetes.io/gpu", "sub.kubernetes.io/gpu", "requests.nvidia.com/gpu", "requests./gpu"),
        *("a" * 245 + "/gpu", "a.b/" + "c" * 64),
    ],
)
def test_names_that_a_kubelet_rejects(name: str) -> None:
    with pytest.raises(ValueError, match="extended resource"):
        resource_name(name)


WORDS = st.sampled_from(
    [
        *("v1", "nvidia.com/gpu", "gpu", "'*'", "all", "none", "auto", "envvar", "/", ":9400", "json"),
        *("2", "1024", "6Gi", "256Mi", "-1Ki", "hami", "koordinator", "~", "true", "False", "010"),
        *("0x10", ".nan", "1e999", "2001-01-01", "'", "*a", "<<", "\\x", "", "&a b", "- x", "!!bool x"),
        *("!!int [1]", "!!int x", "!!str {a: b}", "!!map x", "!!seq x", "!!null x", "!own x"),
    ]
)
VALUES = WORDS | st.text(max_size=20)
ODD_VALUES = VALUES | st.lists(VALUES, max_size=3).map(lambda items: f"[{', '.join(items)}]")


@st.composite
def nearly_good_files(draw: st.DrawFn) -> str:
    """NVIDIA's example, or one of units or devices, with some of its values replaced, and lines lost."""
    lines = []
    for line in draw(st.sampled_from([NVIDIA, UNITS, DEVICES])).splitlines():
        key, colon, _ = line.partition(": ")
        fate = draw(st.sampled_from(["keep"] * 8 + ["replace", "lose"]))
        if fate == "replace" and colon:
            lines.append(f"{key}: {draw(ODD_VALUES)}")
        elif fate != "lose":
            lines.append(line)
    return "\n".join(lines)


@settings(max_examples=300)
@given(st.text(max_size=300) | ODD_VALUES | nearly_good_files())
def test_any_file_gives_valid_settings_or_problems_of_one_line(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8", errors="replace")
    try:
        chosen = load_plugin(path, {}, {})
    except ConfigError as error:
        assert error.problems
        assert all(problem.startswith(f"{path}:") for problem in error.problems)
        assert all(problem.splitlines() == [problem] for problem in error.problems)
    else:
        assert resource_name(chosen.resource) == chosen.resource
        assert 1 <= chosen.sharing.replicas <= MAX_REPLICAS
        if units := chosen.units:
            assert chosen.sharing.replicas == 1
            assert all(0 < count <= MAX_IDS for count in units.counts.values())
            assert units.memory_bytes(units.memory_ids) == units.memory_total

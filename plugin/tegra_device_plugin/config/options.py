# SPDX-License-Identifier: Apache-2.0
"""Settings as command line flags and environment variables: names, help and parsers."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from tegra_device_plugin.system.kubernetes import CDI_VERSIONS

T = TypeVar("T", bound=str)

DeviceListStrategy = Literal["envvar", "volume-mounts", "cdi-cri"]
DEVICE_LIST_STRATEGIES: tuple[DeviceListStrategy, ...] = ("envvar", "volume-mounts", "cdi-cri")

ForeignMetrics = Literal["dcgm", "gpu-fractioning", "hami", "kepler", "node-exporter"]
FOREIGN_METRICS: tuple[ForeignMetrics, ...] = get_args(ForeignMetrics)

# A DNS subdomain, as a node's name must be.
_NODE = r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"

_LAST_PORT = 65535
# Of an IP address, or a name in labels of up to 63 characters (RFC 1035).
_HOST = r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[-\w.]+)?|[-\w]{1,63}(\.[-\w]{1,63})*\.?"
# As YAML 1.1 has them.
_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


class ConfigError(Exception):
    """Settings that cannot be used; `problems` has one line for each error."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def _absolute(text: str) -> Path:
    if not text.startswith("/"):
        raise ValueError("an absolute path is needed")
    return Path(text)


def _address(text: str) -> tuple[str, int] | None:
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch("[0-9]{1,5}", port) or int(port) > _LAST_PORT:
        raise ValueError("HOST:PORT is needed, such as :9400 or 127.0.0.1:9400")
    host = host.strip("[]")
    if host and not re.fullmatch(_HOST, host, re.ASCII):
        raise ValueError(f"{host} is no address and no host's name")
    return host, int(port)


def one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"allowed: {', '.join(allowed)}")
        return text

    return parse


def _strategies(text: str) -> tuple[DeviceListStrategy, ...]:
    return _some_of(DEVICE_LIST_STRATEGIES, text)


def _foreign_metrics(text: str) -> tuple[ForeignMetrics, ...]:
    return _some_of(FOREIGN_METRICS, text) if text else ()


def _some_of(allowed: tuple[T, ...], text: str) -> tuple[T, ...]:
    chosen = [part.strip() for part in text.split(",")]
    for part in chosen:
        if part not in allowed:
            raise ValueError(f"{part!r} cannot work here; allowed: {', '.join(allowed)}")
    return tuple(known for known in allowed if known in chosen)


def _node_name(text: str) -> str:
    if not re.fullmatch(_NODE, text):
        raise ValueError("a node's name is needed: lower case letters, digits, - and .")
    return text


def boolean(text: str) -> bool:
    if text.lower() not in _TRUTH:
        raise ValueError("allowed: true, false")
    return _TRUTH[text.lower()]


_SECONDS = {"s": 1, "m": 60, "h": 3600}


def duration(text: str) -> int:
    """Give the seconds of a duration."""
    if not re.fullmatch("[1-9][0-9]{0,4}[smh]", text):
        raise ValueError("a number of seconds, minutes or hours is needed, such as 90s, 10m or 1h")
    return int(text[:-1]) * _SECONDS[text[-1]]


class Option(NamedTuple):
    """One setting as a flag, as an environment variable and as a key below `flags.plugin` in the file."""

    field: str
    metavar: str
    parse: Callable[[str], Any]
    help: str
    many: bool = False
    """The file may have a list."""

    @property
    def flag(self) -> str:
        return "--" + self.field.replace("_", "-")

    @property
    def key(self) -> str:
        """The key in the file; the same as NVIDIA's if there is one."""
        first, *words = self.field.split("_")
        return first + "".join("ID" if word == "id" else word.capitalize() for word in words)

    @property
    def variable(self) -> str:
        """The environment variable; the same as NVIDIA's if there is one."""
        return self.field.upper()


HOST_ROOT_OPTION = Option("host_root", "DIR", _absolute, "where the host's /sys, /dev, /etc and /proc are")
METRICS_ADDRESS_OPTION = Option(
    "metrics_address", "HOST:PORT", _address, "serve /metrics and the health pages at this address"
)
COMMON_OPTIONS = (
    HOST_ROOT_OPTION,
    METRICS_ADDRESS_OPTION,
    Option("log_format", "text|json", one_of("text", "json"), "the format of log lines"),
    Option(
        "log_level", "LEVEL", one_of("debug", "info", "warning", "error"), "debug, info, warning or error"
    ),
)
_FOREIGN_METRICS = Option(
    "foreign_metrics",
    "LIST",
    _foreign_metrics,
    "also serve metrics under the names of other exporters: dcgm, gpu-fractioning, hami, kepler, "
    "node-exporter, or several with commas; queries for such an exporter in the same cluster then also find "
    "this node's metrics",
    many=True,
)
GPU_LIMIT_DIR_OPTION = Option(
    "gpu_limit_dir",
    "DIR",
    _absolute,
    "the files that containers mount whose GPU memory is limited; the same path on the host",
)
_LIMIT_OPTIONS = (
    GPU_LIMIT_DIR_OPTION,
    Option("gpu_limit_library", "FILE", _absolute, "the library that limits GPU memory in a container"),
)
_CDI_VERSION = Option(
    "cdi_version",
    "|".join(CDI_VERSIONS),
    one_of(*CDI_VERSIONS),
    "of the CDI spec; 0.7.0 adds the device nodes' groups, for container runtimes that read it",
)
_NODE_NAME = Option("node_name", "NAME", _node_name, "this node's name, as the cluster has it")
AGENT_OPTIONS = (*COMMON_OPTIONS, _FOREIGN_METRICS)
PLUGIN_OPTIONS = (
    *COMMON_OPTIONS,
    _FOREIGN_METRICS,
    Option(
        "board_metrics", "true|false", boolean, "also serve metrics of the board's power, heat and throttling"
    ),
    Option("device_plugin_dir", "DIR", _absolute, "the kubelet's directory of plugin sockets"),
    Option(
        "device_list_strategy",
        "LIST",
        _strategies,
        "how a container gets the GPU: envvar, volume-mounts, cdi-cri, or several with commas; without "
        "volume-mounts alone (strict mode), an image with NVIDIA_VISIBLE_DEVICES=all gets the GPU uncounted",
        many=True,
    ),
    Option(
        "device_id_strategy",
        "uuid|index",
        one_of("uuid", "index"),
        "the ids that the container runtime gets: uuid means `all`, index means `0`",
    ),
    Option("pass_device_specs", "true|false", boolean, "pass the GPU's device nodes to the kubelet"),
    _CDI_VERSION,
    *_LIMIT_OPTIONS,
)
# The last two are not in the file, because many nodes share the file.
DRA_OPTIONS = (
    *COMMON_OPTIONS,
    *_LIMIT_OPTIONS,
    _CDI_VERSION,
    Option("kubelet_dir", "DIR", _absolute, "the kubelet's directory, with the sockets of its plugins"),
    _NODE_NAME,
)
TAINT_OPTIONS = (
    *COMMON_OPTIONS,
    _NODE_NAME,
    Option(
        "remove_after",
        "DURATION",
        duration,
        "remove the taint when the board was not throttled for so long: 90s, 10m or 1h (default: 10m)",
    ),
)

Flags = Mapping[str, str | None]
"""The text of each command line option that was given, by field name."""


def option_values(
    options: Sequence[Option], from_file: Mapping[str, Any], environment: Mapping[str, str], flags: Flags
) -> dict[str, Any]:
    """Give the values of `options` by field name: flag over environment over `from_file`.

    Options without a value are left out. Raises ConfigError.
    """
    known = {option.field for option in options}
    values = {name: value for name, value in from_file.items() if name in known}
    problems = []
    for option in options:
        for name, text in (
            (option.variable, environment.get(option.variable)),
            (option.flag, flags.get(option.field)),
        ):
            if text is None:
                continue
            try:
                values[option.field] = option.parse(text)
            except ValueError as error:
                problems.append(f"{name}: {text!r}: {error}")
    if problems:
        raise ConfigError(*problems)
    return values

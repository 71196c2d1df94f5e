# SPDX-License-Identifier: Apache-2.0
"""Settings of `run`: flag over environment over file over default. Parses, never acts.

The file is NVIDIA's device plugin configuration, `version: v1` (k8s-device-plugin, api/config/v1), read
strictly: what is not known, has the wrong type or cannot work on a Jetson is refused with file and line. Keys
of that schema that mean nothing here are listed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tegra_device_plugin.config.names import DEFAULT_RESOURCE, resource_name

if TYPE_CHECKING:
    from tegra_device_plugin.config.document import Section
    from tegra_device_plugin.config.dra import Dra
    from tegra_device_plugin.config.units import Units

DeviceListStrategy = Literal["envvar", "volume-mounts", "cdi-cri"]
DEVICE_LIST_STRATEGIES: tuple[DeviceListStrategy, ...] = ("envvar", "volume-mounts", "cdi-cri")

# A kubelet runs 110 pods by default; a list of more devices only fills its checkpoint.
MAX_REPLICAS = 1024

# A DNS subdomain, as Kubernetes wants a node's name.
_NODE = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

_PORT = re.compile("[0-9]{1,5}")
_LAST_PORT = 65535


class ConfigError(Exception):
    """Settings that cannot be used; `problems` has one line for each thing that is wrong."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True)
class Sharing:
    """Time-slicing: `replicas` containers may hold the GPU at once (1: one at a time)."""

    replicas: int = 1
    renamed: bool = False
    """The shared resource has a name of its own."""
    fail_requests_greater_than_one: bool = True


@dataclass(frozen=True)
class Settings:
    """Everything that can be chosen."""

    host_root: Path = Path("/")
    device_plugin_dir: Path = Path("/var/lib/kubelet/device-plugins")
    metrics_address: tuple[str, int] | None = None
    log_format: str = "text"
    log_level: str = "info"
    device_list_strategy: tuple[DeviceListStrategy, ...] = ("envvar",)
    device_id_strategy: str = "uuid"
    pass_device_specs: bool = True
    resource: str = DEFAULT_RESOURCE
    sharing: Sharing = field(default_factory=Sharing)
    units: Units | None = None
    """Instead of time-slicing, and of `resource`: they have names of their own."""
    dra: Dra | None = None
    """Instead of both, for the command `dra`."""
    gpu_limit_dir: Path = Path("/var/lib/tegra-gpu-limit")
    gpu_limit_library: Path = Path("/usr/lib/tegra-gpu-limit/libtegra-gpu-limit.so")
    kubelet_dir: Path = Path("/var/lib/kubelet")
    node_name: str = ""

    @property
    def resources(self) -> tuple[str, ...]:
        """All that is advertised, in order."""
        return self.units.resources if self.units else (self.resource,)

    @property
    def counts(self) -> dict[str, int]:
        """How many devices of each resource a node advertises."""
        return self.units.counts if self.units else {self.resource: self.sharing.replicas}

    @property
    def configured_memory(self) -> int | None:
        """Bytes of the GPU's memory that are given out in pieces, None if they are not."""
        if self.dra:
            return self.dra.configured_memory
        return self.units.memory_total if self.units else None

    def same_places(self, other: Settings) -> bool:
        """Tell whether `other` can take over without giving up a socket or looking at another host."""
        return (self.host_root, self.device_plugin_dir, self.metrics_address) == (
            other.host_root,
            other.device_plugin_dir,
            other.metrics_address,
        )


def _absolute(text: str) -> Path:
    if not text.startswith("/"):
        raise ValueError("an absolute path is needed")
    return Path(text)


def _address(text: str) -> tuple[str, int] | None:
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not _PORT.fullmatch(port) or int(port) > _LAST_PORT:
        raise ValueError("HOST:PORT is needed, such as :9400 or 127.0.0.1:9400")
    return host.strip("[]"), int(port)


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"allowed: {', '.join(allowed)}")
        return text

    return parse


def _strategies(text: str) -> tuple[DeviceListStrategy, ...]:
    chosen = [part.strip() for part in text.split(",")]
    for part in chosen:
        if part not in DEVICE_LIST_STRATEGIES:
            raise ValueError(f"{part!r} cannot work here; allowed: {', '.join(DEVICE_LIST_STRATEGIES)}")
    return tuple(known for known in DEVICE_LIST_STRATEGIES if known in chosen)


def _node_name(text: str) -> str:
    if not _NODE.fullmatch(text):
        raise ValueError("a node's name is needed: lower case letters, digits, - and .")
    return text


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("allowed: true, false")
    return text == "true"


@dataclass(frozen=True)
class Option:
    """One setting as a flag, as an environment variable and as a key below `flags.plugin` in the file."""

    field: str
    key: str
    metavar: str
    parse: Callable[[str], Any]
    help: str
    many: bool = False
    """The file may have a list."""

    @property
    def flag(self) -> str:
        """The command line's name for it."""
        return "--" + self.field.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment's name for it; NVIDIA's where it has one."""
        return self.field.upper()


OPTIONS = (
    Option("host_root", "hostRoot", "DIR", _absolute, "where the host's /sys, /dev, /etc and /proc are seen"),
    Option(
        "device_plugin_dir", "devicePluginDir", "DIR", _absolute, "the kubelet's directory of plugin sockets"
    ),
    Option(
        "metrics_address",
        "metricsAddress",
        "HOST:PORT",
        _address,
        "serve /metrics, /healthz and /readyz there",
    ),
    Option("log_format", "logFormat", "text|json", _one_of("text", "json"), "how log lines look"),
    Option(
        "log_level",
        "logLevel",
        "LEVEL",
        _one_of("debug", "info", "warning", "error"),
        "debug, info, warning or error",
    ),
    Option(
        "device_list_strategy",
        "deviceListStrategy",
        "LIST",
        _strategies,
        "how a container gets the GPU: envvar, volume-mounts, cdi-cri, or several with commas",
        many=True,
    ),
    Option(
        "device_id_strategy",
        "deviceIDStrategy",
        "uuid|index",
        _one_of("uuid", "index"),
        "what the container runtime is asked for: uuid says `all`, index says `0`",
    ),
    Option(
        "pass_device_specs",
        "passDeviceSpecs",
        "true|false",
        _boolean,
        "name the GPU's device nodes to the kubelet",
    ),
    Option(
        "gpu_limit_dir",
        "gpuLimitDir",
        "DIR",
        _absolute,
        "the files that containers mount whose GPU memory is limited; the same path on the host",
    ),
    Option(
        "gpu_limit_library",
        "gpuLimitLibrary",
        "FILE",
        _absolute,
        "the library that limits GPU memory in a container",
    ),
)


# What only `dra` has; never in the file, which many nodes have in common.
DRA_OPTIONS = (
    Option("kubelet_dir", "", "DIR", _absolute, "the kubelet's directory, with the sockets of its plugins"),
    Option("node_name", "", "NAME", _node_name, "this node's name, as the cluster has it"),
)


def load(
    file: Path | None,
    environment: Mapping[str, str],
    flags: Mapping[str, str | None],
    options: tuple[Option, ...] = OPTIONS,
) -> tuple[Settings, list[str]]:
    """Give the settings in force, and notes on keys of the file that have no effect.

    `flags` has the text of each command line option that was given, by field name. Raises ConfigError.
    """
    settings, notes = _from_file(file) if file else (Settings(), [])
    problems = []
    for option in options:
        for name, text in (
            (option.variable, environment.get(option.variable)),
            (option.flag, flags.get(option.field)),
        ):
            if text is None:
                continue
            try:
                settings = replace(settings, **{option.field: option.parse(text)})
            except ValueError as error:
                problems.append(f"{name}: {text!r}: {error}")
    if problems:
        raise ConfigError(problems)
    return settings, notes


def _from_file(path: Path) -> tuple[Settings, list[str]]:
    from tegra_device_plugin.config.document import Document  # noqa: PLC0415 - only with a file

    document = Document(path)
    root = document.root
    settings = Settings()
    if root is not None:
        root.text("version", _one_of("v1"))
        if flags := root.section("flags"):
            settings = _flags(flags, settings)
        if resources := root.section("resources"):
            settings = _resources(resources, settings)
        if sharing := root.section("sharing"):
            settings = _sharing(sharing, settings)
        root.ignore("imex")
        root.finish()
    if document.problems:
        raise ConfigError(document.problems)
    return settings, document.notes


def _flags(flags: Section, settings: Settings) -> Settings:
    flags.text("migStrategy", _one_of("none"))
    flags.text("deviceDiscoveryStrategy", _one_of("auto", "tegra"))
    for key in ("gdrcopyEnabled", "gdsEnabled", "mofedEnabled"):
        flags.boolean(key, only=False)
    # A node without a GPU is waited for, never failed; the host is seen at hostRoot.
    flags.ignore(
        "failOnInitError", "restartOnDeviceUnhealthy", "mpsRoot", "nvidiaDriverRoot", "nvidiaDevRoot"
    )
    flags.ignore("useNodeFeatureAPI", "gfd")
    if plugin := flags.section("plugin"):
        for option in OPTIONS:
            value = plugin.option(option.key, option.parse, many=option.many)
            if value is not None:
                settings = replace(settings, **{option.field: value})
        plugin.ignore("cdiAnnotationPrefix", "cdiFeatureFlags", "nvidiaCTKPath", "containerDriverRoot")
        plugin.ignore("kubeletSocket")
        plugin.finish()
    flags.finish()
    return settings


def _resources(resources: Section, settings: Settings) -> Settings:
    for number, gpu in enumerate(resources.sections("gpus")):
        if number:
            gpu.problem("a Jetson has one GPU: one entry is allowed")
            continue
        gpu.text("pattern", _one_of("*"), required=True)
        name = gpu.text("name", resource_name, required=True)
        gpu.finish()
        settings = replace(settings, resource=name or settings.resource)
    for mig in resources.sections("mig"):
        mig.problem("this plugin serves the whole GPU; allowed: none")
    resources.finish()
    return settings


def _sharing(sharing: Section, settings: Settings) -> Settings:
    slicing = sharing.section("timeSlicing")
    if slicing:
        settings = _time_slicing(slicing, settings)
    if units := sharing.section("units"):
        settings = _units(units, settings)
        if slicing:
            units.problem("beside timeSlicing: a GPU is shared in one way, leave one of the two out")
    if dra := sharing.section("dra"):
        settings = _dra(dra, settings)
        if slicing or units:
            dra.problem("beside timeSlicing or units: a GPU is shared in one way, leave all but one out")
    if mps := sharing.section("mps"):
        mps.problem("MPS needs a GPU compute mode that Tegra does not have; allowed: timeSlicing, units, dra")
    sharing.finish()
    return settings


def _units(section: Section, settings: Settings) -> Settings:
    from tegra_device_plugin.config.units import read_units  # noqa: PLC0415 - only with units

    if settings.resource != DEFAULT_RESOURCE:
        section.problem("units have names of their own (coreResource, memoryResource): leave resources out")
    return replace(settings, units=read_units(section))


def _dra(section: Section, settings: Settings) -> Settings:
    from tegra_device_plugin.config.dra import read_dra  # noqa: PLC0415 - only with dra

    if settings.resource != DEFAULT_RESOURCE:
        section.problem(
            "a DeviceClass names an extended resource (extendedResourceName): leave resources out"
        )
    return replace(settings, dra=read_dra(section))


def _time_slicing(slicing: Section, settings: Settings) -> Settings:
    rename_by_default = slicing.boolean("renameByDefault")
    fail = slicing.boolean("failRequestsGreaterThanOne")
    for number, entry in enumerate(slicing.sections("resources", required=True)):
        if number:
            entry.problem("a Jetson has one GPU: one entry is allowed")
            continue
        entry.text("name", _resource_among(settings.resource), required=True)
        entry.text("devices", _one_of("all"))
        replicas = entry.integer("replicas", 2, MAX_REPLICAS, required=True)
        renamed = entry.text("rename", resource_name)
        entry.finish()
        if rename_by_default and not renamed:
            renamed = f"{settings.resource}.shared"
            try:
                resource_name(renamed)
            except ValueError as error:
                slicing.problem(f"renameByDefault gives {renamed!r}: {error}")
        settings = replace(
            settings,
            resource=renamed or settings.resource,
            sharing=Sharing(
                replicas=replicas or 1,
                renamed=renamed is not None,
                # NVIDIA's default is false. Who asks for two shares of the same GPU misunderstands them.
                fail_requests_greater_than_one=True if fail is None else fail,
            ),
        )
    slicing.finish()
    return settings


def _resource_among(resource: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if resource_name(text) != resource:
            raise ValueError(f"no such resource on this node; allowed: {resource}")
        return resource

    return parse

# SPDX-License-Identifier: Apache-2.0
"""Settings of `run`, `dra` and `agent`: flag over environment over file over default. Only parsing.

The file is NVIDIA's device plugin configuration, `version: v1` (k8s-device-plugin, api/config/v1). The
reader is strict: it rejects unknown keys, wrong types and values that cannot work on a Jetson, with file and
line. Keys of NVIDIA's schema that have no effect here are listed. Each command has one class, and one loader
with its cross rules.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tegra_device_plugin.config.dra_modes import Dra, read_dra
from tegra_device_plugin.config.units import Units, read_units
from tegra_device_plugin.system.kubernetes import DEFAULT_RESOURCE, resource_name

if TYPE_CHECKING:
    from tegra_device_plugin.config.document import Section

DeviceListStrategy = Literal["envvar", "volume-mounts", "cdi-cri"]
DEVICE_LIST_STRATEGIES: tuple[DeviceListStrategy, ...] = ("envvar", "volume-mounts", "cdi-cri")
Mode = Literal["report", "evict"]
MODES: tuple[Mode, ...] = ("report", "evict")
# MetaX's names. `fixed-share` is parsed only to reject it with the reason.
QosPolicy = Literal["best-effort", "fixed-share", "burst-share"]
QOS_POLICIES: tuple[QosPolicy, ...] = ("best-effort", "fixed-share", "burst-share")

CDI_VERSIONS = ("0.5.0", "0.7.0")
"""Every runtime with CDI reads the first version; board/cdi.py lists runtimes that read the second."""

GPU_LIMIT_DIR = Path("/var/lib/tegra-gpu-limit")
GPU_LIMIT_LIBRARY = Path("/usr/lib/tegra-gpu-limit/libtegra-gpu-limit.so")

# A kubelet runs 110 pods by default; more devices only fill its checkpoint.
MAX_REPLICAS = 1024

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


class Sharing(NamedTuple):
    """Time-slicing: up to `replicas` containers use the GPU at the same time (1: no sharing)."""

    replicas: int = 1
    renamed: bool = False
    """The shared resource has its own name."""
    fail_requests_greater_than_one: bool = True


class File(NamedTuple):
    """The content of the configuration file; the defaults are those of a node without a file."""

    options: Mapping[str, Any] = {}
    """Values of `flags.plugin`, by field name of their option."""
    resource: str = DEFAULT_RESOURCE
    sharing: Sharing = Sharing()
    units: Units | None = None
    """Replaces time-slicing and `resource`: units have their own resource names."""
    dra: Dra | None = None
    """Replaces both, for the command `dra`."""
    notes: Sequence[str] = ()
    """The keys of the file that have no effect."""

    @property
    def counts(self) -> dict[str, int]:
        """How many devices of each extended resource a node advertises, in order."""
        return self.units.counts if self.units else {self.resource: self.sharing.replicas}


class PluginSettings(NamedTuple):
    host_root: Path = Path("/")
    device_plugin_dir: Path = Path("/var/lib/kubelet/device-plugins")
    metrics_address: tuple[str, int] | None = None
    log_format: str = "text"
    log_level: str = "info"
    device_list_strategy: tuple[DeviceListStrategy, ...] = ("envvar",)
    device_id_strategy: str = "uuid"
    pass_device_specs: bool = True
    cdi_version: str = CDI_VERSIONS[0]
    gpu_limit_dir: Path = GPU_LIMIT_DIR
    gpu_limit_library: Path = GPU_LIMIT_LIBRARY
    resource: str = DEFAULT_RESOURCE
    sharing: Sharing = Sharing()
    units: Units | None = None


class DraSettings(NamedTuple):
    dra: Dra
    node_name: str
    host_root: Path = Path("/")
    metrics_address: tuple[str, int] | None = None
    log_format: str = "text"
    log_level: str = "info"
    gpu_limit_dir: Path = GPU_LIMIT_DIR
    gpu_limit_library: Path = GPU_LIMIT_LIBRARY
    kubelet_dir: Path = Path("/var/lib/kubelet")
    cdi_version: str = CDI_VERSIONS[0]


class AgentSettings(NamedTuple):
    host_root: Path = Path("/")
    metrics_address: tuple[str, int] | None = None
    log_format: str = "text"
    log_level: str = "info"
    units: Units | None = None
    mode: Mode = "report"
    qos_policy: QosPolicy = "best-effort"
    pod_resources: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")


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
    if not re.fullmatch(_NODE, text):
        raise ValueError("a node's name is needed: lower case letters, digits, - and .")
    return text


def _boolean(text: str) -> bool:
    if text.lower() not in _TRUTH:
        raise ValueError("allowed: true, false")
    return _TRUTH[text.lower()]


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


COMMON_OPTIONS = (
    Option("host_root", "DIR", _absolute, "where the host's /sys, /dev, /etc and /proc are"),
    Option("metrics_address", "HOST:PORT", _address, "serve /metrics and the health pages at this address"),
    Option("log_format", "text|json", _one_of("text", "json"), "the format of log lines"),
    Option(
        "log_level", "LEVEL", _one_of("debug", "info", "warning", "error"), "debug, info, warning or error"
    ),
)
_GPU_LIMIT_DIR = Option(
    "gpu_limit_dir",
    "DIR",
    _absolute,
    "the files that containers mount whose GPU memory is limited; the same path on the host",
)
_LIMIT_OPTIONS = (
    _GPU_LIMIT_DIR,
    Option("gpu_limit_library", "FILE", _absolute, "the library that limits GPU memory in a container"),
)
_CDI_VERSION = Option(
    "cdi_version",
    "|".join(CDI_VERSIONS),
    _one_of(*CDI_VERSIONS),
    "of the CDI spec; 0.7.0 adds the device nodes' groups, for container runtimes that read it",
)
PLUGIN_OPTIONS = (
    *COMMON_OPTIONS,
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
        _one_of("uuid", "index"),
        "the ids that the container runtime gets: uuid means `all`, index means `0`",
    ),
    Option("pass_device_specs", "true|false", _boolean, "pass the GPU's device nodes to the kubelet"),
    _CDI_VERSION,
    *_LIMIT_OPTIONS,
)
# The last two are not in the file, because many nodes share the file.
DRA_OPTIONS = (
    *COMMON_OPTIONS,
    *_LIMIT_OPTIONS,
    _CDI_VERSION,
    Option("kubelet_dir", "DIR", _absolute, "the kubelet's directory, with the sockets of its plugins"),
    Option("node_name", "NAME", _node_name, "this node's name, as the cluster has it"),
)

Flags = Mapping[str, str | None]
"""The text of each command line option that was given, by field name."""


def load_plugin(file: Path | None, environment: Mapping[str, str], flags: Flags) -> PluginSettings:
    content = read_file(file)
    options = _options(content, PLUGIN_OPTIONS, environment, flags)
    if content.dra:
        raise ConfigError(
            "sharing.dra is served by the command `dra`, not by `run`: leave it out, or run the DRA driver"
        )
    return PluginSettings(**options, resource=content.resource, sharing=content.sharing, units=content.units)


def load_dra(file: Path | None, environment: Mapping[str, str], flags: Flags) -> DraSettings:
    content = read_file(file)
    options = _options(content, DRA_OPTIONS, environment, flags)
    problems = []
    if "node_name" not in options:
        problems.append("--node-name (NODE_NAME): missing: this node's name, as the cluster has it")
    if content.units or content.sharing != Sharing():
        kind = "units" if content.units else "timeSlicing"
        problems.append(
            f"sharing.{kind} is served by the command `run`, not by `dra`: write sharing.dra instead, "
            "or run the device plugin"
        )
    if problems:
        raise ConfigError(*problems)
    return DraSettings(content.dra or Dra(), **options)


def load_agent(
    file: Path | None,
    environment: Mapping[str, str],
    flags: Flags,
    *,
    mode: Mode = "report",
    qos_policy: QosPolicy = "best-effort",
    pod_resources: Path | None = None,
) -> AgentSettings:
    content = read_file(file)
    options = _options(content, COMMON_OPTIONS, environment, flags)
    if qos_policy == "fixed-share":
        raise ConfigError(
            "--qos-policy fixed-share: nvgpu cannot limit a pod to its share while other pods are idle: "
            "a busy pod gets the idle time. Use burst-share, which divides time under contention"
        )
    if qos_policy == "burst-share" and not (content.units and content.units.core):
        raise ConfigError(
            "--qos-policy burst-share: this configuration has no percents of the GPU's time, "
            "so there are no weights: configure sharing.units with a preset that has them"
        )
    if mode == "evict" and not (content.units and content.units.context_overhead):
        raise ConfigError(
            "--mode evict needs contextOverhead above 0Mi in sharing.units: the GPU memory of one CUDA "
            "context. Without it, a program may allocate all of its share, and its context then puts the "
            "pod over the share. Measure a context (docs/sharing.md), or use --mode report"
        )
    settings = AgentSettings(**options, units=content.units, mode=mode, qos_policy=qos_policy)
    return settings._replace(pod_resources=pod_resources) if pod_resources else settings


def load_gpu_limit_dir(content: File, environment: Mapping[str, str]) -> Path:
    """Give the directory of the memory limit's files. Raises ConfigError."""
    options = _options(content, (_GPU_LIMIT_DIR,), environment, {})
    directory: Path = options.get("gpu_limit_dir", GPU_LIMIT_DIR)
    return directory


def _options(
    content: File, options: Sequence[Option], environment: Mapping[str, str], flags: Flags
) -> dict[str, Any]:
    """Give the values of `options` by field name; options without a value are left out."""
    known = {option.field for option in options}
    values = {name: value for name, value in content.options.items() if name in known}
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


def read_file(path: Path | None) -> File:
    """Read the configuration file. Raises ConfigError."""
    if path is None:
        return File()
    from tegra_device_plugin.config.document import Document  # noqa: PLC0415 - only with a file

    document = Document(path)
    root = document.root
    content = File()
    if root is not None:
        root.text("version", _one_of("v1"))
        if flags := root.section("flags"):
            content = _flags(flags, content)
        if resources := root.section("resources"):
            content = _resources(resources, content)
        if sharing := root.section("sharing"):
            content = _sharing(sharing, content)
        root.ignore("imex")
        root.finish()
    if document.problems:
        raise ConfigError(*document.problems)
    return content._replace(notes=document.notes)


def _flags(flags: "Section", content: File) -> File:
    flags.text("migStrategy", _one_of("none"))
    flags.text("deviceDiscoveryStrategy", _one_of("auto", "tegra"))
    for key in ("gdrcopyEnabled", "gdsEnabled", "mofedEnabled"):
        flags.text(key, _one_of("false"))
    # The plugin waits for a GPU instead of failing; the host's root is hostRoot.
    flags.ignore(
        "failOnInitError", "restartOnDeviceUnhealthy", "mpsRoot", "nvidiaDriverRoot", "nvidiaDevRoot"
    )
    flags.ignore("useNodeFeatureAPI", "gfd")
    if plugin := flags.section("plugin"):
        options = {}
        for option in PLUGIN_OPTIONS:
            value = plugin.text(option.key, option.parse, many=option.many)
            if value is not None:
                options[option.field] = value
        content = content._replace(options=options)
        plugin.ignore("cdiAnnotationPrefix", "cdiFeatureFlags", "nvidiaCTKPath", "containerDriverRoot")
        plugin.ignore("kubeletSocket")
        plugin.finish()
    flags.finish()
    return content


def _resources(resources: "Section", content: File) -> File:
    for number, gpu in enumerate(resources.sections("gpus")):
        if number:
            gpu.problem("a Jetson has one GPU: one entry is allowed")
            continue
        gpu.text("pattern", _one_of("*"), required=True)
        name = gpu.text("name", resource_name, required=True)
        gpu.finish()
        content = content._replace(resource=name or content.resource)
    for mig in resources.sections("mig"):
        mig.problem("this plugin allocates the GPU without MIG; allowed: none")
    resources.finish()
    return content


def _sharing(sharing: "Section", content: File) -> File:
    slicing = sharing.section("timeSlicing")
    if slicing:
        content = _time_slicing(slicing, content)
    if units := sharing.section("units"):
        content = content._replace(units=read_units(units))
        if content.resource != DEFAULT_RESOURCE:
            units.problem("units have their own names (coreResource, memoryResource): leave resources out")
        if slicing:
            units.problem("beside timeSlicing: a GPU is shared in one way: leave one of the two out")
    if dra := sharing.section("dra"):
        content = content._replace(dra=read_dra(dra))
        if content.resource != DEFAULT_RESOURCE:
            dra.problem(
                "a DeviceClass names an extended resource (extendedResourceName): leave resources out"
            )
        if slicing or units:
            dra.problem("beside timeSlicing or units: a GPU is shared in one way: leave all but one out")
    if mps := sharing.section("mps"):
        mps.problem("MPS needs a GPU compute mode that Tegra does not have; allowed: timeSlicing, units, dra")
    sharing.finish()
    return content


def _time_slicing(slicing: "Section", content: File) -> File:
    rename_by_default = slicing.text("renameByDefault", _boolean)
    fail = slicing.text("failRequestsGreaterThanOne", _boolean)
    for number, entry in enumerate(slicing.sections("resources", required=True)):
        if number:
            entry.problem("a Jetson has one GPU: one entry is allowed")
            continue
        entry.text("name", _resource_among(content.resource), required=True)
        entry.text("devices", _one_of("all"))
        replicas = entry.integer("replicas", 2, MAX_REPLICAS, required=True)
        renamed = entry.text("rename", resource_name)
        entry.finish()
        if rename_by_default and not renamed:
            renamed = f"{content.resource}.shared"
            try:
                resource_name(renamed)
            except ValueError as error:
                slicing.problem(f"renameByDefault gives {renamed!r}: {error}")
        content = content._replace(
            resource=renamed or content.resource,
            sharing=Sharing(
                replicas=replicas or 1,
                renamed=renamed is not None,
                # NVIDIA's default is false; but a second share of the same GPU adds nothing.
                fail_requests_greater_than_one=True if fail is None else fail,
            ),
        )
    slicing.finish()
    return content


def _resource_among(resource: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if resource_name(text) != resource:
            raise ValueError(f"no such resource on this node; allowed: {resource}")
        return resource

    return parse

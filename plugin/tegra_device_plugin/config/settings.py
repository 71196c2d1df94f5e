# SPDX-License-Identifier: Apache-2.0
"""Settings of the commands that serve: flag over environment over file over default. Only parsing.

Each command has one class, and one loader with its cross rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from tegra_device_plugin.config.file import File, Sharing, read_file
from tegra_device_plugin.config.options import (
    AGENT_OPTIONS,
    DRA_OPTIONS,
    GPU_LIMIT_DIR_OPTION,
    HOST_ROOT_OPTION,
    PLUGIN_OPTIONS,
    TAINT_OPTIONS,
    ConfigError,
    DeviceListStrategy,
    Flags,
    ForeignMetrics,
    option_values,
)
from tegra_device_plugin.config.units import Units
from tegra_device_plugin.system.kubernetes import CDI_VERSIONS, DEFAULT_RESOURCE

if TYPE_CHECKING:
    from tegra_device_plugin.config.devices import DeviceResource
    from tegra_device_plugin.config.dra_modes import Dra

Mode = Literal["report", "evict"]
MODES: tuple[Mode, ...] = ("report", "evict")
# MetaX's names, and `per-pod`, where pods choose one. `fixed-share` is parsed only to reject it with reason.
QosPolicy = Literal["best-effort", "fixed-share", "burst-share", "per-pod"]
QOS_POLICIES: tuple[QosPolicy, ...] = get_args(QosPolicy)
WEIGHTED: tuple[QosPolicy, ...] = ("burst-share", "per-pod")
"""The policies that set time slices."""

_NO_NODE_NAME = "--node-name (NODE_NAME): missing: this node's name, as the cluster has it"

GPU_LIMIT_DIR = Path("/var/lib/tegra-gpu-limit")
GPU_LIMIT_LIBRARY = Path("/usr/lib/tegra-gpu-limit/libtegra-gpu-limit.so")


class PluginSettings(NamedTuple):
    host_root: Path = Path("/")
    device_plugin_dir: Path = Path("/var/lib/kubelet/device-plugins")
    metrics_address: tuple[str, int] | None = None
    log_format: str = "text"
    log_level: str = "info"
    foreign_metrics: tuple[ForeignMetrics, ...] = ()
    board_metrics: bool = False
    device_list_strategy: tuple[DeviceListStrategy, ...] = ("envvar",)
    device_id_strategy: str = "uuid"
    pass_device_specs: bool = True
    cdi_version: str = CDI_VERSIONS[0]
    gpu_limit_dir: Path = GPU_LIMIT_DIR
    gpu_limit_library: Path = GPU_LIMIT_LIBRARY
    resource: str = DEFAULT_RESOURCE
    sharing: Sharing = Sharing()
    units: Units | None = None
    devices: tuple[DeviceResource, ...] = ()


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
    foreign_metrics: tuple[ForeignMetrics, ...] = ()
    units: Units | None = None
    mode: Mode = "report"
    qos_policy: QosPolicy = "best-effort"
    unused_after: float | None = None
    """Seconds after which a container that has the GPU without use is named; None: never."""
    resource: str = DEFAULT_RESOURCE
    gpu_limit_dir: Path = GPU_LIMIT_DIR
    pod_resources: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")


class TaintSettings(NamedTuple):
    node_name: str
    host_root: Path = Path("/")
    metrics_address: tuple[str, int] | None = None
    log_format: str = "text"
    log_level: str = "info"
    remove_after: int = 600
    """Seconds without throttling."""


def _read(file: Path | None, environment: Mapping[str, str], flags: Flags) -> File:
    """The file, for the board that the other sources name. They go over the file's own hostRoot."""
    return read_file(file, option_values((HOST_ROOT_OPTION,), {}, environment, flags).get("host_root"))


def load_plugin(file: Path | None, environment: Mapping[str, str], flags: Flags) -> PluginSettings:
    content = _read(file, environment, flags)
    options = option_values(PLUGIN_OPTIONS, content.options, environment, flags)
    if content.dra:
        raise ConfigError(
            "sharing.dra is served by the command `dra`, not by `run`: leave it out, or run the DRA driver"
        )
    return PluginSettings(
        **options,
        resource=content.resource,
        sharing=content.sharing,
        units=content.units,
        devices=content.devices,
    )


def load_dra(file: Path | None, environment: Mapping[str, str], flags: Flags) -> DraSettings:
    from tegra_device_plugin.config.dra_modes import Dra  # noqa: PLC0415 - `run` does without

    content = _read(file, environment, flags)
    options = option_values(DRA_OPTIONS, content.options, environment, flags)
    problems = [] if "node_name" in options else [_NO_NODE_NAME]
    if content.units or content.sharing != Sharing():
        kind = "units" if content.units else "timeSlicing"
        problems.append(
            f"sharing.{kind} is served by the command `run`, not by `dra`: write sharing.dra instead, "
            "or run the device plugin"
        )
    if content.devices:
        problems.append("devices is served by the command `run`, not by `dra`: run the device plugin")
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
    unused_after: float | None = None,
    pod_resources: Path | None = None,
) -> AgentSettings:
    content = _read(file, environment, flags)
    options = option_values(AGENT_OPTIONS, content.options, environment, flags)
    if qos_policy == "fixed-share":
        raise ConfigError(
            "--qos-policy fixed-share: nvgpu cannot limit a pod to its share while other pods are idle: "
            "a busy pod gets the idle time. Use burst-share, which divides time under contention"
        )
    if qos_policy in WEIGHTED and not (content.units and content.units.core):
        raise ConfigError(
            f"--qos-policy {qos_policy}: this configuration has no percents of the GPU's time, "
            "so there are no weights: configure sharing.units with a preset that has them"
        )
    if mode == "evict" and not (content.units and content.units.context_overhead):
        raise ConfigError(
            "--mode evict needs contextOverhead above 0Mi in sharing.units: the GPU memory of one CUDA "
            "context. Without it, a program may allocate all of its share, and its context then puts the "
            "pod over the share. Measure a context (docs/sharing.md), or use --mode report"
        )
    settings = AgentSettings(
        **options,
        units=content.units,
        mode=mode,
        qos_policy=qos_policy,
        unused_after=unused_after,
        resource=content.resource,
        gpu_limit_dir=load_gpu_limit_dir(content, environment),
    )
    return settings._replace(pod_resources=pod_resources) if pod_resources else settings


def load_taint(environment: Mapping[str, str], flags: Flags) -> TaintSettings:
    options = option_values(TAINT_OPTIONS, {}, environment, flags)
    if "node_name" not in options:
        raise ConfigError(_NO_NODE_NAME)
    return TaintSettings(**options)


def load_gpu_limit_dir(content: File, environment: Mapping[str, str]) -> Path:
    """Give the directory of the memory limit's files. Raises ConfigError."""
    options = option_values((GPU_LIMIT_DIR_OPTION,), content.options, environment, {})
    directory: Path = options.get("gpu_limit_dir", GPU_LIMIT_DIR)
    return directory

# SPDX-License-Identifier: Apache-2.0
"""The schema of the configuration file: NVIDIA's, `version: v1` (k8s-device-plugin, api/config/v1), and more.

The reader is strict: it rejects unknown keys, wrong types and values that cannot work on a Jetson, with file
and line. Keys of NVIDIA's schema that have no effect here are listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tegra_device_plugin.config.options import PLUGIN_OPTIONS, ConfigError, boolean, one_of
from tegra_device_plugin.config.units import BoardMemory, Units, read_units
from tegra_device_plugin.system.hosttree import HostTree
from tegra_device_plugin.system.kubernetes import DEFAULT_RESOURCE, resource_name
from tegra_device_plugin.system.meminfo import memory_bytes

if TYPE_CHECKING:
    from tegra_device_plugin.config.devices import DeviceResource
    from tegra_device_plugin.config.document import Section
    from tegra_device_plugin.config.dra_modes import Dra

# A kubelet runs 110 pods by default; more devices only fill its checkpoint.
MAX_REPLICAS = 1024


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
    devices: tuple[DeviceResource, ...] = ()
    """Resources beside those of the GPU."""
    notes: Sequence[str] = ()
    """The keys of the file that have no effect."""

    @property
    def counts(self) -> dict[str, int]:
        """How many devices of each extended resource a node advertises, in order."""
        return self.units.counts if self.units else {self.resource: self.sharing.replicas}


def read_file(path: Path | None, host_root: Path | None = None) -> File:
    """Read the configuration file. Raises ConfigError.

    Percentages are of the memory of the board whose files are below `host_root`, else below the file's own
    hostRoot, or /.
    """
    if path is None:
        return File()
    from tegra_device_plugin.config.document import Document  # noqa: PLC0415 - only with a file

    document = Document(path)
    root = document.root
    content = File()
    if root is not None:
        root.text("version", one_of("v1"))
        if flags := root.section("flags"):
            content = _flags(flags, content)
        if resources := root.section("resources"):
            content = _resources(resources, content)
        if sharing := root.section("sharing"):
            board = HostTree(host_root or content.options.get("host_root", Path("/")))
            content = _sharing(sharing, content, lambda: memory_bytes(board))
        if devices := root.sections("devices"):
            from tegra_device_plugin.config.devices import read_devices  # noqa: PLC0415 - most boards have none

            content = content._replace(devices=read_devices(devices, content.counts))
        root.ignore("imex")
        root.finish()
    if document.problems:
        raise ConfigError(*document.problems)
    return content._replace(notes=document.notes)


def _flags(flags: Section, content: File) -> File:
    flags.text("migStrategy", one_of("none"))
    flags.text("deviceDiscoveryStrategy", one_of("auto", "tegra"))
    for key in ("gdrcopyEnabled", "gdsEnabled", "mofedEnabled"):
        flags.text(key, one_of("false"))
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


def _resources(resources: Section, content: File) -> File:
    for number, gpu in enumerate(resources.sections("gpus")):
        if number:
            gpu.problem("a Jetson has one GPU: one entry is allowed")
            continue
        gpu.text("pattern", one_of("*"), required=True)
        name = gpu.text("name", resource_name, required=True)
        gpu.finish()
        content = content._replace(resource=name or content.resource)
    for mig in resources.sections("mig"):
        mig.problem("this plugin allocates the GPU without MIG; allowed: none")
    resources.finish()
    return content


def _sharing(sharing: Section, content: File, board: BoardMemory) -> File:
    slicing = sharing.section("timeSlicing")
    if slicing:
        content = _time_slicing(slicing, content)
    if units := sharing.section("units"):
        content = content._replace(units=read_units(units, board))
        if content.resource != DEFAULT_RESOURCE:
            units.problem("units have their own names (coreResource, memoryResource): leave resources out")
        if slicing:
            units.problem("beside timeSlicing: a GPU is shared in one way: leave one of the two out")
    if dra := sharing.section("dra"):
        from tegra_device_plugin.config.dra_modes import read_dra  # noqa: PLC0415 - `run` does without

        content = content._replace(dra=read_dra(dra, board))
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


def _time_slicing(slicing: Section, content: File) -> File:
    rename_by_default = slicing.text("renameByDefault", boolean)
    fail = slicing.text("failRequestsGreaterThanOne", boolean)
    for number, entry in enumerate(slicing.sections("resources", required=True)):
        if number:
            entry.problem("a Jetson has one GPU: one entry is allowed")
            continue
        entry.text("name", _resource_among(content.resource), required=True)
        entry.text("devices", one_of("all"))
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

# SPDX-License-Identifier: Apache-2.0
"""The extended resources that a node advertises: the GPU, replicas of it, or units. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tegra_device_plugin.board import cdi
from tegra_device_plugin.board.health import Health
from tegra_device_plugin.config.settings import PluginSettings
from tegra_device_plugin.config.units import (
    CORE_IDS,
    COUNT_IDS,
    MEMORY_IDS,
    PERCENT,
    NumberedIds,
    Units,
    WithoutMemory,
)
from tegra_device_plugin.sharing.allocation import (
    GPU_ID,
    VISIBLE_DEVICES,
    Allocation,
    RequiredResource,
    Resource,
    Rules,
)
from tegra_device_plugin.sharing.memory_limit import MemoryLimit, Mount

REPLICA_SEPARATOR = "::"  # NVIDIA's form, which exporters parse
# nvidia-container-toolkit reads the ids from the names of mounts below this directory
# (accept-...-as-volume-mounts).
VOLUME_MOUNT_ROOT = "/var/run/nvidia-container-devices"


def make_resources(
    settings: PluginSettings, device_nodes: Sequence[str], health: Health, limit_problem: Health | None = None
) -> tuple[Resource, ...]:
    """Give the resources of a board's GPU.

    `device_nodes` are existing host paths; `limit_problem` is the reason why memory cannot be limited.
    """
    allocation = _allocation(settings, device_nodes)
    health = _stable(health)
    if settings.units:
        limit_problem = _stable(limit_problem) if limit_problem and health.healthy else health
        return tuple(_unit_resources(settings, settings.units, allocation, health, limit_problem))
    sharing = settings.sharing
    one_per_container = ""
    if sharing.replicas > 1 and sharing.fail_requests_greater_than_one:
        one_per_container = (
            "replicas share one GPU, so a second replica adds nothing: request 1 "
            "(sharing.timeSlicing.failRequestsGreaterThanOne)"
        )
    rules = Rules(one_per_container=one_per_container)
    return (Resource(settings.resource, replica_ids(sharing.replicas), health, allocation, rules),)


def replica_ids(replicas: int) -> tuple[str, ...]:
    """Give the device ids: the plain GPU, or `replicas` shares of it."""
    if replicas == 1:
        return (GPU_ID,)
    return tuple(f"{GPU_ID}{REPLICA_SEPARATOR}{number}" for number in range(replicas))


def _unit_resources(
    settings: PluginSettings, units: Units, allocation: Allocation, health: Health, memory_health: Health
) -> Iterator[Resource]:
    """Give a resource for each name, in the order of `units.resources`. Only memory is limited."""

    def required(without_memory: WithoutMemory) -> RequiredResource | None:
        if without_memory == "allowed":
            return None
        return RequiredResource(units.memory.name, unless_all=without_memory == "whole")

    if core := units.core:
        rules = Rules(step=core.step, required=required(core.without_memory))
        yield Resource(core.name, NumberedIds(CORE_IDS, PERCENT), health, allocation, rules)
    memory_ids = NumberedIds(MEMORY_IDS, units.memory_ids)
    limit = MemoryLimit(settings.gpu_limit_dir, units)
    yield Resource(units.memory.name, memory_ids, memory_health, allocation, limit=limit)
    if count := units.count:
        rules = Rules(
            one_per_container=f"this node has one GPU: request 1, and the memory that the container needs "
            f"as {units.memory.name}",
            required=required(count.without_memory),
        )
        yield Resource(count.name, NumberedIds(COUNT_IDS, count.ids), health, allocation, rules)


def _stable(health: Health) -> Health:
    """Leave out the detail of a good health, which changes with each observation."""
    return health._replace(detail="") if health.healthy else health


def _allocation(settings: PluginSettings, device_nodes: Sequence[str]) -> Allocation:
    # The toolkit's CSV mode accepts "0" and "all"; from 1.19 on it rejects any other id.
    visible = "0" if settings.device_id_strategy == "index" else "all"
    strategy = settings.device_list_strategy
    envs: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()
    if "volume-mounts" in strategy:
        envs = ((VISIBLE_DEVICES, VOLUME_MOUNT_ROOT),)
        mounts = (Mount(host="/dev/null", container=f"{VOLUME_MOUNT_ROOT}/{visible}"),)
    elif "envvar" in strategy:
        envs = ((VISIBLE_DEVICES, visible),)
    return Allocation(
        envs=envs,
        # Nodes that the kubelet passes stay allowed when systemd rewrites the container's device rules
        # (daemon-reload).
        device_nodes=tuple(device_nodes) if settings.pass_device_specs else (),
        mounts=mounts,
        # Kubelets before 1.28 drop this.
        cdi_devices=(cdi.device(visible),) if "cdi-cri" in strategy else (),
    )

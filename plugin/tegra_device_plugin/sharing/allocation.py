# SPDX-License-Identifier: Apache-2.0
"""An extended resource of the node, and the allocation of a container that requests it. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from tegra_device_plugin.board.health import Health
from tegra_device_plugin.sharing.memory_limit import MemoryLimit, Mount
from tegra_device_plugin.system.log import brief

# One iGPU per board: the id is constant over restarts and re-installations.
GPU_ID = "igpu0"

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"  # read by NVIDIA's runtime


class RejectedRequestError(ValueError):
    """A container cannot have the requested devices; the text is shown in the pod's status."""


class DeviceNode(NamedTuple):
    """A device node: `host` (path on the node, links are followed) appears at `container`."""

    host: str
    container: str
    permissions: str = "rw"


class Allocation(NamedTuple):
    """Access of a container to the GPU, or to another device."""

    envs: tuple[tuple[str, str], ...]
    device_nodes: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    other_nodes: tuple[DeviceNode, ...] = ()


class OwnDevice(NamedTuple):
    """A device that differs from the others of its resource. Shares of one device have the same `device`."""

    device: str
    health: Health
    allocation: Allocation


class RequiredResource(NamedTuple):
    """A resource that a container must request as well.

    `unless_all`: a container that requests all ids of the first resource may leave it out.
    """

    resource: str
    unless_all: bool = False


class Rules(NamedTuple):
    """Rules for a container's request of a resource."""

    step: int = 1
    """The number of ids is a multiple of this."""
    one_per_container: str = ""
    """The reason why a container cannot have more than one id; empty: it can."""
    required: RequiredResource | None = None
    checked_at_start: bool = False
    """A container starts only while its devices are healthy, also when it starts again."""


class Registration(NamedTuple):
    """Facts that a kubelet reads only at the registration of a resource.

    `pre_start`: the kubelet calls PreStartContainer before each start of a container; `preferred`: it asks
    for the ids that a container best has.
    """

    resource: str
    pre_start: bool
    preferred: bool = False


class Resource(NamedTuple):
    name: str
    ids: Collection[str]
    health: Health
    allocation: Allocation
    """The access of each container: there is one GPU."""
    rules: Rules = Rules()
    limit: MemoryLimit | None = None
    own: Mapping[str, OwnDevice] | None = None
    """The devices by id, where they differ. `health` and `allocation` are of all of them then."""

    def health_of(self, id_: str) -> Health:
        return self.own[id_].health if self.own and self.health.healthy else self.health

    @property
    def unhealthy_ids(self) -> Collection[str]:
        if not self.health.healthy:
            return self.ids
        return frozenset(id_ for id_, one in (self.own or {}).items() if not one.health.healthy)

    @property
    def healths(self) -> Mapping[tuple[bool, str], int]:
        """The number of devices by health and its reason."""
        if not self.own or not self.health.healthy:
            return {self.health[:2]: len(self.ids)}
        return Counter(one.health[:2] for one in self.own.values())

    def check(self, requested: Sequence[str]) -> None:
        """Raise RejectedRequestError unless a container may have the `requested` devices."""
        self.check_ids(requested)
        for problem in self._problems(requested):
            raise RejectedRequestError(f"{self.name}: {problem}")

    def check_ids(self, requested: Sequence[str]) -> None:
        """Raise RejectedRequestError unless `requested` are different devices of this resource."""
        for problem in self._problems_of_ids(requested):
            raise RejectedRequestError(f"{self.name}: {problem}")

    def _problems_of_ids(self, requested: Sequence[str]) -> Iterator[str]:
        if unknown := [id_ for id_ in requested if id_ not in self.ids]:
            yield f"unknown device {brief(list(map(repr, sorted(unknown))))}"
        if len(set(requested)) != len(requested):
            yield f"a device is requested twice: {brief(requested)}"
        if not requested:
            yield "a container requests no device"

    def _problems(self, requested: Sequence[str]) -> Iterator[str]:
        count, step = len(requested), self.rules.step
        if self.rules.one_per_container and count > 1:
            yield f"{count} requested, but {self.rules.one_per_container}"
        if count % step:
            less = count - count % step
            fitting = " or ".join(str(number) for number in (less, less + step) if number)
            yield f"{count} requested, but it is allocated in steps of {step}: request {fitting}"
        yield from self._problems_of_health(requested)
        paths = Counter(node.container for node in self._own_allocation(requested).other_nodes)
        if same := [path for path, number in paths.items() if number > 1]:
            yield (
                f"several devices would be {brief(same)} in the container: request 1, or leave mountPath out "
                "of the plugin's configuration"
            )

    def _problems_of_health(self, requested: Sequence[str]) -> Iterator[str]:
        for health in dict.fromkeys(map(self.health_of, requested)):
            if not health.healthy:
                detail = f": {health.detail}" if health.detail else ""
                yield f"unhealthy: {health.reason}{detail}"

    @property
    def registration(self) -> Registration:
        rules = self.rules
        pre_start = self.limit is not None or rules.required is not None or rules.checked_at_start
        return Registration(self.name, pre_start, preferred=self.own is not None)

    def preferred(self, available: Sequence[str], required: Sequence[str], size: int) -> list[str]:
        """Give `size` of the available ids, with the required ones: of different devices if possible."""

        def device(id_: str) -> str:
            return self.own[id_].device if self.own and id_ in self.own else id_

        chosen = list(dict.fromkeys(required))
        used = Counter(map(device, chosen))
        rest = sorted(set(available) - set(chosen))
        while rest and len(chosen) < size:
            least = min(rest, key=lambda id_: used[device(id_)])  # of several the first, by name
            rest.remove(least)
            used[device(least)] += 1
            chosen.append(least)
        return chosen

    def allocation_for(self, requested: Sequence[str]) -> Allocation:
        """Give a container's allocation for these devices, after `prepare`. Raises RejectedRequestError."""
        if self.own is not None:
            return self._own_allocation(requested)
        if self.limit is None:
            return self.allocation
        plain, limit = self.allocation, self.limit
        try:
            return plain._replace(
                envs=(*plain.envs, *limit.envs(requested)), mounts=(*plain.mounts, *limit.mounts(requested))
            )
        except OSError as error:
            raise self._unlimited(error) from error

    def prepare(self, requested: Sequence[str]) -> None:
        """Do what a container's start needs: create the files that it mounts. Raises RejectedRequestError."""
        if self.rules.checked_at_start:
            for problem in self._problems_of_health(requested):
                raise RejectedRequestError(f"{self.name}: {problem}")
        if self.limit:
            try:
                self.limit.prepare(requested)
            except OSError as error:
                raise self._unlimited(error) from error

    def _own_allocation(self, requested: Sequence[str]) -> Allocation:
        """Give the allocation of these devices; of a device with several of its shares once."""
        own = self.own or {}
        found = dict.fromkeys(own[id_].allocation for id_ in requested if id_ in own)
        return Allocation(
            envs=(),
            mounts=tuple(mount for one in found for mount in one.mounts),
            other_nodes=tuple(node for one in found for node in one.other_nodes),
        )

    def _unlimited(self, error: OSError) -> RejectedRequestError:
        return RejectedRequestError(f"{self.name}: no memory limit is possible: {error}")

    def requires(self, requested: Sequence[str]) -> str | None:
        """Give the resource that a container with these devices must have as well, if any."""
        required = self.rules.required
        if required is None or (required.unless_all and len(requested) == len(self.ids)):
            return None
        return required.resource

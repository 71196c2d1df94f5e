# SPDX-License-Identifier: Apache-2.0
"""An extended resource of the node, and the allocation of a container that requests it. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from tegra_device_plugin.board.health import Health
from tegra_device_plugin.sharing.memory_limit import MemoryLimit, Mount
from tegra_device_plugin.system.log import brief

# One iGPU per board: the id is constant over restarts and re-installations.
GPU_ID = "igpu0"

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"  # read by NVIDIA's runtime


class RejectedRequestError(ValueError):
    """A container cannot have the requested devices; the text is shown in the pod's status."""


class Allocation(NamedTuple):
    """Access of a container to the GPU."""

    envs: tuple[tuple[str, str], ...]
    device_nodes: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    cdi_devices: tuple[str, ...] = ()


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


class Registration(NamedTuple):
    """Facts that a kubelet reads only at the registration of a resource.

    `pre_start`: the kubelet calls PreStartContainer before each start of a container.
    """

    resource: str
    pre_start: bool


class Resource(NamedTuple):
    name: str
    ids: Collection[str]
    health: Health
    allocation: Allocation
    """The access of each container: there is one GPU."""
    rules: Rules = Rules()
    limit: MemoryLimit | None = None

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
        if not self.health.healthy:
            detail = f": {self.health.detail}" if self.health.detail else ""
            yield f"unhealthy: {self.health.reason}{detail}"

    @property
    def registration(self) -> Registration:
        return Registration(self.name, self.limit is not None or self.rules.required is not None)

    def allocation_for(self, requested: Sequence[str]) -> Allocation:
        """Give a container's allocation for these devices, after `prepare`. Raises RejectedRequestError."""
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
        """Create the files that the allocation of these devices mounts. Raises RejectedRequestError."""
        if self.limit:
            try:
                self.limit.prepare(requested)
            except OSError as error:
                raise self._unlimited(error) from error

    def _unlimited(self, error: OSError) -> RejectedRequestError:
        return RejectedRequestError(f"{self.name}: no memory limit is possible: {error}")

    def requires(self, requested: Sequence[str]) -> str | None:
        """Give the resource that a container with these devices must have as well, if any."""
        required = self.rules.required
        if required is None or (required.unless_all and len(requested) == len(self.ids)):
            return None
        return required.resource

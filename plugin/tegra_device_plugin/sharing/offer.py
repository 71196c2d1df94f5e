# SPDX-License-Identifier: Apache-2.0
"""What a node advertises to its kubelet, and what a container that asks for it gets. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tegra_device_plugin.board import cdi
from tegra_device_plugin.board.health import Verdict
from tegra_device_plugin.config.settings import Settings

if TYPE_CHECKING:
    from tegra_device_plugin.sharing.memorylimit import MemoryLimit

# One iGPU per board: its identity is its place, so the id is stable over restarts and re-installations.
GPU_ID = "igpu0"
REPLICA_SEPARATOR = "::"  # NVIDIA's form; exporters split on it

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"  # read by NVIDIA's runtime
# nvidia-container-toolkit reads the ids from the names of mounts below this directory
# (accept-...-as-volume-mounts).
VOLUME_MOUNT_ROOT = "/var/run/nvidia-container-devices"

_FEW = 4  # ids that a line of text names


class Ids(Protocol):
    """Device ids, in the order in which they are listed."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[str]: ...

    def __contains__(self, id_: str, /) -> bool: ...


class RefusedRequestError(ValueError):
    """A container asked for devices that cannot be given; the text goes into the pod's status."""


@dataclass(frozen=True)
class Mount:
    """A bind mount: `host` (path on the node) appears at `container`."""

    host: str
    container: str
    read_only: bool = True


@dataclass(frozen=True)
class Grant:
    """What a container gets."""

    envs: tuple[tuple[str, str], ...]
    device_nodes: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    cdi_devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Companion:
    """Another resource that a container has to hold as well; `but_whole`: unless it holds all ids of this."""

    resource: str
    but_whole: bool = False


class Served(NamedTuple):
    """What a kubelet is told of an offer when it is registered, and once only.

    `acts_at_start`: the kubelet has to call before each start of a container.
    """

    resource: str
    acts_at_start: bool


@dataclass(frozen=True)
class Offer:
    """One extended resource of the node."""

    resource: str
    ids: Ids
    healthy: bool
    reason: str
    grant: Grant = field(repr=False)
    """What each container gets: there is one GPU."""
    detail: str = ""
    """Of the reason, while unhealthy."""
    step: int = 1
    """A container asks for a multiple of it."""
    one_per_container: str = ""
    """Why a container cannot have more than one; empty: it can."""
    companion: Companion | None = None
    limit: MemoryLimit | None = None
    """What more a container gets by the number of its ids."""

    def check(self, asked: Sequence[str]) -> None:
        """Raise RefusedRequestError unless a container may get the devices `asked` for."""
        self.check_ids(asked)
        for problem in self._problems(asked):
            raise RefusedRequestError(f"{self.resource}: {problem}")

    def check_ids(self, asked: Sequence[str]) -> None:
        """Raise RefusedRequestError unless these are different devices of this offer, one at least."""
        for problem in self._problems_of_ids(asked):
            raise RefusedRequestError(f"{self.resource}: {problem}")

    def _problems_of_ids(self, asked: Sequence[str]) -> Iterator[str]:
        if unknown := [id_ for id_ in asked if id_ not in self.ids]:
            yield f"unknown device {brief(list(map(repr, sorted(unknown))))}"
        if len(set(asked)) != len(asked):
            yield f"a device is asked for twice: {brief(asked)}"
        if not asked:
            yield "a container asks for no device"

    def _problems(self, asked: Sequence[str]) -> Iterator[str]:
        if self.one_per_container and len(asked) > 1:
            yield f"{len(asked)} asked for, but {self.one_per_container}"
        if len(asked) % self.step:
            less = len(asked) - len(asked) % self.step
            fitting = " or ".join(str(number) for number in (less, less + self.step) if number)
            yield f"{len(asked)} asked for, but it is given in steps of {self.step}: ask for {fitting}"
        if not self.healthy:
            detail = f": {self.detail}" if self.detail else ""
            yield f"unhealthy: {self.reason}{detail}"

    @cached_property
    def served(self) -> Served:
        """What is to be registered for it."""
        return Served(self.resource, self.limit is not None or self.companion is not None)

    def grant_for(self, asked: Sequence[str]) -> Grant:
        """Give what a container with these devices gets."""
        return self.limit.extend(self.grant, asked) if self.limit else self.grant

    def prepare(self, asked: Sequence[str]) -> None:
        """Make what the grant for these devices mounts; raises RefusedRequestError if that is impossible."""
        if self.limit:
            try:
                self.limit.prepare(asked)
            except OSError as error:
                raise RefusedRequestError(f"{self.resource}: no memory limit is possible: {error}") from error

    def must_also_hold(self, asked: Sequence[str]) -> str | None:
        """Give the resource that a container with these devices has to hold as well, if any."""
        if self.companion is None or (self.companion.but_whole and len(asked) == len(self.ids)):
            return None
        return self.companion.resource


def brief(ids: Sequence[str]) -> str:
    """Name the ids, or the first of many and how many there are."""
    if len(ids) <= _FEW:
        return ", ".join(ids)
    return f"{', '.join(ids[:_FEW])} and {len(ids) - _FEW} more"


def make_offers(
    settings: Settings, device_nodes: Sequence[str], verdict: Verdict, limit_flaw: Verdict | None = None
) -> tuple[Offer, ...]:
    """Give what is advertised for a board's GPU.

    `device_nodes` are the host paths that exist; `limit_flaw` is why memory cannot be limited here.
    """
    grant = _grant(settings, device_nodes)
    if settings.units:
        from tegra_device_plugin.sharing.unitoffers import unit_offers  # noqa: PLC0415 - only with units

        return unit_offers(settings, settings.units, grant, verdict, limit_flaw)
    sharing = settings.sharing
    whole = with_health(Offer(settings.resource, (GPU_ID,), True, "", grant), verdict)
    if sharing.replicas == 1:
        return (whole,)
    why = ""
    if sharing.fail_requests_greater_than_one:
        why = (
            "replicas share one GPU, so a second one gives nothing: ask for 1 "
            "(sharing.timeSlicing.failRequestsGreaterThanOne)"
        )
    return (replace(whole, ids=replica_ids(sharing.replicas), one_per_container=why),)


def with_health(offer: Offer, verdict: Verdict) -> Offer:
    """Give the offer with a verdict's health."""
    # A good one's detail is left out: it changes with each look.
    detail = "" if verdict.healthy else verdict.detail
    return replace(offer, healthy=verdict.healthy, reason=verdict.reason, detail=detail)


def _grant(settings: Settings, device_nodes: Sequence[str]) -> Grant:
    # The toolkit's CSV mode knows "0" and "all" and, from 1.19, refuses any other id.
    visible = "0" if settings.device_id_strategy == "index" else "all"
    strategy = settings.device_list_strategy
    envs: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()
    if "volume-mounts" in strategy:
        envs = ((VISIBLE_DEVICES, VOLUME_MOUNT_ROOT),)
        mounts = (Mount(host="/dev/null", container=f"{VOLUME_MOUNT_ROOT}/{visible}"),)
    elif "envvar" in strategy:
        envs = ((VISIBLE_DEVICES, visible),)
    return Grant(
        envs=envs,
        # Nodes named to the kubelet stay allowed when systemd rewrites the container's device rules
        # (daemon-reload).
        device_nodes=tuple(device_nodes) if settings.pass_device_specs else (),
        mounts=mounts,
        # Kubelets before 1.28 drop this.
        cdi_devices=(cdi.device(visible),) if "cdi-cri" in strategy else (),
    )


def replica_ids(replicas: int) -> tuple[str, ...]:
    """Device ids: the plain GPU, or `replicas` shares of it."""
    if replicas == 1:
        return (GPU_ID,)
    return tuple(f"{GPU_ID}{REPLICA_SEPARATOR}{number}" for number in range(replicas))

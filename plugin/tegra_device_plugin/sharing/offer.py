# SPDX-License-Identifier: Apache-2.0
"""What a node advertises to its kubelet, and what a container that asks for it gets. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tegra_device_plugin.board import cdi
from tegra_device_plugin.board.health import Verdict
from tegra_device_plugin.config.settings import Settings

# One iGPU per board: its identity is its place, so the id is stable over restarts and re-installations.
GPU_ID = "igpu0"
REPLICA_SEPARATOR = "::"  # NVIDIA's form; exporters split on it

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"  # read by NVIDIA's runtime
# nvidia-container-toolkit reads the ids from the names of mounts below this directory
# (accept-...-as-volume-mounts).
VOLUME_MOUNT_ROOT = "/var/run/nvidia-container-devices"


class RefusedRequestError(ValueError):
    """A container asked for devices that cannot be given; the text goes into the pod's status."""


@dataclass(frozen=True)
class Mount:
    """A read-only bind mount: `host` (path on the node) appears at `container`."""

    host: str
    container: str


@dataclass(frozen=True)
class Grant:
    """What a container gets. Every id of one offer grants the same: there is one GPU."""

    envs: tuple[tuple[str, str], ...]
    device_nodes: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    cdi_devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Offer:
    """One extended resource of the node."""

    resource: str
    ids: tuple[str, ...]
    healthy: bool
    reason: str
    grant: Grant = field(repr=False)
    one_per_container: bool = False

    def check(self, resource: str, asked: Sequence[str]) -> None:
        """Raise RefusedRequestError unless a container may get the devices `asked` for, of `resource`."""
        if resource != self.resource:
            raise RefusedRequestError(f"{resource} was replaced by {self.resource} on this node")
        unknown = sorted(set(asked) - set(self.ids))
        if unknown:
            raise RefusedRequestError(f"{self.resource}: unknown device {', '.join(map(repr, unknown))}")
        if len(set(asked)) != len(asked):
            raise RefusedRequestError(f"{self.resource}: a device is asked for twice: {', '.join(asked)}")
        if not asked:
            raise RefusedRequestError(f"{self.resource}: a container asks for no device")
        if self.one_per_container and len(asked) > 1:
            raise RefusedRequestError(
                f"{self.resource}: {len(asked)} asked for, but replicas share one GPU, so a second one gives "
                "nothing: ask for 1 (sharing.timeSlicing.failRequestsGreaterThanOne)"
            )
        if not self.healthy:
            raise RefusedRequestError(f"{self.resource}: the GPU is unhealthy: {self.reason}")


def make_offer(settings: Settings, device_nodes: Sequence[str], verdict: Verdict) -> Offer:
    """Give what is advertised for a board's GPU; `device_nodes` are the host paths that exist."""
    return Offer(
        resource=settings.resource,
        ids=replica_ids(settings.sharing.replicas),
        healthy=verdict.healthy,
        reason=verdict.reason,
        grant=_grant(settings, device_nodes),
        one_per_container=settings.sharing.replicas > 1 and settings.sharing.fail_requests_greater_than_one,
    )


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

# SPDX-License-Identifier: Apache-2.0
"""A node: the kubelet, its flags and its labels. The same on agents and on the server."""

import asyncio
import json
import logging
import subprocess
from collections.abc import Mapping
from pathlib import Path

from . import cni, containerd
from .api import POLL_SECONDS, Api, ApiError, local_health, until
from .config import Config
from .errors import StandinError
from .membership import Membership, join
from .network import KUBELET_HEALTH_PORT, POD_CIDR, address_towards, api_url
from .notify import notify
from .processes import Children
from .tokens import Token

log = logging.getLogger(__name__)


def docker_flags(config: Config, cgroup_driver: str) -> dict[str, str]:
    """Return the kubelet's flags for Docker by its own shim."""
    return {
        "container-runtime": "docker",
        "cgroup-driver": cgroup_driver,
        "pod-infra-container-image": config.pause_image,
    }


def kubelet_flags(
    config: Config, member: Membership, node_ip: str, runtime_flags: Mapping[str, str]
) -> list[str]:
    """Return the kubelet's flags; the user's kubelet-arg entries replace ours."""
    flags = {
        "kubeconfig": str(member.kubeconfig),
        "hostname-override": config.node_name,
        "node-ip": node_ip,
        "client-ca-file": str(member.client_ca),
        "anonymous-auth": "false",
        "authentication-token-webhook": "true",
        "authorization-mode": "Webhook",
        "tls-cert-file": str(member.serving.cert),
        "tls-private-key-file": str(member.serving.key),
        "healthz-bind-address": "127.0.0.1",
        "healthz-port": str(KUBELET_HEALTH_PORT),
        # Under K3s the node's pod network makes the kubelet report Ready early; without one that would come
        # with the second report, 10 s after the first.
        "node-status-update-frequency": "2s",
        # K3s sets it as well: boards have zram.
        "fail-swap-on": "false",
        # With cgroup v1 the cgroup tree above a virtual board's pods is not the kubelet's to arrange.
        "cgroups-per-qos": "false",
        "enforce-node-allocatable": "",
        # A virtual board sees the disk of the machine it runs on, whose fill level is not its business.
        # Images were loaded from files and cannot be pulled again: never collect them.
        "eviction-hard": "",
        "image-gc-high-threshold": "100",
    }
    flags |= runtime_flags
    if config.node_labels:
        flags["node-labels"] = ",".join(f"{key}={value}" for key, value in config.node_labels.items())
    if config.node_taints:
        flags["register-with-taints"] = ",".join(config.node_taints)
    return merge_flags(flags, config.kubelet_args)


def proxy_flags(config: Config, member: Membership) -> list[str]:
    """Return kube-proxy's flags. The kernel's settings stay: a virtual board is a container."""
    return [
        f"--kubeconfig={member.proxy_kubeconfig}",
        f"--hostname-override={config.node_name}",
        f"--cluster-cidr={POD_CIDR}",
        "--proxy-mode=iptables",
        "--healthz-bind-address=127.0.0.1:10256",
        "--metrics-bind-address=127.0.0.1:10249",
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
    ]


def merge_flags(flags: dict[str, str], overrides: tuple[str, ...]) -> list[str]:
    """Return flags as a program takes them, `name=value` overrides in place of those of that name."""
    merged = flags | dict(argument.removeprefix("--").split("=", 1) for argument in overrides)
    return [f"--{name}={value}" for name, value in merged.items()]


def docker_cgroup_driver() -> str:
    """Return the cgroup driver of this host's Docker, as K3s does. Raises StandinError without Docker."""
    try:
        done = subprocess.run(
            ["docker", "info", "--format", "{{json .}}"], capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise StandinError("docker is not installed, and `docker: true` needs it") from error
    try:
        info = json.loads(done.stdout)
    except ValueError:
        info = {}
    driver = info.get("CgroupDriver")
    if not driver:
        complaint = " ".join(info.get("ServerErrors") or [done.stderr.strip()])
        raise StandinError(f"Docker does not answer, is docker.service running? docker info: {complaint}")
    return str(driver)


def warn_about_images(data_dir: Path) -> None:
    """Say that airgap images are not imported, as K3s does not with --docker."""
    images = sorted((data_dir / "agent" / "images").glob("*.tar*"))
    if images:
        names = ", ".join(image.name for image in images)
        log.warning("With docker, agent/images is ignored: %s; use `docker load` instead", names)


async def run_node(children: Children, config: Config, url: str, token: Token, programs: Path) -> Membership:
    """Join the cluster and start the kubelet; return the node's credentials once it is registered."""
    if config.runtime == "docker":
        runtime_flags = docker_flags(config, await asyncio.to_thread(docker_cgroup_driver))
        warn_about_images(config.data_dir)
    else:
        notify("STATUS=starting containerd")
        await containerd.start(children, config, programs)
        runtime_flags = containerd.kubelet_flags()
    notify(f"STATUS=joining {url}")
    node_ip = config.node_ip or address_towards()
    member = await join(url, token, config.node_name, node_ip, config.data_dir / "agent")
    notify("STATUS=starting the kubelet")
    flags = kubelet_flags(config, member, node_ip, runtime_flags)
    await children.start("kubelet", [programs / "kubelet", *flags])
    await until(lambda: local_health(KUBELET_HEALTH_PORT))
    notify("STATUS=waiting for the node to be registered")
    api = Api(api_url(url), member.server_ca, member.client)
    await label(api, config.node_name, dict(config.node_labels))
    if config.runtime == "containerd":
        # A kubelet may look at its own node only, kube-proxy at all.
        nodes = Api(api_url(url), member.server_ca, member.proxy)
        await children.start("kube-proxy", [programs / "kube-proxy", *proxy_flags(config, member)])
        children.keep(
            "the pods' network", cni.follow(nodes, config.node_name, containerd.cni_directory(config))
        )
    return member


async def label(api: Api, node: str, labels: dict[str, str]) -> None:
    """Merge labels into a node's, waiting for the node to be there."""
    while True:
        try:
            await asyncio.to_thread(api.label_node, node, labels)
        except OSError:
            pass
        except ApiError as refusal:
            if refusal.status == 403:
                raise StandinError(f"the API server refused node labels {labels}: {refusal}") from refusal
            if refusal.status != 404:
                log.info("labelling the node: %s", refusal)
        else:
            return
        await asyncio.sleep(POLL_SECONDS)

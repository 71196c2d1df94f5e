# SPDX-License-Identifier: Apache-2.0
"""`k3s server`: the control plane, the endpoint where nodes join, and a node beside them."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from . import bootstrap, certs, datastore, files, kubeconfig, manifests, supervisor, tokens
from .api import Api, until
from .config import Config
from .errors import StandinError
from .kubectl import ADMIN_KUBECONFIG
from .network import (
    API_PORT,
    API_URL,
    FIRST_SERVICE_ADDRESS,
    POD_CIDR,
    SERVICE_CIDR,
    SUPERVISOR_PORT,
    address_towards,
)
from .node import label, merge_flags, run_node
from .notify import notify
from .processes import Children

log = logging.getLogger(__name__)

ROLE_LABELS = {
    "node-role.kubernetes.io/control-plane": "true",
    "node-role.kubernetes.io/master": "true",
}


@dataclass(frozen=True)
class Identity:
    """Everything by which the server is known: authorities, certificates, passwords."""

    server_ca: certs.Pair
    client_ca: certs.Pair
    serving: certs.Pair
    admin: certs.Pair
    api_to_kubelet: certs.Pair
    controller: Path  # kubeconfig
    scheduler: Path  # kubeconfig
    signing_key: Path
    passwords: dict[str, str]


def establish(config: Config, node_ip: str) -> Identity:
    """Return the server's identity, made at the first start and kept after that."""
    home = config.data_dir / "server"
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    tls = home / "tls"
    bootstrap.load(tls)
    server_ca = certs.authority(tls, "server-ca")
    client_ca = certs.authority(tls, "client-ca")
    # The controller manager takes one that stands alone.
    files.write(signing_ca(client_ca), certs.split(client_ca.cert.read_bytes())[0], 0o644)
    hosts = certs.distinct(
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "localhost",
        "127.0.0.1",
        FIRST_SERVICE_ADDRESS,
        config.node_name,
        node_ip,
        *config.tls_sans,
    )

    def client(name: str, user: str, group: str = "") -> certs.Pair:
        return certs.certificate(tls, name, client_ca, certs.Subject(user, group))

    def component(name: str, user: str) -> Path:
        path = home / "cred" / f"{name}.kubeconfig"
        return kubeconfig.write(path, API_URL, server_ca.cert, client(f"client-{name}", user))

    passwords = settle_passwords(config, home / "token")
    ca_pem = server_ca.cert.read_bytes()
    files.write(home / "token", tokens.full(ca_pem, "server", passwords["server"]))
    files.link(home / "node-token", "token")
    files.write(home / "agent-token", tokens.full(ca_pem, "node", passwords["node"]))
    return Identity(
        server_ca=server_ca,
        client_ca=client_ca,
        serving=certs.certificate(
            tls, "serving-kube-apiserver", server_ca, certs.Subject("k3s", hosts=hosts)
        ),
        admin=client("client-admin", "system:admin", "system:masters"),
        api_to_kubelet=client("client-kube-apiserver", "system:apiserver", "system:masters"),
        controller=component("controller", "system:kube-controller-manager"),
        scheduler=component("scheduler", "system:kube-scheduler"),
        signing_key=certs.signing_key(tls / "service.key"),
        passwords=passwords,
    )


def signing_ca(client_ca: certs.Pair) -> Path:
    """Return where the CA of clients lies without what is behind it."""
    return client_ca.cert.with_name("client-ca.nochain.crt")


def settle_passwords(config: Config, token_file: Path) -> dict[str, str]:
    """Return the passwords of the users `server` and `node`.

    The server's is the configured token's, or a random one, and stays until `k3s token rotate`: K3s encrypts
    its data by it. The node's is the agent token's, the server's without one.
    """
    wanted = tokens.parse(config.token).password if config.token else ""
    if token_file.exists():
        kept = tokens.parse(token_file.read_text()).password
        if wanted and not tokens.same(wanted, kept):
            raise StandinError(
                f"this cluster was made with another token, which is in {token_file}; "
                "give that one, or none, or start over with an empty data directory"
            )
        wanted = kept
    password = wanted or tokens.new_password()
    agent_token = tokens.parse(config.agent_token).password if config.agent_token else password
    return {"server": password, "node": agent_token}


def apiserver_flags(config: Config, identity: Identity, node_ip: str, store: Mapping[str, str]) -> list[str]:
    """Return the API server's flags, `store` those of the datastore; the user's entries replace ours."""
    issuer = "https://kubernetes.default.svc.cluster.local"
    return merge_flags(
        {
            **store,
            "secure-port": str(API_PORT),
            "bind-address": "0.0.0.0",  # noqa: S104  (agents come from other hosts)
            "advertise-address": node_ip,
            "allow-privileged": "true",
            "anonymous-auth": "false",
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "client-ca-file": str(identity.client_ca.cert),
            "tls-cert-file": str(identity.serving.cert),
            "tls-private-key-file": str(identity.serving.key),
            "kubelet-certificate-authority": str(identity.server_ca.cert),
            "kubelet-client-certificate": str(identity.api_to_kubelet.cert),
            "kubelet-client-key": str(identity.api_to_kubelet.key),
            "kubelet-preferred-address-types": "InternalIP,Hostname",
            "service-account-issuer": issuer,
            "api-audiences": f"{issuer},k3s",
            "service-account-key-file": str(identity.signing_key),
            "service-account-signing-key-file": str(identity.signing_key),
            "service-cluster-ip-range": SERVICE_CIDR,
            "profiling": "false",
            # It samples its queues a thousand times a second, a third of what an idle API server does; nobody
            # competes for this one.
            "enable-priority-and-fairness": "false",
        },
        config.apiserver_args,
    )


def controller_flags(config: Config, identity: Identity) -> list[str]:
    """Return the controller manager's flags."""
    pods = ["--allocate-node-cidrs=true", f"--cluster-cidr={POD_CIDR}"]
    return [
        *merge_flags(component_flags(config, identity.controller), ()),
        # With Docker's shim the pods are on Docker's own network.
        *(pods if config.runtime == "containerd" else []),
        f"--service-account-private-key-file={identity.signing_key}",
        f"--root-ca-file={identity.server_ca.cert}",
        f"--cluster-signing-cert-file={signing_ca(identity.client_ca)}",
        f"--cluster-signing-key-file={identity.client_ca.key}",
        "--use-service-account-credentials=true",
    ]


def scheduler_flags(config: Config, identity: Identity) -> list[str]:
    """Return the scheduler's flags; the user's kube-scheduler-arg entries replace ours."""
    return merge_flags(component_flags(config, identity.scheduler), config.scheduler_args)


def component_flags(config: Config, kubeconfig: Path) -> dict[str, str]:
    """Return the flags that scheduler and controller manager share: loopback, no plain HTTP."""
    return {
        "kubeconfig": str(kubeconfig),
        "authentication-kubeconfig": str(kubeconfig),
        "authorization-kubeconfig": str(kubeconfig),
        "bind-address": "127.0.0.1",
        # The one with Docker's shim still has a port without TLS.
        **({"port": "0"} if config.runtime == "docker" else {}),
        # One instance alone need not wait for a lease.
        "leader-elect": "false",
        "profiling": "false",
    }


async def run_server(children: Children, config: Config, programs: Path) -> None:
    """Run the control plane and this host's node, and apply manifests for ever."""
    node_ip = config.node_ip or address_towards()
    identity = await asyncio.to_thread(establish, config, node_ip)
    admin = Path(ADMIN_KUBECONFIG)
    admin.parent.mkdir(parents=True, exist_ok=True)
    kubeconfig.write(admin, API_URL, identity.server_ca.cert, identity.admin, config.kubeconfig_mode)
    notify("STATUS=starting the API server")
    store = await datastore.start(children, config, programs, node_ip)
    api_flags = apiserver_flags(config, identity, node_ip, store)
    await children.start("kube-apiserver", [programs / "kube-apiserver", *api_flags])
    api = Api(API_URL, identity.server_ca.cert, identity.admin)
    await until(api.ready)
    log.info("Kube API server is now running")
    token_file = config.data_dir / "server" / "token"
    cluster = supervisor.Cluster(identity.server_ca, identity.client_ca, identity.passwords, api, token_file)
    supervisor.serve(cluster, identity.serving)
    own_url = f"https://127.0.0.1:{SUPERVISOR_PORT}"
    own_token = tokens.parse((config.data_dir / "server" / "agent-token").read_text())
    await run_node(children, config, own_url, own_token, programs)
    await label(api, config.node_name, ROLE_LABELS)
    # After the node, which does not need them and should not have to share the processor with their start.
    await children.start(
        "kube-controller-manager",
        [programs / "kube-controller-manager", *controller_flags(config, identity)],
    )
    await children.start("kube-scheduler", [programs / "kube-scheduler", *scheduler_flags(config, identity)])
    log.info("k3s is up and running")
    notify("READY=1\nSTATUS=running")
    directory = config.data_dir / "server" / "manifests"
    directory.mkdir(mode=0o700, exist_ok=True)
    apply = manifests.kubectl_apply(programs / "kubectl", admin, config.data_dir / "server" / "kubectl-cache")
    await manifests.deploy(manifests.Deployer(directory, apply))

# SPDX-License-Identifier: Apache-2.0
"""A real API server by itself: no node, no controllers, no root. It says whether manifests are taken."""

import json
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.lab import gomodules
from tools import debian
from tools.process import ToolError, run, tail

ADMIN = {"admin": "system:masters"}
"""The administrator's name and group."""
SERVICE_CIDR = "10.43.0.0/16"
PROGRAMS = ("etcd", "kube-apiserver", "kubectl")
START_SECONDS = 180
"""Within which it answers; it takes 10 s, and much longer on a machine that compiles meanwhile."""
POLL_SECONDS = 0.5
GRACE_SECONDS = 10


@dataclass(frozen=True)
class ApiServer:
    """A server that answers; `kubeconfig` is its administrator's."""

    kubeconfig: Path
    program: Path

    def kubectl(self, *arguments: str | Path, stdin: str | None = None) -> str:
        return run([self.program, f"--kubeconfig={self.kubeconfig}", *arguments], stdin=stdin).stdout


@contextmanager
def started(directory: Path) -> Iterator[ApiServer]:
    """Start the API server of the lab's newest Kubernetes with etcd; both are gone afterwards.

    Raises NoGoError where there is no Go to compile it with, ToolError when it does not answer.
    """
    hyperkube = gomodules.programs(gomodules.HYPERKUBE, debian.architecture()) / "hyperkube"
    for name in PROGRAMS:
        (directory / name).symlink_to(hyperkube)
    port = free_port()
    (token,) = write_credentials(directory, ADMIN).values()
    alone = ("--bind-address=127.0.0.1", "--endpoint-reconciler-type=none")  # no Service leads to it
    commands: tuple[list[str | Path], ...] = (
        [directory / "etcd", *etcd_flags(directory)],
        [directory / "kube-apiserver", *server_flags(directory, "127.0.0.1", port), *alone],
    )
    server = ApiServer(directory / "kubeconfig", directory / "kubectl")
    server.kubeconfig.write_text(kubeconfig(directory, f"https://127.0.0.1:{port}", token))
    with ExitStack() as stack:
        running = [
            stack.enter_context(process(command, directory / f"{Path(command[0]).name}.log"))
            for command in commands
        ]
        wait(server, running, directory)
        yield server


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def write_credentials(directory: Path, users: Mapping[str, str]) -> Mapping[str, str]:
    """Write the users' tokens and the key of service accounts; return the tokens by user.

    `users` has the group of each.
    """
    tokens = {name: secrets.token_hex() for name in users}
    lines = (f'{tokens[name]},{name},{name},"{group}"\n' for name, group in users.items())
    (directory / "tokens.csv").write_text("".join(lines))
    key = run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout"]).stdout
    (directory / "service.key").write_text(key)
    return tokens


def etcd_flags(directory: Path) -> list[str]:
    """Return the flags of an etcd that keeps its data in the server's directory, and loses them with it."""
    return [
        f"--data-dir={directory}/data",
        f"--listen-client-urls=unix://{directory}/etcd.sock",
        "--advertise-client-urls=http://localhost:2379",  # required; nobody asks for it
        f"--listen-peer-urls=unix://{directory}/peer.sock",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def server_flags(directory: Path, address: str, port: int) -> list[str]:
    """Return the flags of an API server whose credentials, certificate and etcd are in `directory`.

    It makes its own certificate for `address`.
    """
    return [
        f"--etcd-servers=unix://{directory}/etcd.sock",
        f"--advertise-address={address}",
        f"--secure-port={port}",
        f"--cert-dir={directory}",
        f"--token-auth-file={directory}/tokens.csv",
        "--authorization-mode=Node,RBAC",
        "--anonymous-auth=false",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={directory}/service.key",
        f"--service-account-signing-key-file={directory}/service.key",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        "--allow-privileged=true",  # as K3s
    ]


def kubeconfig(directory: Path, url: str, token: str) -> str:
    cluster = {"server": url, "certificate-authority": f"{directory}/apiserver.crt"}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": "it", "user": {"token": token}}],
        }
    )


@contextmanager
def process(command: Sequence[str | Path], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as said, subprocess.Popen(command, stdout=said, stderr=said) as running:
        try:
            yield running
        finally:
            running.terminate()
            try:
                running.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                running.kill()


def wait(server: ApiServer, running: Sequence[subprocess.Popen[bytes]], directory: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            server.kubectl("get", "--raw=/readyz")
        except ToolError as error:
            if time.monotonic() < end and all(one.poll() is None for one in running):
                time.sleep(POLL_SECONDS)
                continue
            logs = "".join(tail(path.read_text(errors="replace")) for path in directory.glob("*.log"))
            raise ToolError(f"the API server does not answer: {error}\n{logs}") from error
        return

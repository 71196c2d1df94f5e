# SPDX-License-Identifier: Apache-2.0
"""A real API server by itself: no node, no controllers, no root. It says whether manifests are taken."""

import json
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.lab import debian, gomodules, kubernetes
from tests.lab.k3s_standin.certs import signing_key
from tests.lab.k3s_standin.datastore import SQLITE
from tests.lab.process import LabError, run, tail

PROGRAMS = ("kube-apiserver", "kubectl")
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
        """Run kubectl and return what it says. Raises LabError."""
        return run([self.program, f"--kubeconfig={self.kubeconfig}", *arguments], stdin=stdin).stdout


@contextmanager
def started(directory: Path, flags: Sequence[str] = ()) -> Iterator[ApiServer]:
    """Start the API server of the lab's newest Kubernetes with kine's SQLite; both are gone afterwards.

    Raises NoGoError where there is no Go to compile it with, LabError when it does not answer.
    """
    arch = debian.architecture()
    hyperkube = gomodules.programs(f"kubernetes-{kubernetes.VERSION}", arch) / "hyperkube"
    kine = gomodules.programs("kine", arch) / "kine"
    for name in PROGRAMS:
        (directory / name).symlink_to(hyperkube)
    token = secrets.token_hex()
    (directory / "tokens.csv").write_text(f'{token},admin,1,"system:masters"\n')
    key = signing_key(directory / "service.key")
    datastore = f"unix://{directory}/kine.sock"
    port = free_port()
    commands: tuple[list[str | Path], ...] = (
        [
            kine,
            f"--endpoint=sqlite://{directory}/state.db?{SQLITE}",
            f"--listen-address={datastore}",
            "--metrics-bind-address=0",
        ],
        [
            directory / "kube-apiserver",
            f"--etcd-servers={datastore}",
            "--bind-address=127.0.0.1",
            # It has no other address, and no Service leads to it.
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--secure-port={port}",
            f"--cert-dir={directory}",
            f"--token-auth-file={directory}/tokens.csv",
            "--authorization-mode=RBAC",
            "--anonymous-auth=false",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.43.0.0/16",
            "--allow-privileged=true",  # as K3s
            *flags,
        ],
    )
    server = ApiServer(directory / "kubeconfig", directory / "kubectl")
    server.kubeconfig.write_text(json.dumps(kubeconfig(port, directory / "apiserver.crt", token)))
    with ExitStack() as stack:
        running = [
            stack.enter_context(process(command, directory / f"{Path(command[0]).name}.log"))
            for command in commands
        ]
        wait(server, running, directory)
        yield server


def free_port() -> int:
    """Return a TCP port of loopback that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def kubeconfig(port: int, authority: Path, token: str) -> object:
    """Return the administrator's."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [
            {
                "name": "it",
                "cluster": {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(authority)},
            }
        ],
        "users": [{"name": "it", "user": {"token": token}}],
    }


@contextmanager
def process(command: Sequence[str | Path], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program that does not end by itself; it is gone afterwards."""
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
    """Wait until the server is ready. Raises LabError with the programs' last words."""
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            server.kubectl("get", "--raw=/readyz")
        except LabError as error:
            if time.monotonic() < end and all(one.poll() is None for one in running):
                time.sleep(POLL_SECONDS)
                continue
            logs = "".join(tail(path.read_text(errors="replace")) for path in directory.glob("*.log"))
            raise LabError(f"the API server does not answer: {error}\n{logs}") from error
        return

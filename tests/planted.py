# SPDX-License-Identifier: Apache-2.0
"""Secrets as owners have them on a board, and a search for them in what the playbooks say."""

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

# By the flag of K3s, or the place, that has them.
PLANTED = {
    "token": "planted-join-token",
    "agent-token": "planted-agent-token",
    "datastore-endpoint": "postgres://kine:planted-database@db.example:5432/k3s",
    "etcd-s3-access-key": "PLANTEDACCESSKEY",
    "etcd-s3-secret-key": "planted/secret+key",
    "vpn-auth": "name=tailscale,joinKey=planted-vpn-key",
    "proxy": "planted-proxy-password",
}
FLAGS = {name: value for name, value in PLANTED.items() if name != "proxy"}
# The unit of K3s' stock script, and what systemd says of it.
COMMAND = " ".join(
    ["/usr/local/bin/k3s server --docker", *(f"--{name} {text}" for name, text in FLAGS.items())]
)
EXEC_START = f"{{ path=/usr/local/bin/k3s ; argv[]={COMMAND} ; ignore_errors=no ; pid=7 }}"
UNIT = "".join(
    [
        "[Service]\nEnvironment=K3S_TOKEN=planted-join-token\n",
        "ExecStart=/usr/local/bin/k3s \\\n    server \\\n\t'--docker' \\\n",
        *(f"\t'--{name}' \\\n\t'{value}' \\\n" for name, value in FLAGS.items()),
        "\t'--disable=traefik'\n",
    ]
)

# What services and their owners write into a journal.
JOURNAL = f"""\
kept: the service has ended
Started {COMMAND} -t {PLANTED["token"]}
Environment="K3S_TOKEN=two {PLANTED["token"]}" "HTTPS_PROXY=http://somebody:at@{PLANTED["proxy"]}@proxy.example"
env: {{token: {PLANTED["token"]}, proxy: http://{PLANTED["proxy"]}@proxy.example:3128}}
argv: {json.dumps(["k3s", "agent", "-token", PLANTED["token"], "--agent-token", PLANTED["agent-token"]])}
{{"a": ["--vpn-auth", "{PLANTED["vpn-auth"]}"], "AWS_SECRET_ACCESS_KEY": "{PLANTED["etcd-s3-secret-key"]}"}}
agent-token: |
  {PLANTED["agent-token"]}
kept: restart it
"""


@contextmanager
def watched(read: Callable[[], str], seconds: float = 0.1) -> Iterator[set[str]]:
    """Lines that `read` has returned meanwhile; it is called again and again."""
    lines: set[str] = set()
    over = threading.Event()

    def sample() -> None:
        while not over.wait(seconds):
            lines.update(read().splitlines())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield lines
    finally:
        over.set()
        thread.join()


def processes(marker: str) -> str:
    """Command lines of this machine's processes that have this text in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text(errors="replace").replace("\0", " "))
        except OSError:  # it has ended
            continue
    return "\n".join(found)


def leaked(told: str | Path) -> list[str]:
    if isinstance(told, Path):
        told = "\n".join(path.read_text(errors="replace") for path in told.rglob("*") if path.is_file())
    return [name for name, value in PLANTED.items() if any(form in told for form in forms(value))]


def forms(value: str) -> set[str]:
    return {value, quote(value, safe=""), json.dumps(value)[1:-1], base64.b64encode(value.encode()).decode()}

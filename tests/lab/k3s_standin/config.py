# SPDX-License-Identifier: Apache-2.0
"""What the user asked for: configuration files, environment and command line, merged as K3s merges them.

The files are turned into flags that stand before those of the command line, as K3s does, so that both have
one grammar. Pure but for reading the files.
"""

import logging
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .errors import StandinError
from .packed import RUNTIME

log = logging.getLogger(__name__)

CONFIG_FILE = Path("/etc/rancher/k3s/config.yaml")
Command = Literal["server", "agent"]
SERVER = frozenset({"server"})
AGENT = frozenset({"agent"})
BOTH = SERVER | AGENT


@dataclass(frozen=True)
class Option:
    """One option: its form, the commands that have it, and the environment variable that stands in for it."""

    name: str
    kind: Literal["switch", "text", "list"]
    commands: frozenset[str] = BOTH
    environment: str = ""
    short: str = ""


# Names, commands and variables are K3s' own (pkg/cli/cmds/server.go and agent.go). K3s servers run a kubelet
# as well, so every agent option is an option of both.
OPTIONS = {
    option.name: option
    for option in (
        Option("docker", "switch"),
        Option("data-dir", "text", short="d"),
        Option("token", "text", environment="K3S_TOKEN", short="t"),
        Option("token-file", "text", environment="K3S_TOKEN_FILE"),
        Option("node-name", "text"),
        Option("node-ip", "text"),
        Option("node-label", "list"),
        Option("node-taint", "list"),
        Option("kubelet-arg", "list"),
        Option("pause-image", "text"),
        Option("server", "text", environment="K3S_URL", short="s"),
        Option("agent-token", "text", SERVER),
        Option("agent-token-file", "text", SERVER),
        Option("kube-apiserver-arg", "list", SERVER),
        Option("kube-scheduler-arg", "list", SERVER),
        Option("disable", "list", SERVER),
        Option("disable-helm-controller", "switch", SERVER),
        Option("disable-network-policy", "switch", SERVER),
        Option("tls-san", "list", SERVER),
        Option("write-kubeconfig-mode", "text", SERVER),
    )
}
SHORT = {f"-{option.short}": option for option in OPTIONS.values() if option.short}


@dataclass(frozen=True)
class Config:
    """A checked configuration. `token` and `agent_token` are as the user wrote them, empty when not given."""

    command: Command
    runtime: str
    data_dir: Path
    node_name: str
    node_ip: str
    node_labels: Mapping[str, str]
    node_taints: tuple[str, ...]
    kubelet_args: tuple[str, ...]
    pause_image: str
    token: str
    server: str
    agent_token: str
    apiserver_args: tuple[str, ...]
    scheduler_args: tuple[str, ...]
    tls_sans: tuple[str, ...]
    kubeconfig_mode: int


Values = dict[str, str | bool | list[str]]


def usage(command: Command) -> str:
    """Return the options that a command has, in the form of K3s' own help."""
    lines = [f"OPTIONS of the stand-in's k3s {command}:"]
    for option in OPTIONS.values():
        if command in option.commands:
            value = "" if option.kind == "switch" else " value"
            more = f" [ --{option.name} value ]" if option.kind == "list" else ""
            lines.append(f"   --{option.name}{value}{more}  ({option.kind})")
    return "\n".join(lines) + "\n"


def config_files(main: Path) -> list[Path]:
    """Return the existing configuration files in reading order: the main one, then its `.d` directory."""
    drop_ins = sorted(path for path in Path(f"{main}.d").glob("*") if path.suffix in {".yaml", ".yml"})
    return [path for path in (main, *drop_ins) if path.is_file()]


def read_files(paths: Iterable[Path], command: Command) -> list[str]:
    """Return the flags that the configuration files stand for.

    A later file replaces a key of an earlier one; `key+:` appends to it. A key that only the other command
    has is skipped with a warning. Raises StandinError, naming the file, for anything that is not a known key
    with a sensible value.
    """
    merged: dict[str, list[str]] = {}
    for path in paths:
        for raw, value in parse_yaml(path).items():
            key = raw.removesuffix("+")
            option = OPTIONS.get(key)
            if option is None:
                known = ", ".join(sorted(OPTIONS))
                raise StandinError(f"{path}: unknown key {key!r}; the stand-in knows {known}")
            if command not in option.commands:
                log.warning("%s: %s is not an option of k3s %s, skipping", path, key, command)
                continue
            texts = as_texts(value, f"{path}: {key}")
            if option.kind != "list" and len(texts) > 1:
                raise StandinError(f"{path}: {key} takes one value, not a list")
            append = raw.endswith("+") and option.kind == "list"
            merged[key] = [*merged.get(key, []), *texts] if append else texts
    return [f"--{key}={text}" for key, texts in merged.items() for text in texts]


def parse_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping that a YAML file holds. Raises StandinError, naming the file, for anything else."""
    import yaml  # noqa: PLC0415  (not needed, and not cheap, for `k3s kubectl` and `k3s --version`)

    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise StandinError(f"cannot read the configuration file {path}: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise StandinError(f"{path}: expected `key: value` lines, found a {type(content).__name__}")
    return {str(key): value for key, value in content.items()}


def as_texts(value: object, where: str) -> list[str]:
    """Return a YAML value as the texts of the flags it stands for.

    Raises StandinError for a mapping or nothing.
    """
    if isinstance(value, bool):
        return [str(value).lower()]
    if isinstance(value, str | int | float):
        return [str(value)]
    if isinstance(value, list):
        return [text for item in value for text in as_texts(item, where)]
    raise StandinError(f"{where}: expected text, a number, true, false or a list, found {value!r}")


def parse_flags(flags: Sequence[str], command: Command) -> Values:
    """Return the values of `--name value`, `--name=value` and `-n value` flags; lists gather.

    Raises StandinError for a flag that the command does not have.
    """
    values: Values = {}
    rest = list(flags)
    while rest:
        flag, equals, text = rest.pop(0).partition("=")
        option = OPTIONS.get(flag.removeprefix("--")) if flag.startswith("--") else SHORT.get(flag)
        if option is None or command not in option.commands:
            raise StandinError(f"flag provided but not defined by the stand-in's k3s {command}: {flag}")
        if option.kind == "switch":
            if text not in {"", "true", "false"}:
                raise StandinError(f"{flag} is true or false, not {text!r}")
            values[option.name] = text != "false"
            continue
        if not equals:
            if not rest:
                raise StandinError(f"flag needs a value: {flag}")
            text = rest.pop(0)
        if option.kind == "list":
            gathered = values.setdefault(option.name, [])
            assert isinstance(gathered, list)
            gathered.append(text)
        else:
            values[option.name] = text
    return values


def load(
    command: Command,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    main_file: Path = CONFIG_FILE,
    runtime: str = RUNTIME,
) -> Config:
    """Return the checked configuration, for programs whose pods `runtime` runs.

    Command line over files over environment. Raises StandinError with the reason.
    """
    values: Values = {
        option.name: environment[option.environment]
        for option in OPTIONS.values()
        if option.environment and command in option.commands and environment.get(option.environment)
    }
    # A token that is nearer to the command line wins over a token file that is farther, and the other way
    # round.
    for layer in (
        parse_flags(read_files(config_files(main_file), command), command),
        parse_flags(arguments, command),
    ):
        for one, other in (("token", "token-file"), ("agent-token", "agent-token-file")):
            if one in layer:
                values.pop(other, None)
            if other in layer:
                values.pop(one, None)
        values |= layer
    return check(command, values, runtime)


def check(command: Command, values: Values, runtime: str) -> Config:
    """Return the configuration that the values make.

    Raises StandinError when one is missing or does not parse.
    """

    def text(name: str, default: str = "") -> str:
        return str(values.get(name, default))

    def texts(name: str) -> tuple[str, ...]:
        value = values.get(name, [])
        return tuple(value) if isinstance(value, list) else ()

    wanted = "docker" if values.get("docker") is True else "containerd"
    if wanted != runtime:
        way_out = "put `docker: true` into config.yaml or give" if runtime == "docker" else "leave out"
        raise StandinError(f"this K3s stand-in drives {runtime} only: {way_out} --docker")
    server = text("server").rstrip("/")
    token = text("token") or read_secret(text("token-file"))
    if command == "agent":
        check_join(server, token)
    elif server:
        raise StandinError(
            "this K3s stand-in knows one server only; LAB_K3S names K3s itself, which has several"
        )
    for name in ("kubelet-arg", "kube-apiserver-arg", "kube-scheduler-arg"):
        for argument in texts(name):
            if "=" not in argument:
                raise StandinError(f"{name} is written name=value, not {argument!r}")
    mode = text("write-kubeconfig-mode", "600")
    try:
        kubeconfig_mode = int(mode, 8)
    except ValueError as error:
        raise StandinError(f"write-kubeconfig-mode is an octal file mode as 0644, not {mode!r}") from error
    return Config(
        command=command,
        runtime=runtime,
        data_dir=Path(text("data-dir", "/var/lib/rancher/k3s")),
        node_name=text("node-name", socket.gethostname()).lower(),
        node_ip=text("node-ip"),
        node_labels=parse_labels(texts("node-label")),
        node_taints=texts("node-taint"),
        kubelet_args=texts("kubelet-arg"),
        pause_image=text("pause-image", "k8s.gcr.io/pause:3.2"),
        token=token,
        server=server,
        agent_token=text("agent-token") or read_secret(text("agent-token-file")),
        apiserver_args=texts("kube-apiserver-arg"),
        scheduler_args=texts("kube-scheduler-arg"),
        tls_sans=tuple(san for item in texts("tls-san") for san in item.split(",") if san),
        kubeconfig_mode=kubeconfig_mode,
    )


def check_join(server: str, token: str) -> None:
    """Raise StandinError when a node does not know where to join, or with what."""
    if not server:
        raise StandinError("--server is required: the URL of the server to join, https://<address>:6443")
    if not server.startswith("https://"):
        raise StandinError(f"--server must be an https:// URL, not {server!r}")
    if not token:
        raise StandinError("--token is required: the server has it in /var/lib/rancher/k3s/server/node-token")


def parse_labels(labels: Iterable[str]) -> dict[str, str]:
    """Return `key=value` texts as a mapping. Raises StandinError for one that is written otherwise."""
    parsed = {}
    for label in labels:
        key, equals, value = label.partition("=")
        if not equals or not key:
            raise StandinError(f"node-label is written key=value, not {label!r}")
        parsed[key] = value
    return parsed


def read_secret(path: str) -> str:
    """Return the stripped content of a token file, nothing when no file is named.

    Raises StandinError, naming the file.
    """
    if not path:
        return ""
    try:
        secret = Path(path).read_text().strip()
    except OSError as error:
        raise StandinError(f"cannot read the token file {path}: {error.strerror}") from error
    if not secret:
        raise StandinError(f"the token file {path} is empty")
    return secret

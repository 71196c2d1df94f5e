# SPDX-License-Identifier: Apache-2.0
"""The settings that K3s will read on a board: those of its owner and those of the role, in K3s' order.

Pure functions behind the k3s role. K3s reads config.yaml, then the files of config.yaml.d by name. A later
file replaces a setting, or adds to it where the key ends in a plus (its pkg/configfilearg/parser.go).
"""

from __future__ import annotations

import re
from contextlib import suppress
from io import StringIO
from typing import Any

import yaml

# Name -> its values, each with its source; the role's own values have none.
Options = dict[str, list[list[str]]]

DIRECTORY = "/etc/rancher/k3s"
FIRST, OWN, MIGRATED = "config.yaml", "config.yaml.d/50-jetson-k3s.yaml", "config.yaml.d/40-migrated.yaml"
# Short names of options (pkg/cli/cmds); K3s takes them as flags and as keys.
SHORT = {
    "c": "config", "d": "data-dir", "i": "node-ip", "l": "log", "o": "write-kubeconfig", "s": "server",
    "t": "token",
}  # fmt: skip
# Flags that the role says itself, and tokens, which belong into their files.
NOT_MIGRATED = frozenset(
    {"docker", "node-name", "server", "token", "token-file", "agent-token", "agent-token-file", "pause-image"}
)
# Variables of options that the roles judge. A flag and a setting in a file win over them.
ENVIRONMENT = {
    "K3S_AGENT_TOKEN": "agent-token",
    "K3S_AGENT_TOKEN_FILE": "agent-token-file",
    "K3S_CLUSTER_RESET": "cluster-reset",
    "K3S_CONFIG_FILE": "config",
    "K3S_DATA_DIR": "data-dir",
    "K3S_DATASTORE_ENDPOINT": "datastore-endpoint",
    "K3S_NODE_NAME": "node-name",
    "K3S_URL": "server",
}
# What preflight judges by. Others may have secrets.
SETTINGS = (
    "cluster-cidr",
    "cluster-domain",
    "data-dir",
    "disable-network-policy",
    "flannel-backend",
    "flannel-iface",
    "https-listen-port",
    "node-external-ip",
    "node-ip",
    "node-name",
    "service-cidr",
)
KUBELET_ARGUMENTS = ("cgroup-driver", "fail-cgroupv1", "fail-swap-on")
FEATURE_GATES = ("kube-apiserver", "kube-scheduler", "kubelet")

HIDDEN = "(hidden)"  # what role redact puts in place of a secret
# A setting at the beginning of a line, up to the next one.
BLOCK = re.compile(r"""(?m)^(?=["']?\w[\w-]*\+?["']?[ \t]*:)""")


LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class UnreadError(ValueError):
    """K3s cannot read the file; the text says why, without the file's content."""


def parse(text: str) -> dict[Any, Any]:
    """The settings in a file. UnreadError where K3s cannot read it.

    A secret may have been hidden together with a bracket. Then only its own setting is lost.
    """
    try:
        return parse_yaml(text)
    except UnreadError:
        if HIDDEN not in text:
            raise
    settings: dict[Any, Any] = {}
    for block in BLOCK.split(text):
        with suppress(UnreadError):
            settings |= parse_yaml(block)
    return settings


def parse_yaml(text: str) -> dict[Any, Any]:
    """Keys and values in a text; UnreadError where it has others."""
    try:
        # A stream, because libyaml takes no subclass of str, as unsafe texts are up to ansible-core 2.18.
        parsed = yaml.load(StringIO(text), Loader=LOADER)  # noqa: S506 - a safe one
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UnreadError(f"line {line}: {error.problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UnreadError("no YAML") from error
    if not isinstance(parsed or {}, dict):
        raise UnreadError("not keys with values")
    return parsed or {}


def texts(value: Any) -> list[str]:
    """The values of a setting as K3s hands them to its options."""
    values = value if isinstance(value, list) else [value]
    return [
        str(one).lower() if isinstance(one, bool) else "" if one is None else str(one)
        for one in values
        if not isinstance(one, list | dict)
    ]


def add(options: Options, settings: dict[Any, Any], source: str) -> None:
    """Read one file after those before it."""
    for given, value in settings.items():
        key = str(given).removesuffix("+")
        key = SHORT.get(key, key)
        values = [[text, source] for text in texts(value)]
        options[key] = [*options.get(key, []), *values] if str(given).endswith("+") else values


def reading(
    k3s: dict[str, Any], role: str, inventory: dict[str, Any], ours: dict[str, Any], migrated: dict[str, Any]
) -> dict[str, Any]:
    """All settings as `options`, the kubelet's arguments as `kubelet`, files without settings as `unread`.

    Of `kubelet` each is [name, value, source], of `unread` {path, error}.
    `k3s` are the board's facts, `role` is 'server' or 'agent'. `inventory` are the settings of its variable,
    `ours` those with what the role adds, `migrated` the flags that the role takes over from a unit.
    """
    unit = {"server": "k3s", "agent": "k3s-agent"}[role]
    options: Options = {}
    unread = []
    for name, value in k3s.get("environment", {}).get(unit, {}).items():
        if name in ENVIRONMENT:
            add(options, {ENVIRONMENT[name]: value}, f"{name} in the environment of {unit}.service")
    files = k3s.get("files", {}) | {OWN: ""} | ({MIGRATED: ""} if migrated else {})
    for name in sorted(files, key=lambda name: (name != FIRST, name)):
        path = f"{DIRECTORY}/{name}"
        if name == OWN:
            theirs = {key.removesuffix("+") for key in inventory}
            for key, value in ours.items():
                add(options, {key: value}, f"k3s_{role}_config" if key.removesuffix("+") in theirs else "")
        elif name == MIGRATED and migrated:
            add(options, migrated, path)
        else:
            try:
                add(options, parse(files[name]), path)
            except ValueError as error:
                unread.append({"path": path, "error": str(error)})
    return {"options": options, "kubelet": arguments(options, "kubelet"), "unread": unread}


def arguments(options: Options, component: str) -> list[list[str]]:
    """Arguments of a component as [name, value, source]. K3s takes `--name` and `name+=value`, too."""
    found = []
    for text, source in options.get(f"{component}-arg", []):
        name, _, value = text.removeprefix("--").partition("=")
        found.append([name.rstrip("+-"), value, source])
    return found


def judged(options: Options) -> dict[str, Any]:
    """The facts of the compatibility matrix: settings, arguments of the kubelet, features that are on."""
    given = {component: arguments(options, component) for component in FEATURE_GATES}
    gates = {
        component: dict(
            gate.strip().split("=", 1)
            for name, value, _ in given[component]
            if name == "feature-gates"
            for gate in value.split(",")
            if "=" in gate
        )
        for component in FEATURE_GATES
    }
    kubelet = {name: value for name, value, _ in given["kubelet"]}
    return {
        "settings": {name: ",".join(text for text, _ in options.get(name, [])) or None for name in SETTINGS},
        # Its value is a secret.
        "external_datastore": any(text for text, _ in options.get("datastore-endpoint", [])),
        # Its value is one, too. The role's own file has no source.
        "own_agent_token": any(
            source for name in ("agent-token", "agent-token-file") for _, source in options.get(name, [])
        ),
        "kubelet_arguments": {name: kubelet.get(name) for name in KUBELET_ARGUMENTS},
        "feature_gates": {
            part: sorted(name for name, state in on.items() if state.lower() == "true")
            for part, on in gates.items()
        },
    }


def flags(command: str | None) -> dict[str, Any]:
    """Flags of `k3s server ...` or `k3s agent ...` as keys of a configuration file.

    A flag that is followed by another one, or by nothing, is a switch; one that is given twice makes a list.
    """
    found: dict[str, Any] = {}
    words = (command or "").split()[2:]
    while words:
        word, equals, value = words.pop(0).partition("=")
        key = SHORT.get(word.lstrip("-"), word.lstrip("-"))
        text: Any = value
        if not equals:
            text = words.pop(0) if words and not words[0].startswith("-") else True
        if key in found:
            before = found[key] if isinstance(found[key], list) else [found[key]]
            text = [*before, text]
        found[key] = text
    return found


def migrated(command: str | None) -> dict[str, Any]:
    """The flags of an installation by the stock script that go on as configuration."""
    return {key: value for key, value in flags(command).items() if key not in NOT_MIGRATED}


def foreign_runtime(k3s: dict[str, Any], role: str) -> str:
    """The container runtime of a K3s that the role has not configured yet; empty where there is none."""
    if not k3s[role]["installed"] or OWN in k3s.get("files", {}):
        return ""
    switched = [text for text, _ in reading(k3s, role, {}, {}, {})["options"].get("docker", [])]
    flag = flags(k3s[role]["command"]).get("docker")
    return "docker" if "true" in switched or flag in (True, "true") else "containerd"


FILTERS = {"k3s_foreign_runtime": foreign_runtime, "k3s_migrated": migrated}

# SPDX-License-Identifier: Apache-2.0
"""The files that role k3s writes on a board, and apart from them the texts that are secret."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypedDict

from ansible.plugins.filter.core import to_nice_yaml
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    k3s_configuration,
    k3s_options,
    k3s_reading,
    k3s_registries,
    k3s_unit,
    proxy,
)

CONFIG_HEADER = (
    "# Written by Ansible (role k3s). Own settings belong into ../config.yaml or into another file here.\n"
)
# Its beginning is how jetson_facts knows the role's choice from the inventory's.
ADDRESS_HEADER = (
    "# Chosen by Ansible: node-ip and flannel-iface, by which this board reaches its server. "
    "Own ones in the inventory take their place.\n"
)
# Its first line is how jetson_facts and k3s_reset know it again.
REGISTRIES_HEADER = "# Written by Ansible (role k3s): k3s_registries of the inventory.\n"
PROXY_HEADER = (
    "# Written by Ansible (role k3s): jetson_k3s_proxy of the inventory. "
    "Other variables belong into another environment file of the unit.\n"
)
MIGRATED_HEADER = (
    "# Written once by Ansible (role k3s): the flags with which the stock script had installed K3s. "
    "They are yours now.\n"
)


class Paths(TypedDict):
    """Where the files are on a board."""

    config: str
    migrated: str
    environment: str
    registries: str
    credentials: str
    """Of the kubelet, with Docker."""
    unit: str
    k3s: str
    kubectl: str


class Settings(TypedDict):
    """What the inventory says of files beside K3s' own settings."""

    paths: Paths
    binary: str
    """Path of K3s with its version."""
    registries: Any
    """k3s_registries."""
    proxy: Any
    """jetson_k3s_proxy."""
    no_proxy: list[str]


class File(TypedDict, total=False):
    """An entry for module file_set."""

    path: str
    content: str
    secret: bool
    mode: str
    link: str
    absent: bool


class Entry(NamedTuple):
    """A file, and its text if that is secret."""

    file: File
    secret: str = ""


def text(path: str, content: str, secret: bool) -> Entry:
    """A text for root alone."""
    if secret:
        return Entry({"path": path, "secret": True, "mode": "0600"}, content)
    return Entry({"path": path, "content": content, "mode": "0600"})


def config(jetson: Mapping[str, Any], bundle: Mapping[str, Any], settings: k3s_configuration.Settings) -> str:
    """The file with the settings of the inventory and the role."""
    inventory = settings["config"]
    address = k3s_configuration.node_address(jetson, inventory, settings["role"])
    ours = k3s_configuration.configuration(bundle, settings, jetson["memory_bytes"]) | address
    header = CONFIG_HEADER + (ADDRESS_HEADER if address else "")
    return header + str(to_nice_yaml(k3s_configuration.merged(inventory, ours)))


def credentials(k3s: Mapping[str, Any], runtime: str, settings: Settings) -> Iterator[Entry]:
    """Credentials of registries: containerd has them from K3s, Docker from the kubelet.

    Preflight has seen that nobody else has written there.
    """
    given, paths = settings["registries"], settings["paths"]
    if given and runtime == "containerd":
        yield text(paths["registries"], REGISTRIES_HEADER + str(to_nice_yaml(given)), secret=True)
    elif k3s["registries"] == "role":
        yield Entry({"path": paths["registries"], "absent": True})
    of_kubelet = k3s_registries.docker_credentials(given) if runtime == "docker" else ""
    if of_kubelet:
        yield text(paths["credentials"], of_kubelet, secret=True)
    elif k3s["credentials"] == "role":
        yield Entry({"path": paths["credentials"], "absent": True})


def environment(settings: Settings) -> Entry:
    """The proxy of the inventory, in an environment file of the unit. Preflight has checked it."""
    path, given = settings["paths"]["environment"], settings["proxy"]
    if not proxy.is_given(given):
        return Entry({"path": path, "absent": True})
    content = proxy.environment(given, settings["no_proxy"], PROXY_HEADER)
    return text(path, content, proxy.has_password(given))


def entries(
    jetson: Mapping[str, Any],
    bundle: Mapping[str, Any],
    of_k3s: k3s_configuration.Settings,
    settings: Settings,
) -> Iterator[Entry]:
    """All files of a board."""
    paths, k3s = settings["paths"], jetson["k3s"]
    yield text(paths["config"], config(jetson, bundle, of_k3s), k3s_options.has_secrets(of_k3s["config"]))
    proxied = paths["environment"] if proxy.is_given(settings["proxy"]) else ""
    unit = k3s_unit.unit(of_k3s["role"], of_k3s["container_runtime"], proxied)
    yield Entry({"path": paths["unit"], "content": unit, "mode": "0644"})
    yield Entry({"path": paths["k3s"], "link": settings["binary"].rpartition("/")[2]})
    yield environment(settings)
    yield from credentials(k3s, of_k3s["container_runtime"], settings)
    # Another kubectl in the PATH stays the one that users have.
    if k3s["kubectl"] in (None, paths["kubectl"]):
        yield Entry({"path": paths["kubectl"], "link": "k3s"})


def files(
    jetson: Mapping[str, Any],
    bundle: Mapping[str, Any],
    of_k3s: k3s_configuration.Settings,
    settings: Settings,
) -> list[File]:
    """The files of a board. Of those with a secret it has no text, so it may be shown.

    `jetson` are the board's facts, `bundle` what the module bundle_info has found.
    """
    return [entry.file for entry in entries(jetson, bundle, of_k3s, settings)]


def secrets(
    jetson: Mapping[str, Any],
    bundle: Mapping[str, Any],
    of_k3s: k3s_configuration.Settings,
    settings: Settings,
) -> dict[str, str]:
    """The texts that must not be shown, by path.

    Ansible evaluates a setting when it is read. Most boards have no secret, and the unit never is one.
    """
    found = [environment(settings), *credentials(jetson["k3s"], of_k3s["container_runtime"], settings)]
    if k3s_options.has_secrets(of_k3s["config"]):
        found.append(text(settings["paths"]["config"], config(jetson, bundle, of_k3s), secret=True))
    return {entry.file["path"]: entry.secret for entry in found if entry.file.get("secret")}


def secret_files(texts: Mapping[str, str]) -> list[File]:
    """Entries for texts by path. The texts themselves are not in them."""
    return [text(path, content, secret=True).file for path, content in texts.items()]


def unit_command(shown: str) -> str | None:
    """The command in `systemctl show --property=ExecStart`, None where the unit has none."""
    match = re.search(r"argv\[\]=(.*?) ;", shown)
    return match.group(1) if match else None


def migrated_file(shown: str, path: str) -> list[File]:
    """The file with the flags of the stock script's unit, which may be secrets. `shown` is by systemctl."""
    kept = k3s_reading.migrated(unit_command(shown))
    return [{"path": path, "content": MIGRATED_HEADER + str(to_nice_yaml(kept)), "mode": "0600"}]


FILTERS = {
    "k3s_files": files,
    "k3s_migrated_file": migrated_file,
    "k3s_secret_files": secret_files,
    "k3s_secrets": secrets,
}

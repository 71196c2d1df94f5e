# SPDX-License-Identifier: Apache-2.0
"""Why role k3s has work on a board. Pure functions; a board without a reason is in no batch of site.yml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypedDict

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import nvidia_docker


class Settings(TypedDict):
    """What this run says, and what its tasks have found. A result is {} before its task has run."""

    role: str
    board: str
    """Its name in the inventory."""
    node: str
    labels: Mapping[str, Any]
    """k3s_node_labels."""
    renames: bool
    migrates: bool
    tokens_given: bool
    """Whether the inventory has a token. Then each run asks the server about it."""
    container_runtime: str
    binary: str
    """Path of the K3s that the board gets."""
    sha256: str
    """Of that, '' if only the release's own checksums say it."""
    archive: str
    """Name of the images' archive in the bundle."""
    renewals: list[str]
    """Why certificates need a restart."""
    docker_waits: bool
    """Whether a restart of Docker is pending."""
    nodes: list[Mapping[str, Any]]
    """Those with the name of the board's node, as the servers have it (module k3s_nodes)."""


def node_reasons(node: Mapping[str, Any], labels: Mapping[str, Any]) -> Iterator[str]:
    """What module k3s_node would do with a node."""
    if not node["ready"]:
        yield "the node is not Ready"
    if not node["recorded"]:
        yield "the cluster has no record of the board"
    if node["cordoned"]:
        yield "an interrupted run has left the node cordoned"
    for key, value in labels.items():
        if node["labels"].get(key) != (None if value is None else str(value)):
            yield f"the label {key} differs"


def reasons(jetson: Mapping[str, Any], bundle: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    """Why the role has work, by facts and settings. `bundle` is what module bundle_info has found."""
    k3s = jetson["k3s"]
    unit = k3s[settings["role"]]
    if not (unit["active"] and unit["enabled"]):
        yield "K3s does not run, or does not start at boot"
    if boolean(settings["renames"]) and jetson["hostname"] != settings["node"]:
        yield "the hostname differs"
    if boolean(settings["migrates"]):
        yield "jetson_k3s_confirm has migrate"
    if boolean(settings["tokens_given"]):
        yield "the inventory has a token"
    if boolean(settings["docker_waits"]):
        yield "a restart of Docker is pending"
    binary = k3s["binary"] or {"path": "", "sha256": ""}
    if binary["path"] != settings["binary"] or settings["sha256"] not in ("", binary["sha256"]):
        yield "the active K3s is another one"
    if bundle["indexed"] and not has_images(jetson, bundle, settings):
        yield "images of K3s may be missing"
    yield from settings["renewals"]
    own = [node for node in settings["nodes"] if node["board"] == settings["board"]]
    if not own:
        yield "the cluster has no such node"
    for node in own:
        yield from node_reasons(node, settings["labels"])


def has_images(jetson: Mapping[str, Any], bundle: Mapping[str, Any], settings: Settings) -> bool:
    """Whether the images are certainly there. Those of containerd are no facts."""
    bundled, docker = bundle["files"][settings["archive"]], jetson["docker"]
    if settings["container_runtime"] != "docker" or nvidia_docker.lacking_images(bundled, docker):
        return False
    return nvidia_docker.keeps_images(bundled, docker, settings["archive"])


def work(jetson: Mapping[str, Any], bundle: Mapping[str, Any], settings: Settings) -> list[str]:
    """Why the role has work on a board, empty where its files alone could be a reason."""
    return list(reasons(jetson, bundle, settings))


def file_work(tokens: Mapping[str, str], compared: Mapping[str, Any], first: bool) -> list[str]:
    """Why the role has work by the files of a board.

    `tokens` are those of token_files(), which the first server needs none of. `compared` is the result of
    module file_set in check mode, {} without an answer.
    """
    if not tokens and not boolean(first):
        return ["the tokens of the cluster are not known"]
    found = [f"{path} differs" for path in compared.get("paths", ["a file"])]
    return found or (["a restart is pending"] if compared.get("restart_due", True) else [])


FILTERS = {"k3s_file_work": file_work, "k3s_work": work}

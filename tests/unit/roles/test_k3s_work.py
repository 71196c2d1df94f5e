# SPDX-License-Identifier: Apache-2.0
"""Why role k3s has work on a board. A board without a reason is in no batch, so every change is a reason."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import k3s_tokens, k3s_work

from tests.unit.roles.places import Data

ARCHIVE, IMAGE, OTHER = "k3s-airgap-images-arm64.tar.gz", "sha256:a", "sha256:b"
BINARY = "/usr/local/bin/k3s-v1.34.1+k3s1"
BUNDLE: Data = {
    "indexed": True,
    "files": {ARCHIVE: {"images": {"pause:1": IMAGE}, "contents": {"pause:1": "content:a"}}},
}
RUNS = {"active": True, "enabled": True}
JETSON: Data = {
    "hostname": "jetson-2",
    "docker": {"images": {"pause:1": IMAGE}, "contents": {}, "kept": {ARCHIVE: [IMAGE]}},
    "k3s": {"agent": RUNS, "binary": {"path": BINARY, "sha256": "5a"}},
}
NODE: Data = {"name": "jetson-2", "board": "b2", "ready": True, "recorded": True, "cordoned": False}
SETTINGS: Any = {
    "role": "agent",
    "board": "b2",
    "node": "jetson-2",
    "labels": {"rack": 7, "old": None},
    "renames": False,
    "migrates": False,
    "tokens_given": False,
    "container_runtime": "docker",
    "binary": BINARY,
    "sha256": "5a",
    "archive": ARCHIVE,
    "renewals": [],
    "docker_waits": False,
    "nodes": [{**NODE, "labels": {"rack": "7"}}],
}


def changed(data: Data, path: str, value: Any) -> Data:
    """A copy with another value at a path such as `k3s agent active`."""
    *way, last = path.split()
    copied = place = copy.deepcopy(data)
    for key in way:
        place = place[key]
    place[last] = value
    return copied


def test_board_as_it_should_be_has_no_work() -> None:
    assert k3s_work.work(JETSON, BUNDLE, SETTINGS) == []
    download = {"indexed": False, "files": {}}
    assert k3s_work.work(JETSON, download, SETTINGS | {"sha256": ""}) == []


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("k3s agent active", False, "K3s does not run"),
        ("k3s agent enabled", False, "does not start at boot"),
        ("k3s binary", None, "the active K3s is another one"),
        ("k3s binary path", "/usr/local/bin/k3s-v1.33.1+k3s1", "the active K3s is another one"),
        ("k3s binary sha256", "00", "the active K3s is another one"),
        ("docker images", {}, "images of K3s may be missing"),
        ("docker images", {"pause:1": OTHER}, "images of K3s may be missing"),
        ("docker kept", {}, "images of K3s may be missing"),
        ("docker kept", {ARCHIVE: [IMAGE, OTHER]}, "images of K3s may be missing"),
    ],
)
def test_other_board_has_work(path: str, value: object, reason: str) -> None:
    (found,) = k3s_work.work(changed(JETSON, path, value), BUNDLE, SETTINGS)
    assert reason in found


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"renames": True, "node": "other"}, "the hostname differs"),
        ({"migrates": True}, "jetson_k3s_confirm has migrate"),
        ({"tokens_given": True}, "the inventory has a token"),
        ({"docker_waits": True}, "a restart of Docker is pending"),
        ({"container_runtime": "containerd"}, "images of K3s may be missing"),
        ({"renewals": ["A certificate expires."]}, "A certificate expires."),
        ({"nodes": []}, "the cluster has no such node"),
        ({"board": "b3"}, "the cluster has no such node"),
        ({"labels": {"rack": 8}}, "the label rack differs"),
        ({"labels": {"rack": None}}, "the label rack differs"),
    ],
)
def test_other_settings_are_work(given: Data, reason: str) -> None:
    assert reason in k3s_work.work(JETSON, BUNDLE, SETTINGS | given)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"ready": False}, "the node is not Ready"),
        ({"recorded": False}, "the cluster has no record of the board"),
        ({"cordoned": True}, "an interrupted run has left the node cordoned"),
    ],
)
def test_other_node_is_work(given: Data, reason: str) -> None:
    node = {**NODE, "labels": {"rack": "7"}, **given}
    assert k3s_work.work(JETSON, BUNDLE, SETTINGS | {"nodes": [node]}) == [reason]


SAME = {"paths": [], "restart_due": False}


@pytest.mark.parametrize(
    ("tokens", "compared", "first", "reasons"),
    [
        ({"/t": "x"}, SAME, False, []),
        ({}, SAME, True, []),
        ({}, SAME, False, ["the tokens of the cluster are not known"]),
        ({"/t": "x"}, {"paths": ["/t"], "restart_due": True}, False, ["/t differs"]),
        ({"/t": "x"}, {"paths": [], "restart_due": True}, False, ["a restart is pending"]),
        ({"/t": "x"}, {}, False, ["a file differs"]),
    ],
)
def test_other_file_is_work(tokens: Data, compared: Data, first: bool, reasons: list[str]) -> None:
    assert k3s_work.file_work(tokens, compared, first) == reasons


HASH = "K10" + "c" * 64
PATHS: k3s_tokens.Paths = {"token": "/t", "agent_token": "/a"}


def files(role: str, first: bool, agents: str, server: str = f"{HASH}::server:s") -> dict[str, str]:
    read = {"texts": {"ca": "CA", "token": server, "agent-token": agents}, "unread": []}
    return k3s_tokens.token_files(k3s_tokens.cluster(read), role, first, PATHS)


def test_token_files_are_those_that_the_role_writes() -> None:
    assert files("server", True, f"{HASH}::node:a") == {"/a": "a\n"}
    assert files("server", False, f"{HASH}::node:a") == {"/a": "a\n", "/t": f"{HASH}::server:s\n"}
    assert files("agent", False, f"{HASH}::node:a") == {"/t": f"{HASH}::node:a\n"}
    # Without a token of their own agents have that of the servers.
    assert files("agent", False, f"{HASH}::server:s") == {"/t": f"{HASH}::node:s\n"}
    assert files("server", True, "") == {}
    assert files("agent", False, "", server="") == {}

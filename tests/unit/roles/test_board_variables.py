# SPDX-License-Identifier: Apache-2.0
"""The variables and facts of several boards, and the files of a bundle: what roles read of them."""

from __future__ import annotations

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import board_variables, bundle, k3s_upgrade

from tests.unit.roles.places import Data

HOSTVARS: dict[str, Data] = {
    "a": {"ansible_facts": {"jetson": {"arch": "aarch64"}}, "k3s_version": "v1"},
    "b": {"ansible_facts": {}, "k3s_version": "v2"},
    "c": {},
}


def test_boards_without_facts_are_left_out() -> None:
    assert board_variables.facts_of("abc", HOSTVARS) == {"a": {"arch": "aarch64"}}
    assert board_variables.facts_of("bc", HOSTVARS) == {}


def test_hosts_without_the_variable_are_left_out() -> None:
    assert board_variables.values_of("cba", HOSTVARS, "k3s_version") == {"b": "v2", "a": "v1"}


def test_another_value_than_this_computers_is_found() -> None:
    assert bundle.elsewhere("k3s_version", "abc", HOSTVARS, "v1") == ["b"]
    assert bundle.elsewhere("k3s_version", "abc", HOSTVARS, "") == ["a", "b"]
    assert bundle.elsewhere("k3s_release_url", "abc", HOSTVARS, "") == []


FILES: Data = {
    "k3s-arm64": {"error": None, "sha256": "00"},
    "a.whl": {"error": "cut off", "sha256": "11"},
}


def test_damaged_files_are_named() -> None:
    assert bundle.damaged(["k3s-arm64", "a.whl", "gone.whl"], FILES) == ["a.whl"]
    assert bundle.errors({"errors": ["no SHA256SUMS"], "files": FILES}) == ["no SHA256SUMS", "a.whl: cut off"]
    assert bundle.sums(["k3s-arm64"], FILES) == {"k3s-arm64": "00"}


def test_downloads_are_pinned_by_their_name_in_the_release() -> None:
    downloads = [{"from": "k3s", "to": "k3s-amd64"}, {"from": "images", "to": "images"}]
    assert bundle.downloaded(downloads, "made") == {"k3s": "made/k3s-amd64", "images": "made/images"}
    assert bundle.unpinned(downloads, {"images": "00"}) == ["k3s"]
    assert bundle.new_pins(["k3s"], {"k3s": "11", "images": "00"}) == ["k3s 11"]


@pytest.mark.parametrize(
    ("host", "answering", "begins", "expected"),
    [
        ("a", ["a", "b"], {"b": True}, True),
        ("b", ["a", "b"], {"b": True}, False),
        ("b", ["b"], {"b": True}, True),
        ("a", ["a", "b"], {"a": False, "b": False}, False),
        ("a", ["a"], {"b": True}, False),
    ],
)
def test_the_first_server_that_answers_makes_the_backup(
    host: str, answering: list[str], begins: dict[str, bool], expected: bool
) -> None:
    hostvars: dict[str, Data] = {
        name: {"k3s_upgrade_begins": begins[name]} if name in begins else {} for name in "ab"
    }
    assert k3s_upgrade.backs_up(host, ["a", "b"], answering, hostvars) is expected


def test_binaries_of_this_upgrade_are_kept() -> None:
    files = [{"path": f"/usr/local/bin/k3s-v1.{minor}.1+k3s1"} for minor in (32, 33, 34)]
    assert k3s_upgrade.old_binaries(files, "/usr/local/bin/k3s", ["v1.33.1+k3s1", "v1.34.1+k3s1"]) == [
        "/usr/local/bin/k3s-v1.32.1+k3s1"
    ]

# SPDX-License-Identifier: Apache-2.0
"""The files of a bundle: what is wrong with them, and their hashes. `files` is that of module bundle_info."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible.utils.unsafe_proxy import wrap_var
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import bundle_content
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import board_variables, k3s_supply

Files = Mapping[str, Mapping[str, Any]]

ARGUMENTS = bundle_content.ARGUMENTS


def content(given: Mapping[str, Any]) -> dict[str, Any]:
    """What module bundle_info answers to these arguments. What a bundle says is no template."""
    said: dict[str, Any] = wrap_var(bundle_content.found(dict(given)))
    return said


def damaged(names: Iterable[str], files: Files) -> list[str]:
    """Those of the files that are there and do not match SHA256SUMS."""
    return [name for name in names if files.get(name, {}).get("error")]


def errors(bundle: Mapping[str, Any]) -> list[str]:
    """Why a bundle is not complete."""
    files = bundle["files"]
    return [*bundle["errors"], *(f"{name}: {files[name]['error']}" for name in damaged(files, files))]


def sums(names: Iterable[str], files: Files) -> dict[str, str]:
    """{name: SHA-256} of these files."""
    return {name: files[name]["sha256"] for name in names}


def downloads(architectures: Iterable[str], release: str) -> list[dict[str, str]]:
    """Files of K3s' release at this address: their names there and in the bundle, and their checksums.

    An architecture may be given twice.
    """
    return [
        {"from": source, "to": target, "checksums": f"{release}/sha256sum-{name}.txt"}
        for name in dict.fromkeys(architectures)
        for source, target in (
            (k3s_supply.RELEASED[name], f"k3s-{name}"),
            (f"k3s-airgap-images-{name}.tar.gz", f"k3s-airgap-images-{name}.tar.gz"),
        )
    ]


def unpinned(downloads: Iterable[Mapping[str, str]], pins: Mapping[str, str]) -> list[str]:
    """Files of a release of which no SHA-256 is known."""
    return sorted({one["from"] for one in downloads} - pins.keys())


def downloaded(downloads: Iterable[Mapping[str, str]], directory: str) -> dict[str, str]:
    """{name in the release: path on this computer}."""
    return {one["from"]: f"{directory}/{one['to']}" for one in downloads}


def new_pins(added: Iterable[str], pins: Mapping[str, str]) -> list[str]:
    """Files that were pinned in this run, each with its SHA-256."""
    return [f"{name} {pins[name]}" for name in added]


def elsewhere(name: str, boards: Iterable[str], hostvars: board_variables.Hostvars, here: Any) -> list[str]:
    """Boards with another value of a variable than this computer, whose value alone is used."""
    values = board_variables.values_of(boards, hostvars, name)
    return [board for board, value in values.items() if value != here]


FILTERS = {
    "bundle_damaged": damaged,
    "bundle_downloaded": downloaded,
    "bundle_downloads": downloads,
    "bundle_elsewhere": elsewhere,
    "bundle_errors": errors,
    "bundle_new_pins": new_pins,
    "bundle_sums": sums,
    "bundle_unpinned": unpinned,
}

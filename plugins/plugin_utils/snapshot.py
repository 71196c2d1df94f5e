# SPDX-License-Identifier: Apache-2.0
"""What role snapshot adds to the files of a board: the names to replace, the run, and the last report."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ansible.utils.unsafe_proxy import wrap_var
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.board_variables import Facts, Hostvars
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.controller_paths import HERE, ROOT_DEPTH

ADDRESSES = ("ansible_host", "jetson_k3s_address")
# What preflight reads of the answers of module k3s_nodes.
ANSWER = ("installed", "item", "nodes", "ranges", "version")
KEY_BYTES = 16
MOST_REPORT = 4 * 1024 * 1024


def names(boards: Iterable[str], hostvars: Hostvars) -> list[str]:
    """The names in the inventory. An address is one, too, where it is the name of a host."""
    found = set()
    for board in boards:
        variables = hostvars[board]
        found |= {board, *(str(variables.get(name) or "") for name in ADDRESSES)}
    return sorted(found - {"", "localhost"})


def run(results: Facts, settings: Facts, **facts: Any) -> Facts:
    """The board, its servers and their answers, and the settings. Without the token: no snapshot has one."""
    return {
        **facts,
        **{name: results[name] for name in ("docker_plan", "k3s_plan", "requests", "server")},
        "nodes": [{key: one[key] for key in ANSWER if key in one} for one in results["nodes"]],
        "settings": {**settings, "token": "", "token_given": False},
    }


def report(path: str) -> Any:
    """The last report of a board, or why there is none."""
    try:
        with Path(path).open("rb") as stream:
            content = stream.read(MOST_REPORT + 1)
        if len(content) > MOST_REPORT:
            return "the report is too large"
        return wrap_var(json.loads(content))
    except FileNotFoundError:
        return "there is no report: verify.yml has not run"
    except (OSError, ValueError) as error:
        return f"the report cannot be read: {error}"


def groups(servers: list[str], host: str) -> list[str]:
    """The groups of the board of a snapshot."""
    return ["k3s_cluster", "server" if host in servers else "agent"]


def tool(name: str, code: Path = HERE) -> dict[str, str]:
    """Name and version of this collection, in a checkout or installed."""
    root = code.parents[ROOT_DEPTH]
    with suppress(OSError):
        return {
            "name": name,
            "version": json.loads((root / "MANIFEST.json").read_text())["collection_info"]["version"],
        }
    found = re.search(r"^version: (\S+)$", (root / "galaxy.yml").read_text(), re.MULTILINE)
    return {"name": name, "version": found[1] if found else "unknown"}


def new_key(_: Any) -> str:
    """A new key for each use."""
    return secrets.token_hex(KEY_BYTES)


FILTERS = {
    "snapshot_groups": groups,
    "snapshot_key": new_key,
    "snapshot_names": names,
    "snapshot_report": report,
    "snapshot_run": run,
    "snapshot_tool": tool,
}

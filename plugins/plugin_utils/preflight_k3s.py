# SPDX-License-Identifier: Apache-2.0
"""K3s on the boards as it is and as it would become, and the files of the bundle for it.

Pure functions behind the preflight role. A finding has id, found, expected and fix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import board_release, plugin_image

Finding = dict[str, str]
Facts = dict[str, Any]


def answers_of(results: list[Facts], servers: list[str]) -> dict[str, Facts | None]:
    """{server: its answer, None if there was no request or no answer}."""
    return dict.fromkeys(servers) | {entry["item"]: entry for entry in results if "installed" in entry}


def findings_of_server(
    host: str,
    fleet: dict[str, Facts],
    server: str,
    answers: dict[str, Facts | None],
    begins: bool = False,
) -> list[Finding]:
    """Would this board, as the first server, begin a second cluster beside a running one?

    Its token would go to all the others, and take them out of theirs. `fleet` is {inventory name: facts},
    `answers` has all servers of the inventory, with None for a server without a request. With
    `begins` the owner says that the other servers have no cluster.
    """
    if host != server or fleet[host]["k3s"]["server"]["installed"]:
        return []
    members = {
        role: [name for name in fleet if name != host and fleet[name]["k3s"][role]["installed"]]
        for role in ("server", "agent")
    }
    members["server"] += [
        name for name, answer in answers.items() if name not in fleet and answer and answer["installed"]
    ]
    if members["server"]:
        other = members["server"][0]
        fix = (
            f"Put {other}, or another server that runs, first in the inventory's [server]. Let the cluster "
            f"forget this one (playbooks/forget.yml --limit {host}), and run this again: it joins."
        )
    else:
        fix = (
            "The cluster's data were on this server alone: playbooks/restore.yml brings them back from a "
            "backup. Or begin a new one: playbooks/reset.yml --limit agent "
            "-e jetson_k3s_confirm=without-server, then this again."
        )
    there = [f"{name} ({role})" for role, names in members.items() for name in names]
    if there:
        return [
            {
                "id": "server-new",
                "found": f"{host} would begin a cluster and has no K3s, while {', '.join(there)} run it "
                "already",
                "expected": "a first server that is in their cluster, or no K3s on the others",
                "fix": fix,
            }
        ]
    silent = ", ".join(name for name, answer in answers.items() if name not in fleet and answer is None)
    if begins or not silent:
        return []
    return [
        {
            "id": "server-unanswered",
            "found": f"{host} would begin a cluster and has no K3s, and {silent} did not answer",
            "expected": "an answer of each other server that it is in no cluster: there would be a second "
            "one",
            "fix": f"Start {silent} and run this again. If there is no cluster, or it is gone for good: the "
            "same command with -e jetson_k3s_confirm=new-cluster.",
        }
    ]


def asked(joined: str, fleet: dict[str, Facts], servers: list[str], hosts: list[str]) -> str:
    """The server for this run's kubectl: the one that boards join, or another that runs if that one is down.

    `fleet` is {inventory name: facts} of the boards that answer, `hosts` names all that the run is for.
    """
    if joined in fleet or joined not in hosts:
        return joined
    return next(
        (name for name in servers if name in fleet and fleet[name]["k3s"]["server"]["active"]), joined
    )


def numbers(version: str) -> tuple[int, ...]:
    """The leading ones of K3s' version: 'v1.33.5+k3s1' and 'v1.33.5-rc2+k3s1' both give (1, 33, 5)."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    if match is None:
        raise ValueError(f"not a version: {version!r}")
    return tuple(map(int, match.group(1).split(".")))


def findings_of_upgrade(facts: Facts, server: str | None, upgrades: bool = False) -> list[Finding]:
    """Would a node get another minor version of K3s, without all that an upgrade does?

    `server` is the version of the first server, None where it has none or does not say. An agent may follow
    it: that one was off when the others were upgraded. A run that `upgrades` has rules of its own.
    """
    installed, wanted = facts["k3s"]["version"], facts["bundle"].get("k3s_version")
    if upgrades or wanted is None:
        return []
    then, there = numbers(wanted)[:2], None if server is None else numbers(server)[:2]
    if installed is None:
        ahead = there is not None and there < then
    else:
        follows = facts["role"] == "agent" and there is not None and there >= then
        ahead = numbers(installed)[:2] < then and not follows
    if not ahead:
        return []
    where = f"{installed} on this board" if installed else f"{server} on its server"
    return [
        {
            "id": "k3s-upgrade",
            "found": f"K3s {where}, and {wanted} to be installed",
            "expected": "the minor version that the cluster has: site.yml neither drains a node nor goes "
            "back",
            "fix": "Run playbooks/upgrade.yml with this bundle first. Or let jetson_k3s_bundle in the "
            "inventory name the bundle that the cluster has. Without a bundle, set k3s_version to its "
            "version.",
        }
    ]


def findings_of_restore(facts: Facts) -> list[Finding]:
    """Was a restore interrupted on this server, which has no data now, or those of the backup?"""
    kept = facts["k3s"]["unfinished_restore"]
    if kept is None:
        return []
    return [
        {
            "id": "restore-unfinished",
            "found": "a restore was interrupted on this server, and K3s does not run. "
            + (f"Its data from before are in {kept}" if kept else "It had no data before"),
            "expected": "no unfinished restore: K3s would start without its data, or join a cluster of "
            "another time",
            "fix": "Run playbooks/restore.yml again with the same backup. It goes on, or brings the data of "
            "all servers back.",
        }
    ]


def findings_of_settings(plan: Facts) -> list[Finding]:
    """Would K3s read settings that make the board another node than the roles expect? `plan` is role k3s'."""
    findings = [
        {
            "id": "k3s-option",
            "found": f"{entry['name']} in {entry['source']}",
            "expected": f"no setting that changes {entry['changes']}: {entry['reason']}",
            "fix": f"Take {entry['name']} out of {entry['source']}.",
        }
        for entry in plan["refused"]
    ]
    return findings + [
        {
            "id": "k3s-unread",
            "found": f"{entry['path']} is not understood: {entry['error']}",
            "expected": "YAML with settings of K3s: K3s does not start with another file",
            "fix": f"Correct {entry['path']} on the board.",
        }
        for entry in plan["unread"]
    ]


def bundle_files(arch: str, source: str, image: str, listed: Iterable[str], plugin: bool) -> list[str]:
    """Names of the files that a host of this architecture (`uname -m`) takes from the bundle.

    `source` is where K3s comes from: with 'download' it is not in the bundle. Neither is the plugin's `image`
    if that names one of a registry. `listed` are the files of SHA256SUMS, of which images with NVIDIA's
    deviceQuery are the owner's own. A host that does not get the `plugin` needs no image of a GPU.
    """
    suffix = board_release.architecture(arch)
    k3s = [f"k3s-{suffix}", f"k3s-airgap-images-{suffix}.tar.gz"] if source == "bundle" else []
    if not plugin:
        return ["bundle.yml", *k3s]
    return [
        "bundle.yml",
        *k3s,
        *([] if image else [plugin_image.archive_name(arch)]),
        *(name for name in listed if name.startswith("device-query-") and name.endswith(f"-{suffix}.tar.gz")),
    ]


def findings_of_bundle(
    bundle: Facts, arch: str, source: str = "bundle", image: str = "", plugin: bool = True
) -> list[Finding]:
    """What is wrong with the files that this board would get."""
    if not bundle["indexed"]:
        return findings_without_bundle(bundle, arch, image) if plugin else []
    fix = f"Copy or build the bundle {bundle['path']} again; `sha256sum -c SHA256SUMS` inside it must pass."
    findings = [
        {
            "id": "bundle-unusable",
            "found": text,
            "expected": "a complete bundle",
            "fix": fix,
        }
        for text in bundle["errors"]
    ]
    if findings:
        return findings
    for name in bundle_files(arch, source, image, bundle["files"], plugin):
        problem = bundle["files"].get(name, {"error": "not listed in SHA256SUMS"})["error"]
        if problem is not None:
            findings.append(
                {
                    "id": "bundle-file",
                    "found": f"{name}: {problem}",
                    "expected": "every file as SHA256SUMS says",
                    "fix": fix,
                }
            )
    return findings


def findings_without_bundle(built: Facts, arch: str, image: str) -> list[Finding]:
    """What is wrong where K3s is downloaded. A plugin's image that is missing is built by site.yml."""
    name = plugin_image.archive_name(arch)
    problem = None if image else built["files"].get(name, {"error": None})["error"]
    if problem is None:
        return []
    return [
        {
            "id": "bundle-file",
            "found": f"{built['path']}/{name}: {problem}",
            "expected": "an image as `make image` writes it",
            "fix": "Remove this file. site.yml then builds the image again.",
        }
    ]

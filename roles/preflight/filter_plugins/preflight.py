# SPDX-License-Identifier: Apache-2.0
"""Rules and facts in, findings out: pure functions behind the preflight role.

A finding is a dict: id, level ('error', 'warning', or 'accepted' for an accepted warning), found,
expected, fix, url (its entry in docs/troubleshooting.md).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

Finding = dict[str, str]
Facts = dict[str, Any]

SEPARATOR = "."
# What a Kubernetes node name may look like (RFC 1123 subdomain, K3s lower-cases it first).
NODE_NAME = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
ARCHITECTURES = {"aarch64": "arm64", "x86_64": "amd64"}
GUIDE = "docs/troubleshooting.md"
# Shorter passwords can be guessed by whoever reaches the server's port; K3s' own have 32 characters.
TOKEN_LENGTH = 16
# Seconds. Certificates that K3s makes while a clock is wrong are as wrong for a year: a day is no mere drift.
# A node behind its server takes no certificate of a new cluster before its own clock has reached it, and the
# roles wait 300 s (k3s_timeout). Tokens of pods are taken up to 60 s before they begin (go-jose's leeway).
CLOCK_WRONG, CLOCK_TOO_FAR, CLOCK_DRIFT = 86400, 300, 60
# Bytes that an installation takes: images, the unpacked K3s with its data, the largest archive on its way.
INSTALLED = {
    "docker": {"docker": 800_000_000, "k3s": 400_000_000, "uploads": 300_000_000},
    "containerd": {"k3s": 1_200_000_000, "uploads": 300_000_000},
}
# Where the engine keeps its images (imagefs) and the kubelet its pods (nodefs). K3s has the kubelet evict
# pods where less than 5 % of either are free (pkg/daemons/agent: eviction-hard).
WATCHED = {"docker": ("docker", "kubelet"), "containerd": ("k3s", "kubelet")}
EVICTION = 0.05

# What needs more than one board's facts, with its level: code below finds it, not the matrix.
CODED = {
    "accepted-unknown": ("error", "a finding is accepted that does not exist"),
    "bundle-delta": ("error", "the bundle is the difference from another one, and not yet laid over that"),
    "bundle-file": ("error", "a file of the bundle is missing or not what SHA256SUMS says"),
    "bundle-unusable": ("error", "the bundle as a whole is missing or damaged"),
    "clock": ("error", "a clock is more than a day away from that of the controller"),
    "clock-server": ("error", "a clock is more than 5 minutes away from that of the K3s server"),
    "clock-server-drift": ("warning", "a clock is more than a minute away from that of the K3s server"),
    "disk-eviction": ("warning", "so little is free that the kubelet evicts pods"),
    "disk-full": ("error", "less is free than an installation takes"),
    "group-both": ("error", "a board is server and agent in the inventory"),
    "group-none": ("error", "a board is neither server nor agent in the inventory"),
    "hostname-duplicate": ("error", "two boards have one hostname"),
    "hostname-invalid": ("error", "a hostname cannot be a node's name"),
    "image-supply-containerd": ("error", "a board supplies images, and containerd runs the pods"),
    "image-supply-host": ("error", "the board that supplies images is none of the cluster"),
    "join-token": ("error", "the running server does not take the token"),
    "join-token-weak": ("warning", "a given token is short"),
    "k3s-foreign-unit": ("error", "K3s' unit carries flags"),
    "k3s-newer": ("error", "K3s is newer than the one that would be installed"),
    "k3s-other-role": ("error", "K3s runs in the other role"),
    "k3s-upgrade": ("error", "K3s would get another minor version, and nobody has asked for an upgrade"),
    "machine-id-duplicate": ("warning", "two boards have one machine-id"),
    "registries": ("error", "k3s_registries is not what K3s reads"),
    "registries-docker": ("error", "K3s' registries are given, and Docker runs the pods"),
    "registries-foreign": ("error", "K3s' registries are given, and the board has a file of its own"),
    "runtime-update": ("error", "NVIDIA's runtime is to be updated, and the bundle does not have it"),
    "server-down": ("error", "a board without K3s would join a server that does not answer"),
    "server-new": ("error", "the server has no K3s, and other boards are in a cluster already"),
}


def lookup(facts: Facts, path: str) -> Any:
    """Value at a dotted path, None where the path ends early."""
    value: Any = facts
    for key in path.split(SEPARATOR):
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def version_key(text: str) -> tuple[int, ...]:
    """Leading numbers of a version: 'v1.20.2+k3s1' and '1.20.2-ce' both give (1, 20, 2)."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", text)
    if match is None:
        raise ValueError(f"not a version: {text!r}")
    return tuple(int(part) for part in match.group(1).split("."))


OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "equals": lambda value, wanted: bool(value == wanted),
    "known": lambda value, wanted: (value is not None) == wanted,
    "one_of": lambda value, wanted: value in wanted,
    "at_least": lambda value, wanted: value is not None and value >= wanted,
    "includes": lambda value, wanted: value is not None and set(wanted) <= set(value),
}


def holds(condition: dict[str, Any], facts: Facts) -> bool:
    """Does one condition hold? An unknown value (None) satisfies only `equals: null` and `known: false`.

    A condition is a `fact` and an operator: equals, same_as (another fact), known, one_of, at_least (number),
    includes (list), from/below (versions).
    """
    value = lookup(facts, condition["fact"])
    if "same_as" in condition:
        return value is not None and bool(value == lookup(facts, condition["same_as"]))
    for operator, judge in OPERATORS.items():
        if operator in condition:
            return judge(value, condition[operator])
    if value is None:
        return False
    key = version_key(str(value))
    return version_key(str(condition.get("from", "0"))) <= key and (
        "below" not in condition or key < version_key(str(condition["below"]))
    )


def guide(finding_id: str) -> str:
    """Where the handbook explains a finding; a heading's anchor has no dots."""
    return f"{GUIDE}#{finding_id.replace(SEPARATOR, '')}"


def findings_of_rules(facts: Facts, rules: list[dict[str, Any]]) -> list[Finding]:
    """A finding for each rule that applies (`when`, all of them) and is broken (`require` does not hold)."""
    return [
        {
            "id": rule["id"],
            "level": rule["level"],
            "found": rule["found"].format(value=lookup(facts, rule["require"]["fact"])),
            "expected": rule["expected"],
            "fix": rule["fix"],
            "url": guide(rule["id"]),
        }
        for rule in rules
        if all(holds(condition, facts) for condition in rule.get("when", []))
        and not holds(rule["require"], facts)
    ]


def rules_of_kernel(features: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A rule for each kernel feature of the table; a feature of which nothing is known breaks none."""
    rules = []
    for entry in features:
        fact = f"kernel_features.{entry['feature']}"
        rules.append(
            {
                "id": f"kernel-{entry['feature'].replace('_', '-')}",
                "level": entry["level"],
                "when": [*entry.get("when", []), {"fact": fact, "equals": False}],
                "require": {"fact": fact, "equals": True},
                "found": f"a kernel without {entry['option']}: {entry['without']}",
                "expected": f"a kernel with {entry['option']}",
                "fix": entry["fix"],
            }
        )
    return rules


def finding(finding_id: str, found: str, expected: str, fix: str) -> Finding:
    """A finding of code; its level stands in CODED."""
    level = CODED[finding_id][0]
    url = guide(finding_id)
    return {"id": finding_id, "level": level, "found": found, "expected": expected, "fix": fix, "url": url}


def bundle_files(arch: str, source: str) -> list[str]:
    """Names of the files that a board of this architecture (`uname -m`) takes from the bundle.

    `source` is where K3s comes from: with 'download' it is not in the bundle.
    """
    suffix = ARCHITECTURES.get(arch, arch)
    k3s = [f"k3s-{suffix}", f"k3s-airgap-images-{suffix}.tar.gz"] if source == "bundle" else []
    return [
        "bundle.yml",
        *k3s,
        f"tegra-device-plugin-{suffix}.tar.gz",
        f"device-query-{suffix}.tar.gz",
    ]


def findings_of_bundle(bundle: Facts, arch: str, source: str = "bundle") -> list[Finding]:
    """What is wrong with the files that this board would get."""
    fix = f"Copy or build the bundle {bundle['path']} again; `sha256sum -c SHA256SUMS` inside it must pass."
    findings = [finding("bundle-unusable", text, "a complete bundle", fix) for text in bundle["errors"]]
    if findings:
        return findings
    if bundle["delta"]:
        return [finding_of_delta(bundle)]
    for name in bundle_files(arch, source):
        problem = bundle["files"].get(name, {"error": "not listed in SHA256SUMS"})["error"]
        if problem is not None:
            findings.append(
                finding(
                    "bundle-file",
                    f"{name}: {problem}",
                    "every file as SHA256SUMS says",
                    fix,
                )
            )
    return findings


def finding_of_delta(bundle: Facts) -> Finding:
    """A directory that has only what another bundle lacks, or that was laid over a wrong one."""
    path, delta = bundle["path"].rstrip("/"), bundle["delta"]
    base = ", ".join(str(delta[key]) for key in ("k3s_version", "plugin_image") if key in delta)
    wrong = sorted(name for name, state in bundle["files"].items() if state["error"])
    return finding(
        "bundle-delta",
        f"{path} has only what differs from another bundle, or lies over a wrong one: not as SHA256SUMS says "
        f"are {', '.join(wrong)}",
        f"a whole bundle. The other one has {base}, and the SHA-256 of its SHA256SUMS is {delta['since']}",
        f"Lay it over a copy of that bundle: cp -r BUNDLE NEW && cp {path}/* NEW && cd NEW && "
        "sha256sum --check --quiet SHA256SUMS. Then let jetson_k3s_bundle name NEW.",
    )


def findings_of_fleet(host: str, fleet: dict[str, Facts]) -> list[Finding]:
    """What only a look at all boards shows; `fleet` is {inventory name: facts}."""
    mine = fleet[host]
    findings = []
    same_name = [
        name for name, facts in fleet.items() if name != host and facts["hostname"] == mine["hostname"]
    ]
    if same_name:
        findings.append(
            finding(
                "hostname-duplicate",
                f"{host} and {', '.join(same_name)} all call themselves {mine['hostname']!r}",
                "one hostname per board: it becomes the node's name",
                f"sudo hostnamectl set-hostname {host}   (on each board its own)",
            )
        )
    if not NODE_NAME.match(mine["hostname"].lower()):
        findings.append(
            finding(
                "hostname-invalid",
                f"hostname {mine['hostname']!r}",
                "letters, digits, '-' and '.' only: it becomes the node's name",
                "sudo hostnamectl set-hostname NAME",
            )
        )
    same_id = [
        name for name, facts in fleet.items() if name != host and facts["machine_id"] == mine["machine_id"]
    ]
    if same_id and mine["machine_id"]:
        findings.append(
            finding(
                "machine-id-duplicate",
                f"{host} and {', '.join(same_id)} share the machine-id {mine['machine_id']}",
                "one machine-id per board (cloned cards share it, and then DHCP addresses too)",
                "sudo rm /etc/machine-id && sudo systemd-machine-id-setup && sudo reboot",
            )
        )
    return findings


def findings_of_server(
    host: str, fleet: dict[str, Facts], server: str, restores: bool = False
) -> list[Finding]:
    """Would this board, as the first server, begin a second cluster beside one that lives?

    Its token would go to all the others, and take them out of theirs. `fleet` is {inventory name: facts}.
    A server that `restores` a backup has their cluster's data before it starts.
    """
    if restores:
        return []
    members = {
        role: [name for name in fleet if name != host and lookup(fleet[name], f"k3s.{role}.installed")]
        for role in ("server", "agent")
    }
    if host != server or lookup(fleet[host], "k3s.server.installed") or not any(members.values()):
        return []
    if members["server"]:
        other = members["server"][0]
        fix = (
            f"Put {other}, or another server that runs, first in the inventory's [server]. Let the cluster "
            f"forget this one (playbooks/forget.yml --limit {host}), and run this again: it joins."
        )
    else:
        fix = (
            "The cluster's data were on this server alone: playbooks/restore.yml brings them back from a "
            "backup. Or begin a new one: playbooks/reset.yml --limit agent -e k3s_reset_leave=false, then "
            "this again."
        )
    there = [f"{name} ({role})" for role, names in members.items() for name in names]
    return [
        finding(
            "server-new",
            f"{host} would begin a cluster and has no K3s, while {', '.join(there)} run it already",
            "a first server that is in their cluster, or no K3s on the others",
            fix,
        )
    ]


def asked(joined: str, fleet: dict[str, Facts], servers: list[str], hosts: list[str]) -> str:
    """Which server is asked in this run: the one that boards join, or one that runs while that is not there.

    `fleet` is {inventory name: facts} of the boards that answer, `hosts` names all that the run is for.
    """
    if joined in fleet or joined not in hosts:
        return joined
    return next(
        (name for name in servers if name in fleet and lookup(fleet[name], "k3s.server.active")), joined
    )


def findings_of_joining(facts: Facts, joined: str, server: str) -> list[Finding]:
    """Would this board join a server that is down? `server` is the one that is asked instead."""
    if joined == server or any(lookup(facts, f"k3s.{role}.installed") for role in ("server", "agent")):
        return []
    return [
        finding(
            "server-down",
            f"the board has no K3s yet and would join {joined}, which does not answer",
            "a server to join",
            f"Bring {joined} back, or put {server} first in the inventory's [server] if it is gone for good.",
        )
    ]


def findings_of_disks(facts: Facts) -> list[Finding]:
    """Is there room for what will be installed, and beyond that enough for the kubelet to evict nobody?"""
    runtime = facts["container_runtime"]
    there = lookup(facts, "k3s.version") == lookup(facts, "bundle.k3s_version")
    needs = {} if there else INSTALLED.get(runtime, {})
    places: dict[int, list[str]] = {}
    for name, disk in facts["disks"].items():
        places.setdefault(disk["filesystem"], []).append(name)
    findings = []
    for names in places.values():
        total, free = (facts["disks"][names[0]][key] for key in ("total_bytes", "free_bytes"))
        need = sum(needs.get(name, 0) for name in names)
        kept = EVICTION * total if set(names) & set(WATCHED.get(runtime, ())) else 0
        if free >= need + kept:
            continue
        where = ", ".join(facts["disks"][name]["path"] for name in names)
        full = free < need
        findings.append(
            finding(
                "disk-full" if full else "disk-eviction",
                f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free on the disk with {where}",
                f"{need / 1e9:.1f} GB for K3s, its images and their archives"
                if full
                else f"{(need + kept) / 1e9:.1f} GB: where less than 5 % are free, the kubelet evicts pods",
                "Make room (`docker system df` shows what Docker keeps), or move Docker's data-root to a "
                "larger disk.",
            )
        )
    return findings


def offset(clock: Facts, now: float) -> tuple[float, float]:
    """Least and greatest seconds that a board's clock is ahead of the controller's.

    The board looked at its clock somewhen between the controller's question and `now`.
    """
    return clock["board"] - now, clock["board"] - clock["asked"]


def apart(one: tuple[float, float], other: tuple[float, float] = (0, 0)) -> float:
    """Seconds that two offsets are apart at least."""
    return max(one[0] - other[1], other[0] - one[1], 0)


QUANTITY = re.compile(r"(\d+(?:\.\d+)?)([mkKMGTPE]?)(i?)")
POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}


def quantity(text: str) -> float | None:
    """Bytes of a Kubernetes quantity (apimachinery, pkg/api/resource/quantity.go), None for another text."""
    match = QUANTITY.fullmatch(text)
    if match is None:
        return None
    number, suffix, binary = match.groups()
    if suffix == "m":
        return None if binary else float(number) / 1000
    return float(number) * (1024 if binary else 1000) ** POWERS[suffix]


def memory_left(total: int, sold: str, requests: str) -> int | None:
    """Bytes of `total` that are neither `sold` (a quantity) nor in the pods' `requests` (quantities).

    None where nothing is sold. What is no quantity is refused by others, and counts as nothing here.
    """
    if not sold:
        return None
    return round(total - sum(quantity(text) or 0 for text in [sold, *requests.split()]))


def findings_of_clock(host: str, fleet: dict[str, Facts], server: str, now: float) -> list[Finding]:
    """Is the board's clock that of the controller, and that of its server?

    `fleet` is {inventory name: facts}, `now` the controller's clock in seconds since 1970. A server that is
    not among the boards cannot be compared.
    """
    mine = offset(fleet[host]["clock"], now)
    theirs = offset(fleet[server]["clock"], now) if server in fleet else mine

    def told(ahead: tuple[float, float]) -> str:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(now + ahead[0]))

    def fix(wrong: str) -> str:
        return (
            f"On {wrong}: sudo timedatectl set-ntp true. Without a time server: "
            f"sudo date --utc --set '{told((0, 0))}', and put a battery on its RTC connector."
        )

    here = f"this computer has {told((0, 0))} (all UTC)"
    if apart(mine) > CLOCK_WRONG:
        return [
            finding(
                "clock",
                f"the board's clock says {told(mine)}, and {here}",
                "the same time, within a day: each board judges the server's certificates by its own clock",
                fix(host),
            )
        ]
    distance = apart(mine, theirs)
    if distance <= CLOCK_DRIFT:
        return []
    return [
        finding(
            "clock-server" if distance > CLOCK_TOO_FAR else "clock-server-drift",
            f"the board's clock says {told(mine)}, that of its server {server} {told(theirs)}, and {here}",
            "the server's time, within a minute: certificates and tokens of the future are refused",
            fix(max((mine, host), (theirs, server), key=lambda known: apart(known[0]))[1]),
        )
    ]


def findings_of_groups(host: str, groups: dict[str, list[str]]) -> list[Finding]:
    """Is the board in one of the groups server and agent? `groups` is the inventory's {group: hosts}."""
    member = [group for group in ("server", "agent") if host in groups.get(group, [])]
    if len(member) == 1:
        return []
    where = "[server] and [agent]" if member else "neither [server] nor [agent]"
    return [
        finding(
            "group-both" if member else "group-none",
            f"{host} is in {where}",
            "each board in one of the groups [server] and [agent]",
            "Mend the inventory (see inventory.example).",
        )
    ]


# Flags of an installation that the roles could not follow: other names and places than theirs.
NOT_MIGRATED = ("--node-name", "--data-dir", "-d", "--config", "-c")


def findings_of_role(facts: Facts, role: str, migrate: bool = False) -> list[Finding]:
    """Is K3s on this board what its group in the inventory says? `role` is 'server' or 'agent'.

    With `migrate` an installation of the stock script is taken over, unless the role cannot follow its flags.
    """
    other = {"server": "agent", "agent": "server"}[role]
    own_unit, other_unit = lookup(facts, f"k3s.{role}") or {}, lookup(facts, f"k3s.{other}") or {}
    names = {"server": "k3s", "agent": "k3s-agent"}
    findings = []
    if other_unit.get("installed"):
        findings.append(
            finding(
                "k3s-other-role",
                f"this board already runs K3s as {other} ({names[other]}.service)",
                f"a board without K3s or with K3s as {role}, as the inventory says",
                f"Move the board to the group [{other}], or remove K3s from it first.",
            )
        )
    command = own_unit.get("command")
    if command is None or command.split()[1:] == [role]:
        return findings
    stuck = [flag for flag in NOT_MIGRATED if re.search(rf"\s{flag}\b", command)]
    if not migrate or stuck:
        findings.append(
            finding(
                "k3s-foreign-unit",
                f"{names[role]}.service starts `{command}`",
                f"no K3s, or one whose unit starts `k3s {role}` without flags",
                f"Remove K3s from the board: {', '.join(stuck)} cannot be taken over."
                if stuck
                else "Let the playbook take K3s over (`-e k3s_migrate=true`), or move the flags from the "
                "unit, where they override all, to /etc/rancher/k3s/config.yaml.",
            )
        )
    return findings


def findings_of_version(facts: Facts) -> list[Finding]:
    """Would K3s become older? Releases of one version (`+k3s1`, `+k3s2`) are alike."""
    installed, wanted = lookup(facts, "k3s.version"), lookup(facts, "bundle.k3s_version")
    if installed is None or wanted is None or version_key(wanted) >= version_key(installed):
        return []
    return [
        finding(
            "k3s-newer",
            f"K3s {installed} on this board, and {wanted} to be installed",
            f"K3s {installed} or newer: a cluster's data do not go back",
            "Let jetson_k3s_bundle in the inventory name the bundle of the last upgrade (k3s_version with "
            "k3s_source: download).",
        )
    ]


def findings_of_upgrade(facts: Facts, server: str | None, upgrades: bool = False) -> list[Finding]:
    """Would a node get another minor version of K3s, without all that an upgrade does?

    `server` is the version of the first server, None where it has none or does not say. An agent may follow
    it: that one was off when the others were upgraded. A run that `upgrades` has rules of its own.
    """
    installed, wanted = lookup(facts, "k3s.version"), lookup(facts, "bundle.k3s_version")
    if upgrades or wanted is None:
        return []
    here, there, then = (
        None if version is None else version_key(version)[:2] for version in (installed, server, wanted)
    )
    follows = there is not None and facts["role"] == "agent" and there >= then
    ahead = there is not None and there < then if here is None else here < then and not follows
    if not ahead:
        return []
    where = f"{installed} on this board" if installed else f"{server} on its server"
    return [
        finding(
            "k3s-upgrade",
            f"K3s {where}, and {wanted} to be installed",
            "the minor version that the cluster has: site.yml neither drains a node nor goes back",
            "Run playbooks/upgrade.yml with this bundle first. Or let jetson_k3s_bundle in the inventory "
            "name the bundle that the cluster has (k3s_version with k3s_source: download).",
        )
    ]


def findings_of_update(update: Facts) -> list[Finding]:
    """Has the bundle what an update of NVIDIA's runtime asks for? `update` is role nvidia_docker's plan."""
    if not update["asked"] or update["version"]:
        return []
    return [
        finding(
            "runtime-update",
            f"nvidia_docker_update_runtime, and no {update['package']} in the bundle's {update['archive']}",
            "the package, with what it depends on",
            "Put it there (docs/offline.md), or take nvidia_docker_update_runtime out of the inventory.",
        )
    ]


def findings_of_registries(facts: Facts, given: bool, problems: list[str]) -> list[Finding]:
    """Would K3s go by the registries of the inventory? `problems` are what role k3s finds wrong with them."""
    if not given:
        return []
    if facts["container_runtime"] == "docker":
        return [
            finding(
                "registries-docker",
                "k3s_registries, and Docker runs the pods (k3s_container_runtime)",
                "no k3s_registries: with Docker K3s does not read registries.yaml",
                "Give Docker's own mirrors: registry-mirrors in nvidia_docker_daemon_config "
                "(roles/nvidia_docker/README.md). Passwords of registries go into imagePullSecrets.",
            )
        ]
    findings = [
        finding(
            "registries",
            text,
            "what K3s reads from its registries.yaml",
            "Correct k3s_registries in the inventory: docs.k3s.io/installation/private-registry",
        )
        for text in problems
    ]
    if lookup(facts, "k3s.registries") == "owner":
        findings.append(
            finding(
                "registries-foreign",
                "k3s_registries, and a /etc/rancher/k3s/registries.yaml that another hand has written",
                "one of the two: K3s reads a single file",
                "Put what it says into k3s_registries and remove the file, or take k3s_registries out.",
            )
        )
    return findings


def findings_of_image_supply(facts: Facts, supply: str, boards: list[str]) -> list[Finding]:
    """Can a board supply images to the others? `boards` are those of the inventory's cluster."""
    if not supply:
        return []
    if supply not in boards:
        return [
            finding(
                "image-supply-host",
                f"image_supply_host is {supply!r}, and no board in [k3s_cluster] has that name",
                "the inventory's name of a board of this cluster",
                f"Correct image_supply_host, or take it out. There are {', '.join(boards)}.",
            )
        ]
    if facts["container_runtime"] == "docker":
        return []
    return [
        finding(
            "image-supply-containerd",
            "image_supply_host, and containerd runs the pods (k3s_container_runtime)",
            "no image_supply_host: K3s imports the bundle's archives at each start, so each board needs them",
            "Take image_supply_host out of the inventory, or run the pods by Docker. For other images than "
            "the bundle's give k3s_registries a mirror.",
        )
    ]


def findings_of_token(answer: Facts) -> list[Finding]:
    """What the K3s server said about the join token; a server that does not run yet cannot say anything."""
    if answer.get("reason", "unreachable") == "unreachable":
        return []
    return [
        finding(
            "join-token",
            answer["msg"],
            "the token of the running K3s server",
            "Take k3s_token out of the inventory: agents then get it from the server. Or set it to what "
            "/var/lib/rancher/k3s/server/node-token says there; for agents `k3s token create` makes one.",
        )
    ]


def findings_of_token_strength(token: str | None) -> list[Finding]:
    """Can the given token be guessed? Only its length is told."""
    length = len((token or "").rpartition(":")[2])
    if token is None or length >= TOKEN_LENGTH:
        return []
    return [
        finding(
            "join-token-weak",
            f"k3s_token has {length} characters",
            f"{TOKEN_LENGTH} or more: it lets computers join the cluster",
            "Leave k3s_token out (the server makes one), or take the output of `openssl rand -hex 16`.",
        )
    ]


def accept(findings: list[Finding], accepted: list[str], rules: list[dict[str, Any]]) -> list[Finding]:
    """The findings, warnings whose id is accepted set to that level. Errors stay; unknown ids are errors."""
    known = {rule["id"] for rule in rules} | CODED.keys()
    strangers = [
        finding(
            "accepted-unknown",
            f"preflight_accepted has {name!r}",
            "ids of warnings (docs/compatibility.md lists them)",
            "Take it out of preflight_accepted, or correct it.",
        )
        for name in accepted
        if name not in known
    ]
    return strangers + [
        entry | {"level": "accepted"} if entry["level"] == "warning" and entry["id"] in accepted else entry
        for entry in findings
    ]


def report(findings: list[Finding], host: str, outcome: str = "nothing was changed on this board") -> str:
    """Findings as text for people: found, expected, what to do; accepted ones are left out."""
    findings = [entry for entry in findings if entry["level"] != "accepted"]
    count = "1 problem" if len(findings) == 1 else f"{len(findings)} problems"
    lines = [f"{host}: preflight found {count}; {outcome}."]
    for number, entry in enumerate(findings, 1):
        lines.append(f"{number}. [{entry['level']}] {entry['id']}")
        lines.extend(f"   {key + ':':<10}{entry[key]}" for key in ("found", "expected", "fix", "url"))
    return "\n".join(lines)


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """The filters, all prefixed by the role's name."""
        return {
            "preflight_rules": findings_of_rules,
            "preflight_kernel_rules": rules_of_kernel,
            "preflight_clock": findings_of_clock,
            "preflight_memory_left": memory_left,
            "preflight_disks": findings_of_disks,
            "preflight_groups": findings_of_groups,
            "preflight_token_strength": findings_of_token_strength,
            "preflight_accept": accept,
            "preflight_bundle": findings_of_bundle,
            "preflight_fleet": findings_of_fleet,
            "preflight_image_supply": findings_of_image_supply,
            "preflight_registries": findings_of_registries,
            "preflight_role": findings_of_role,
            "preflight_server": findings_of_server,
            "preflight_asked": asked,
            "preflight_joining": findings_of_joining,
            "preflight_update": findings_of_update,
            "preflight_upgrade": findings_of_upgrade,
            "preflight_version": findings_of_version,
            "preflight_token": findings_of_token,
            "preflight_report": report,
        }

# SPDX-License-Identifier: Apache-2.0
"""What role preflight decides on a board: the plan of its node, and all findings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, TypedDict

from ansible.utils.unsafe_proxy import wrap_var
from ansible.utils.vars import merge_hash
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import jetson_places
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    board_release,
    board_variables,
    existing_cluster,
    host_names,
    k3s_configuration,
    k3s_options,
    k3s_reading,
    k3s_registries,
    k3s_version,
    preflight_boards,
    preflight_docker,
    preflight_etcd,
    preflight_existing,
    preflight_fleet,
    preflight_identity,
    preflight_k3s,
    preflight_network,
    preflight_packages,
    preflight_places,
    preflight_releases,
    preflight_rules,
    preflight_second_plugin,
    preflight_server,
    preflight_toolkit,
    proxy,
    user_images,
)
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.board_variables import (
    Facts,
    Hostvars,
)
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.preflight_board import (
    Board,
    node_name,
)
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.preflight_fleet import Run, flag

Finding = dict[str, str]

ROLES = ("agent", "server")
DOCKER_PROXY_FLAGS = ("--http-proxy", "--https-proxy", "--no-proxy")


class Tables(TypedDict):
    """The rules, which are data (vars/main)."""

    rules: list[dict[str, Any]]
    inventory: list[dict[str, Any]]
    kernel: list[dict[str, Any]]
    kernel_fix: list[dict[str, Any]]
    etcd: list[dict[str, str]]
    dockerd: dict[str, dict[str, Any]]
    releases: list[dict[str, Any]]
    toolkit: list[dict[str, Any]]


class Outcome(TypedDict):
    """What preflight has found, as the fact preflight_outcome."""

    findings: list[Finding]
    server_k3s: str
    node_new: bool
    no_proxy: dict[str, list[str]]
    address: dict[str, str]


class Plan(TypedDict):
    """What the tasks carry out."""

    server_k3s: str
    """The server's K3s before this run changes anything; '' where it has none or does not answer."""
    node_new: bool
    """Whether the cluster has no node of this name yet."""
    no_proxy: dict[str, list[str]]
    """Hosts to which no proxy leads: for K3s, and for Docker and downloads."""
    address: dict[str, str]
    """node-ip and flannel-iface of a board with several default routes, if they are new."""
    reads_requests: bool
    """Whether memory is reserved for the GPU on a node of a cluster that answers."""


def no_proxy(board: Board) -> dict[str, list[str]]:
    """Hosts to which no proxy leads: for K3s, and for Docker and downloads.

    They are made from the inventory and the board's own network, so they are the same with each --limit.
    """
    given = board.settings["proxy"]
    if not proxy.is_given(given):
        return {"k3s": [], "docker": []}
    own = board.found["k3s_plan"].get("settings", {}).get("node-ip") or ""
    near = [*map(str, proxy.own_networks(board.facts["network"], [own, *board.settings["addresses"]]))]
    hostvars, supply = board.hostvars, board.settings["supply_host"]
    # A server connects to the kubelet of each board, an agent to servers only.
    others = board.made["cluster"] if board.role == "server" else board.run["groups"].get("server", [])
    k3s_peers = proxy.peers(hostvars[host] for host in others)
    k3s_peers.append(host_names.host_of(board.settings["server_url"]))
    # Docker and downloads need no board but the registry of the site.
    docker_peers = proxy.peers(hostvars[host] for host in [supply] if host in board.made["inventory"])
    return {
        "k3s": proxy.no_proxy(given, board.ranges, near, k3s_peers),
        "docker": proxy.no_proxy(given, board.ranges, near, docker_peers),
    }


def plan(board: Board) -> Plan:
    """What the tasks carry out on this board."""
    owner = preflight_identity.owner_of(board.name, board.nodes)
    has_k3s = board.server_facts is None or board.server_facts["k3s"]["server"]["installed"]
    # Before K3s is on the server there are no nodes, unless a backup brings them. A cluster that exists
    # already has answered if its CA is known.
    answered = bool((board.answers.get(board.server) or {}).get("ca"))
    known = bool(board.nodes) or answered or not (flag(board.settings["restores"]) or has_k3s)
    of_role = board.settings["server_config" if board.role == "server" else "agent_config"]
    config = {**of_role, **board.settings["board_config"]}
    address = k3s_configuration.node_address(board.facts, config, board.role)
    active = board.server_facts is not None and board.server_facts["k3s"]["server"]["active"]
    return {
        "server_k3s": board.server_k3s,
        "node_new": owner is None and known,
        "no_proxy": no_proxy(board),
        "address": address if address.get("node-ip") != board.facts["k3s"]["node_ip"]["role"] else {},
        "reads_requests": bool(board.gpu_memory) and owner in (None, board.host) and bool(active),
    }


def compatibility_facts(board: Board, tables: Tables) -> Facts:
    """What the rules of compatibility.yml, kernel.yml and dockerd.yml are about.

    K3s and Docker are as they will be with the inventory's settings. `flannel_backend` is None for a server
    that is not in this run. `memory_left_bytes` is neither reserved for the GPU nor requested by a pod.
    """
    settings, there = board.settings, board.server_settings
    # Where containerd runs the pods, no role writes daemon.json.
    daemon = board.found["docker_plan"] if board.takes("docker") else {}
    docker = preflight_docker.planned(board.facts["docker"], daemon)
    if not (board.is_board or board.takes("docker")):
        docker |= preflight_docker.UNUSED
    docker["unknown_keys"] = preflight_docker.unknown_keys(board.facts["docker"] | docker, tables["dockerd"])
    planned: Facts = merge_hash(board.facts, {"k3s": board.found["k3s_plan"], "docker": docker})
    known = board.server_facts is not None
    return planned | {
        **preflight_boards.kernel_facts(board.facts),
        "bundle": k3s_version.wanted_versions(board.bundle, settings["k3s_version"]),
        "k3s_source": board.source,
        "controller": {"ansible_core": settings["ansible_core"]},
        "role": board.role,
        "host_kind": settings["host_kind"],
        "container_runtime": settings["container_runtime"],
        "user_images": user_images.space(
            board.facts,
            board.bundle,
            settings.get("images", []),
            settings["container_runtime"],
            bool(settings["supply_host"]),
        ),
        "strict": flag(settings["strict"]),
        "gpu_device_plugin_api": settings["api"],
        "gpu_device_plugin_config": settings["config"],
        "gpu_device_plugin_throttle_taint": flag(settings["throttle_taint"].get("enabled", False)),
        "flannel_backend": (there.get("flannel-backend") or "vxlan") if known else None,
        "network_policy": there.get("disable-network-policy") != "true",
        "memory_left_bytes": preflight_boards.memory_left(
            board.facts["memory_bytes"], board.gpu_memory, board.found["requests"]
        ),
    }


def other_proxies(board: Board) -> list[str]:
    """Where else Docker gets a proxy from. Where containerd runs the pods, Docker is left as it is."""
    if not board.takes("docker"):
        return []
    keys, flags = board.found["docker_plan"]["daemon_keys"], board.facts["docker"].get("flags", {})
    file = ["proxies in /etc/docker/daemon.json or nvidia_docker_daemon_config"] if "proxies" in keys else []
    return file + [f"{flag} in the command of dockerd" for flag in DOCKER_PROXY_FLAGS if flag in flags]


def held_packages(board: Board) -> list[str]:
    """Packages that the role would install or update, and of which the owner has set an apt hold."""
    planned, packages = board.found["docker_plan"], board.facts["packages"]
    wanted = {*planned["runtime_packages"], *(planned["engine_packages"] if board.takes("docker") else [])}
    return sorted(wanted & set(packages["held"]) - set(packages["ours"]))


def inventory_facts(board: Board, facts: Facts) -> Facts:
    """What the rules of inventory.yml are about: `facts` are those of compatibility.yml."""
    settings, groups, found = board.settings, board.run["groups"], board.found
    own = board.facts["k3s"][board.role]
    not_taken_over = k3s_options.not_taken_over(own["command"])
    migrates, update = "migrate" in settings["confirmed"], found["docker_plan"]
    registries, given = settings["registries"], settings["proxy"]
    architecture = board_release.architecture(board.facts["arch"])
    # After a confirmed update, which comes before the steps that need it.
    updated = {"version": update["version"]} if update["due"] else {}
    return facts | {
        "nvidia_runtime": facts["nvidia_runtime"] | updated,
        "host": board.host,
        "groups": [role for role in ROLES if board.host in groups.get(role, [])],
        "boards": board.made["cluster"],
        "joined": board.members[0],
        "kubectl_server": board.server,
        "own_unit": own,
        "other_unit": board.facts["k3s"]["agent" if board.role == "server" else "server"],
        "not_taken_over": not_taken_over,
        "migrates": migrates,
        "takes_over": migrates and not not_taken_over,
        "foreign_runtime": k3s_reading.foreign_runtime(board.facts["k3s"], board.role),
        "token_refused": found["token"].get("reason", "unreachable"),
        "token_message": found["token"].get("msg", ""),
        "existing": board.existing,
        "existing_unreachable": board.existing and found["token"].get("reason") == "unreachable",
        "token_length": len(str(settings["token"]).split(":")[-1]) if settings["token_given"] else None,
        "registries": bool(registries),
        "registries_problems": [*k3s_registries.problems(registries)],
        "registries_docker": [*k3s_registries.docker_problems(registries)],
        "credentials": k3s_registries.docker_credentials(registries) != "",
        "proxy": {
            "given": proxy.is_given(given),
            "problems": [*proxy.problems(given)],
            "inside": proxy.inside(given, board.ranges),
            "elsewhere": other_proxies(board),
        },
        "release_url": re.sub(r"(?<=://)[^/]*@", "", settings["release_url"]),
        "release_pinned": board.source == "bundle" or bool(settings["sha256"].get(architecture)),
        "datastore": {
            "external": found["k3s_plan"]["external_datastore"],
            "servers": len(board.members),
            "restores": flag(settings["restores"]),
        },
        "gpu_device_plugin_image": settings["image"],
        # site.yml downloads the wheels if there is no bundle.
        "jtop_lacks_wheels": flag(settings["jtop"])
        and board.bundle["indexed"]
        and "jtop" not in board.bundle["versions"],
        "image_supply_host": settings["supply_host"],
        "bundle_images": settings.get("images", []),
        "update": update,
        "held_packages": held_packages(board),
    }


def named_hosts(board: Board) -> list[tuple[str, str]]:
    """Hosts, beside the server, that Docker or K3s on the board connects to, each with its setting."""
    settings, supply = board.settings, board.settings["supply_host"]
    proxies = [
        ("jetson_k3s_proxy", host_names.host_of(url)) for url in proxy.urls(settings["proxy"]).values()
    ]
    mirrors = [("k3s_registries", host) for host in k3s_registries.hosts(settings["registries"])]
    registry = []
    if supply in board.made["inventory"]:
        variables = board.hostvars[supply]
        place = variables.get("jetson_k3s_address") or variables.get("ansible_host") or supply
        registry = [("image_supply_host", str(place))]
    return proxies + mirrors + registry


def findings_of_names(board: Board, facts: Facts) -> list[Finding]:
    """Names and addresses that programs on this board use."""
    first = board.members[0]
    variables = board.hostvars[first]
    default = preflight_server.default_url(first, variables)
    url = board.settings["server_url"] or default
    server: preflight_server.Server = {
        "name": first,
        "url": url,
        "default": default,
        "facts": board.facts_of(first, variables),
    }
    joins = board.host != first
    return [
        *preflight_server.findings_of_server_url(facts, server, joins),
        *preflight_server.findings_of_server_range(url, board.ranges),
        *preflight_server.findings_of_hosts(facts, named_hosts(board)),
    ]


def planned_packages(board: Board) -> Facts:
    """The plan of role nvidia_docker, with the registry that role image_supply installs on one board."""
    planned = board.found["docker_plan"]
    supplies = board.settings["supply_host"] == board.host
    registry = supplies and not board.facts.get("image_supply", {}).get("program")
    return {**planned, "missing": planned["missing"] + ["docker-registry"] * bool(registry)}


def findings_of_storage(board: Board, facts: Facts) -> list[Finding]:
    """Disks and directories that this run writes to."""
    settings, planned = board.settings, planned_packages(board)
    conditions = {
        jetson_places.DOCKER: board.takes("docker") or bool(settings["supply_host"]),
        jetson_places.PACKAGES: bool(planned["missing"]),
        jetson_places.RENAME: board.host in board.named
        and board.name != str(board.facts["hostname"]).lower(),
        jetson_places.REGISTRY: settings["supply_host"] == board.host,
    }
    return [
        *preflight_boards.findings_of_disks(facts),
        *preflight_places.findings_of_unmounted(facts),
        # One cause is one finding: a file system is not named again.
        *preflight_places.findings_of_places(
            facts, [name for name, met in conditions.items() if met], preflight_boards.ill_filesystems(facts)
        ),
    ]


def matrix(tables: Tables) -> list[dict[str, Any]]:
    """The compatibility matrix, with the rules that the other tables make."""
    return [
        *tables["rules"],
        *preflight_releases.rules_of_releases(tables["releases"]),
        *preflight_toolkit.rules_of_toolkit(tables["toolkit"]),
        *preflight_rules.rules_of_kernel(tables["kernel"], tables["kernel_fix"]),
        *preflight_docker.rules(tables["dockerd"]),
    ]


def compatibility(board: Board, tables: Tables) -> list[Finding]:
    """Findings by the compatibility matrix alone."""
    return preflight_rules.findings_of_rules(compatibility_facts(board, tables), matrix(tables))


def findings_of_existing(board: Board, facts: Facts) -> list[Finding]:
    """The API and the version of a cluster that exists already."""
    if not board.existing:
        return []
    config: Facts = board.settings["config"]
    preset = config.get("sharing", {}).get("units", {}).get("preset")
    more = {
        "gpu_device_plugin_api: dra": board.settings["api"] == "dra",
        "gpu_device_plugin_throttle_taint": flag(board.settings["throttle_taint"].get("enabled", False)),
        "the preset koordinator": preset == "koordinator",
    }
    needs = [name for name, needed in more.items() if needed]
    return [
        *preflight_existing.access_findings(board.answers.get(board.server), board.server, needs),
        *preflight_existing.skew_findings(facts["bundle"].get("k3s_version"), board.server_k3s, board.source),
    ]


def findings(board: Board, tables: Tables, now: float) -> list[Finding]:
    """All findings of a board that is to be a node. `now` are the controller's seconds since 1970."""
    host, fleet, settings = board.host, board.fleet, board.settings
    facts = compatibility_facts(board, tables)
    rules = matrix(tables) + tables["inventory"]
    size = len(board.members) if board.role == "server" else 0
    packages = preflight_packages.due(
        facts, planned_packages(board), board.bundle, proxy.is_given(settings["proxy"])
    )
    toolkit = preflight_toolkit.findings_of_toolkit(facts, tables["toolkit"]) if board.is_board else []
    # A restore replaces the cluster's data.
    restores, begins = flag(settings["restores"]), "new-cluster" in settings["confirmed"]
    existing = findings_of_existing(board, facts)
    upgrade = preflight_k3s.findings_of_upgrade(facts, board.server_k3s or None, flag(settings["upgrades"]))
    beginning = preflight_k3s.findings_of_server(host, fleet, board.members[0], board.answers, begins)
    data = preflight_etcd.findings_of_etcd(facts, tables["etcd"]) + preflight_k3s.findings_of_restore(facts)
    found = [
        *preflight_rules.findings_of_rules(inventory_facts(board, facts), rules),
        *toolkit,
        *preflight_k3s.findings_of_bundle(
            board.bundle,
            board.facts["arch"],
            board.source,
            settings["image"],
            board.takes("gpu_device_plugin"),
        ),
        *user_images.findings(board.facts, board.bundle, settings.get("images", []), host),
        *preflight_identity.findings_of_identity(
            host, fleet, board.made["inventory"], board.named, board.nodes
        ),
        *([] if restores else beginning),
        *preflight_identity.findings_of_node(host, board.facts, board.named),
        *preflight_second_plugin.findings(board),
        *findings_of_names(board, facts),
        *preflight_network.findings_of_ranges(host, fleet, board.ranges),
        *preflight_network.findings_of_firewalls(host, fleet, board.ranges, size, facts["flannel_backend"]),
        *findings_of_storage(board, facts),
        *preflight_packages.findings_of_packages(facts, packages),
        *preflight_boards.findings_of_clock(host, fleet, board.server, float(now)),
        *preflight_k3s.findings_of_settings(board.found["k3s_plan"]),
        *existing,
        *([] if existing else upgrade),
        *([] if restores else data),
    ]
    return preflight_rules.accept(found, settings["accepted"], rules)


def node_findings(run: Run, hostvars: Hostvars, answered: list[Facts]) -> list[Finding]:
    """Why a run must not drain or delete the node with this board's hostname."""
    nodes = preflight_fleet.nodes_of(
        preflight_k3s.answers_of(answered, existing_cluster.api_servers(run["groups"]))
    )
    found = preflight_identity.findings_of_known_node(
        run["host"], board_variables.facts_of(run["reached"], hostvars), run["groups"]["all"], nodes
    )
    return [*map(preflight_rules.complete, found)]


def unsafe(value: Any) -> Any:
    """The value, marked as unsafe: a copy, as ansible-core 2.19 cannot mark the containers of an argument."""

    def copied(part: Any) -> Any:
        if isinstance(part, Mapping):
            return {key: copied(one) for key, one in part.items()}
        return [*map(copied, part)] if isinstance(part, list) else part

    return wrap_var(copied(value))


def outcome(board: Board, tables: Tables, now: float) -> Outcome:
    """What preflight has found on a board."""
    planned = plan(board)
    return {
        "findings": findings(board, tables, now),
        "server_k3s": planned["server_k3s"],
        "node_new": planned["node_new"],
        "no_proxy": planned["no_proxy"],
        "address": planned["address"],
    }


# Texts are marked as unsafe here, because up to ansible-core 2.18 those of `hostvars` lose their mark.
FILTERS = {
    "preflight_compatibility": lambda *given: unsafe(compatibility(Board(*given[:-1]), given[-1])),
    # The space: ansible-core 2.16 makes a dictionary of a text that begins with a brace.
    "preflight_fleet": lambda *given: unsafe(" " + json.dumps(preflight_fleet.fleet_of(*given))),
    "preflight_node_findings": lambda *given: unsafe(node_findings(*given)),
    "preflight_node_name": lambda *given: unsafe(node_name(*given)),
    "preflight_outcome": lambda *given: unsafe(outcome(Board(*given[:-2]), *given[-2:])),
    "preflight_plan": lambda *given: unsafe(plan(Board(*given))),
    "preflight_remaining": lambda *given: unsafe(preflight_fleet.remaining(*given)),
    "preflight_report": preflight_rules.report,
    "preflight_servers": lambda *given: unsafe(preflight_fleet.servers(*given)),
}

# SPDX-License-Identifier: Apache-2.0
"""Docker's configuration as dockerd will read it, and the rules of the table dockerd.yml.

Pure functions behind the preflight role.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.preflight_rules import (
    known_version,
    version_key,
)

Facts = dict[str, Any]
Entry = Mapping[str, Any]
Rule = dict[str, Any]

FILE, INVENTORY, COMMAND = "/etc/docker/daemon.json", "nvidia_docker_daemon_config", "the command of dockerd"
# Of a plain host whose pods containerd runs: the roles neither start nor change its Docker.
UNUSED: Facts = {"running": False, "conflicting_flags": [], "daemon_json": {"error": None, "config": {}}}
DOCKER_MODE = {"fact": "container_runtime", "equals": "docker"}
# Keys whose flag can be given several times, and each time has one value of a list.
LISTS = {"authorization-plugins", "exec-opts", "hosts"}
# The same with NAME=VALUE.
MAPPINGS = {"default-ulimits", "features"}
# The newest release of Docker whose keys are all in the table.
NEWEST = 29
# What becomes of a key that takes part in a finding, by the place where it stands.
FIXES = {
    FILE: f"Take `{{key}}` out of {FILE} on the board{{instead}}.",
    INVENTORY: f"Take `{{key}}` out of {INVENTORY} in the inventory{{instead}}.",
    COMMAND: "Take the flag out of the command of dockerd: `sudo systemctl edit docker`, or the file "
    "/etc/default/docker on the board.",
}


def switch(text: str) -> Any:
    """A value of a flag: true and false are switches."""
    return {"true": True, "false": False}.get(text, text)


def flag_value(key: str, texts: list[str]) -> Any:
    """The value that flags give a key, in the form of daemon.json."""
    if key in LISTS:
        return texts
    if key in MAPPINGS:
        return {name: switch(value) for name, _, value in (text.partition("=") for text in texts)}
    return switch(texts[-1])


def soft_limits(limits: Any) -> Any:
    """`default-ulimits` as {name: soft limit}. A flag has SOFT:HARD, and daemon.json both by name."""
    if not isinstance(limits, dict):
        return limits
    soft = {
        name: one.get("Soft", one.get("Hard")) if isinstance(one, dict) else str(one).split(":")[0]
        for name, one in limits.items()
    }
    return {name: int(str(one)) for name, one in soft.items() if str(one).lstrip("-").isdigit()}


def planned(docker: Facts, plan: Facts) -> Facts:
    """The facts about Docker that change with daemon.json as it will be.

    `plan` has all its keys as `daemon_keys`, and those that are judged in `daemon_json`; it is empty where no
    role writes the file. dockerd refuses a setting as a flag and as a key, but merges the runtimes of both.
    """
    there = docker["daemon_json"]["config"]
    said = plan.get("daemon_json", there)
    flags = {key: flag_value(key, texts) for key, texts in docker.get("flag_values", {}).items()}
    keys = set(plan.get("daemon_keys", there))
    settings = {**flags, **said}
    if "default-ulimits" in settings:
        settings["default-ulimits"] = soft_limits(settings["default-ulimits"])
    places = {
        **dict.fromkeys(flags, COMMAND),
        **{key: FILE if there.get(key) == said[key] else INVENTORY for key in said},
    }
    conflicts = {flag for flag, key in docker["flags"].items() if key in keys - {"runtimes"}}
    found: Facts = {"conflicting_flags": sorted(conflicts), "settings": settings, "places": places}
    found["all_keys"] = sorted({*keys, *flags})
    options, features = settings.get("exec-opts"), settings.get("features")
    for option in options if isinstance(options, list) else []:
        name, _, value = str(option).partition("=")
        if name == "native.cgroupdriver":
            found["cgroup_driver"] = value
    store = features.get("containerd-snapshotter") if isinstance(features, dict) else None
    return found | {
        name: value
        for name, value in (("containerd_store", store), ("min_api_version", settings.get("min-api-version")))
        if value is not None
    }


def unknown_keys(docker: Facts, table: Mapping[str, Entry]) -> list[str]:
    """Keys with which this release of dockerd does not start. Empty if no release is known."""
    version = known_version(docker.get("version"))
    if version is None:
        return []

    def is_unknown(key: str) -> bool:
        entry = table.get(key)
        if entry is None:
            return version[0] <= NEWEST
        since, removed = entry.get("since"), entry.get("removed")
        too_old = since is not None and version < version_key(since)
        return too_old or (removed is not None and version >= version_key(removed))

    return [key for key in docker["all_keys"] if is_unknown(key)]


def rules(table: Mapping[str, Entry]) -> list[Rule]:
    """The rules of the table; each applies where Docker runs the pods and the key has a value."""
    found = []
    for key, entry in table.items():
        for finding in entry.get("findings", []):
            setting = f"docker.settings.{key}"
            fact = f"{setting}.{finding['part']}" if "part" in finding else setting
            found.append(
                {
                    "id": finding.get("id", f"docker-{key}"),
                    "level": finding.get("level", "error"),
                    "when": [DOCKER_MODE, {"fact": fact, "known": True}, *finding.get("when", [])],
                    "require": {"fact": fact, **finding["require"]},
                    "found": f"`{key}` is {{value}} in {{docker.places.{key}}}: {finding['why']}",
                    "expected": expected(key, finding),
                    "fix": [
                        {
                            "when": [{"fact": f"docker.places.{key}", "equals": place}],
                            "text": text.format(key=key, instead=instead(key, finding)),
                        }
                        for place, text in FIXES.items()
                    ],
                }
            )
    return found


def expected(key: str, finding: Entry) -> str:
    """What a finding of the table expects."""
    if "expected" in finding:
        return str(finding["expected"])
    return f"`{key}: {shown(finding['instead'])}`, or dockerd's default"


def instead(key: str, finding: Entry) -> str:
    """The end of a fix: a value that the inventory can give the key."""
    if "instead" not in finding:
        return ""
    return f", or set `{key}: {shown(finding['instead'])}` in {INVENTORY}"


def shown(value: Any) -> str:
    """A value as YAML has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)

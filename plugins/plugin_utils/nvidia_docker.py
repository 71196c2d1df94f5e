# SPDX-License-Identifier: Apache-2.0
"""What role nvidia_docker installs and configures on a board: its decisions, from facts and settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypedDict

from ansible.module_utils.compat.version import LooseVersion
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.utils.vars import merge_hash
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import docker_files
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import board_release

# Keys of daemon.json whose values preflight reads. Others may contain a proxy's password.
JUDGED = (
    "authorization-plugins",
    "config-file",
    "default-ulimits",
    "exec-opts",
    "features",
    "firewall-backend",
    "hosts",
    "iptables",
    "log-driver",
    "min-api-version",
    "no-new-privileges",
    "rootless",
    "seccomp-profile",
    "storage-driver",
    "tlsverify",
    "userns-remap",
)
# Docker's default runtime without that key.
STOCK_RUNTIME = "runc"
# Archives of packages that a board of a known generation can use.
PACKAGES_ARCHIVE = re.compile(r"debs-jetpack[4-9](-[a-z]{2,20})?-(arm64|amd64)[.]tar")


class Settings(TypedDict):
    """What the inventory says, and the role's constants."""

    with_engine: bool
    """Whether Docker is installed: not where containerd runs the pods."""
    with_runtime: bool
    """Whether NVIDIA's runtime is installed and configured: not on a plain host."""
    engine_packages: list[str]
    runtime_packages: list[str]
    engine_family: list[str]
    """What apt may install for engine_packages."""
    runtime_family: list[str]
    daemon_config: dict[str, Any]
    """For daemon.json: the role's and the inventory's keys."""
    log_config: dict[str, Any]
    """For a daemon.json that says nothing of logs."""
    confirmed: list[str]
    """jetson_k3s_confirm."""
    strict: bool
    """nvidia_docker_strict."""
    proxied: bool
    """Whether jetson_k3s_proxy is given."""
    staged: bool
    """Whether role rolling_restart restarts Docker on a running node."""


class Plan(TypedDict):
    """What the tasks carry out, and what preflight judges. It is shown at -v, so it has no secret."""

    asked: bool
    """Whether an update of NVIDIA's runtime is confirmed."""
    package: str
    """NVIDIA's runtime."""
    archive: str
    """The bundle's file with packages for this board."""
    version: str
    """The runtime in that file, without Debian's revision; '' if it has none."""
    due: bool
    """Whether that version replaces an older one."""
    missing: list[str]
    """Packages to install by name."""
    engine_packages: list[str]
    """What comes with them of Docker."""
    runtime_packages: list[str]
    """What comes with them of NVIDIA's runtime. An update replaces all of it."""
    holds_due: list[str]
    """Packages of the role that apt would update."""
    log_config: dict[str, Any]
    """Keys for a daemon.json that says nothing of logs."""
    daemon_keys: list[str]
    """Keys of daemon.json as it will be."""
    daemon_json: dict[str, Any]
    """Those of them that preflight reads."""
    postpones: bool
    """Whether a restart of Docker is left to role rolling_restart."""
    configures: bool
    """Whether Docker may need its configuration. A secret that the facts leave out is a reason."""
    has_work: bool
    """Whether the role installs or configures anything. Where it does not, site.yml leaves it out."""


class CollectionSettings(TypedDict):
    """What the packages for a bundle depend on."""

    engine_packages: list[str]
    runtime_packages: list[str]
    supply_host: str
    """image_supply_host, which needs a registry."""


class Collection(TypedDict):
    """Packages that are downloaded for a bundle."""

    refused: list[str]
    """Why none can be collected for this board."""
    archive: str
    architecture: str
    codename: str
    packages: list[str]


def offered_version(bundle: Mapping[str, Any], archive: str, package: str) -> str:
    """A package's version in an archive of the bundle, without Debian's revision; '' if it has none."""
    packages = bundle["files"].get(archive, {}).get("packages", {})
    found = re.match(r"[0-9]+([.][0-9]+)*", packages.get(package, ""))
    return found.group() if found else ""


def is_outdated(installed: str | None, offered: str) -> bool:
    """Is the board's runtime older than the bundle's?"""
    return bool(installed and offered) and LooseVersion(installed) < LooseVersion(offered)


def log_config(docker: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Keys for a daemon.json that says nothing of logs, {} where Docker cannot use them.

    They need a restart and concern new containers only. dockerd refuses to start with the same setting as a
    flag.
    """
    has_flags = "--log-" in (docker["command"] or "")
    return {} if docker["containers"] or has_flags else settings["log_config"]


def daemon_json(docker: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """daemon.json as the module docker_daemon_config will write it, but for equivalent runtimes."""
    there, wanted = docker["daemon_json"]["config"], settings["daemon_config"]
    logs = log_config(docker, settings)
    merged: dict[str, Any] = merge_hash(there, wanted if logs.keys() & there.keys() else {**logs, **wanted})
    return merged


def is_configured(jetson: Mapping[str, Any], settings: Settings) -> bool:
    """Whether Docker runs with its configuration, so that no module would change it."""
    docker, iptables = jetson["docker"], jetson["iptables"]
    config, files = docker["daemon_json"], docker["files"]
    try:
        raw = docker_files.needs_raw_drop_in(iptables["raw"], docker["version"])
    except docker_files.EnvironmentProblem:
        return False  # the module says so
    return bool(
        docker["active"]
        and docker["enabled"]
        and docker["running"]
        and not config["error"]
        and config["config"] == daemon_json(docker, settings)
        and docker["default_runtime"] == settings["daemon_config"].get("default-runtime", STOCK_RUNTIME)
        and not (iptables["not_tried"] or iptables["changes"])
        and files["raw_drop_in"] == raw
        and (files["strict"] == boolean(settings["strict"]) or not boolean(settings["with_runtime"]))
        and not (boolean(settings["proxied"]) or files["proxy"])
        and not files["restart_due"]
    )


def plan(jetson: Mapping[str, Any], bundle: Mapping[str, Any], settings: Settings) -> Plan:
    """What is installed and configured on a board.

    `jetson` are its facts, `bundle` what the module bundle_info has found. After an installation the facts
    are others, and so is the plan.
    """
    docker, runtime, k3s = (jetson[name] for name in ("docker", "nvidia_runtime", "k3s"))
    installed, package = jetson["packages"]["installed"], settings["runtime_packages"][0]
    archive = board_release.packages_archive(jetson)
    offered = offered_version(bundle, archive, package)
    with_runtime = boolean(settings["with_runtime"])
    asked = with_runtime and "update-runtime" in settings["confirmed"]
    due = asked and is_outdated(runtime["version"], offered)
    # Never a second engine on one socket: that of a snap or of an archive has a finding.
    has_engine = docker["installed"] or docker.get("engine", {}).get("origin")
    lacks_engine = boolean(settings["with_engine"]) and not has_engine
    lacks_runtime = due or (with_runtime and not runtime["path"])

    def absent(family: list[str]) -> list[str]:
        return [name for name in family if name not in installed]

    runtime_family = settings["runtime_family"] if due else absent(settings["runtime_family"])
    planned = daemon_json(docker, settings)
    missing = [
        *(settings["engine_packages"] if lacks_engine else []),
        *(settings["runtime_packages"] if lacks_runtime else []),
    ]
    holds_due = [name for name in jetson["packages"]["ours"] if name not in jetson["packages"]["held"]]
    configures = not is_configured(jetson, settings)
    return {
        "asked": asked,
        "package": package,
        "archive": archive,
        "version": offered,
        "due": due,
        "missing": missing,
        "engine_packages": absent(settings["engine_family"]) if lacks_engine else [],
        "runtime_packages": runtime_family if lacks_runtime else [],
        "holds_due": holds_due,
        "log_config": log_config(docker, settings),
        "daemon_keys": list(planned),
        "daemon_json": {key: value for key, value in planned.items() if key in JUDGED},
        # A restart of Docker ends every pod of a running node.
        "configures": configures,
        "has_work": bool(missing or holds_due or configures),
        "postpones": boolean(settings["staged"])
        and docker["running"]
        and any(k3s[unit]["active"] for unit in ("server", "agent")),
    }


def restarts(config: Mapping[str, Any], environment: Mapping[str, Any]) -> bool:
    """Does Docker restart now? By docker_daemon_config and docker_environment, {} where one has not run."""
    by_config = config.get("activation") == "restart" and not config["postponed"]
    return by_config or bool(environment.get("restart_due") and not environment["postponed"])


def bundle_has(bundle: Mapping[str, Any], archive: str, packages: list[str]) -> bool:
    """Are packages installed from this file of the bundle? A damaged one is, which then fails by its name."""
    file = bundle["files"].get(archive, {})
    return bool(file.get("error")) or set(packages) <= set(file.get("packages", {}))


def lacking_images(bundled: Mapping[str, Any], docker: Mapping[str, Any]) -> list[str]:
    """Names of images that Docker lacks; `bundled` is the file of the bundle.

    Docker has an image with the same id or, in the containerd image store, with the same content. The same
    name may stand for an older image.
    """
    return sorted(
        name
        for name, identity in bundled["images"].items()
        if docker["images"].get(name) != identity
        and docker["contents"].get(name) != bundled["contents"][name]
    )


def keeps_images(bundled: Mapping[str, Any], docker: Mapping[str, Any], archive: str) -> bool:
    """Whether a container keeps each image of the archive, and none keeps another image of it.

    `bundled` is the file of the bundle.
    """
    return {docker["images"].get(name) for name in bundled["images"]} == {*docker["kept"].get(archive, [])}


def refusals(jetson: Mapping[str, Any], archive: str, board: str) -> Iterator[str]:
    """Why no packages can be collected for a board."""
    # The name of a file on the controller, made of a board's facts.
    if not PACKAGES_ARCHIVE.fullmatch(archive):
        yield (
            f"{board}: the board has no JetPack (L4T {jetson['l4t'] or 'none'}). Set bundle_debs_from to a "
            "Jetson: no bundle has packages for a plain host."
        )
    elif not board_release.codename(jetson["jetpack"]):
        yield (
            f"{board}: this release of the project does not know the Ubuntu of JetPack {jetson['jetpack']}, "
            "so it cannot verify the packages of this board. Use a newer release."
        )


def collection(jetson: Mapping[str, Any], settings: CollectionSettings, board: str) -> Collection:
    """What is downloaded for a bundle on a board with this name in the inventory."""
    archive = board_release.packages_archive(jetson)
    registry = ["docker-registry"] if settings["supply_host"] else []
    return {
        "refused": list(refusals(jetson, archive, board)),
        "archive": archive,
        "architecture": board_release.architecture(jetson["arch"]),
        "codename": board_release.own_codename(jetson) or board_release.codename(jetson["jetpack"]),
        "packages": [*settings["engine_packages"], *settings["runtime_packages"], *registry],
    }


FILTERS = {
    "nvidia_docker_bundle_has": bundle_has,
    "nvidia_docker_collection": collection,
    "nvidia_docker_keeps_images": keeps_images,
    "nvidia_docker_lacking_images": lacking_images,
    "nvidia_docker_plan": plan,
    "nvidia_docker_restarts": restarts,
}

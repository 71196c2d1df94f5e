#!/usr/bin/python3 -IS
# SPDX-License-Identifier: Apache-2.0
"""STAND-IN for nvidia-container-runtime on a virtual board: edits a container's config.json for runc to read.

It keeps the contract of NVIDIA's Container Toolkit on a Jetson: what the CSV lists name is injected for
NVIDIA_VISIBLE_DEVICES=all or 0, nothing when it is unset, empty, `void` or `none`. What becomes of other ids,
and whether config.toml counts, depends on the release (TOOLKITS), which the board's file VERSION names.
Differences: libraries and links are bind mounted (the real one makes links and runs ldconfig by hooks), and
CDI names are not known.

What is the lab's own doing: on a machine that lacks the right to it (CAP_SYS_RESOURCE above all), it clamps
what runc would fail on, such as the kubelet's negative OOM score, and says so in its log. With CLAMP_ONLY it
does that alone: then it stands before runc itself.
"""

import json
import os
import resource
import stat
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

VERSION = Path("/usr/local/lib/jetson-k3s-lab/toolkit-version")
LOG = Path("/var/log/nvidia-container-runtime.log")
CONFIG = Path("/etc/nvidia-container-runtime/config.toml")
CSV_DIRECTORY = Path("/etc/nvidia-container-runtime/host-files-for-container.d")
CSV_FILES = ("devices.csv", "drivers.csv", "l4t.csv")  # what the toolkit reads by default
RELEASE_FILE = "/etc/nv_tegra_release"
VOLUME_MOUNTS = Path("/var/run/nvidia-container-devices")
EVERY_DEVICE = ("all", "0")
NO_DEVICE = ("", "void", "none")
MOUNT_OPTIONS = ["ro", "nosuid", "nodev", "rbind", "rprivate"]

# In the order of their numbers (include/uapi/linux/capability.h).
CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
    "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
    "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
    "CHECKPOINT_RESTORE",
)  # fmt: skip


class Refused(Exception):  # noqa: N818 - a verdict on the container, as the engine shows it
    """The container must not start; the message is what the engine shows."""


@dataclass(frozen=True)
class Toolkit:
    """What a release of the toolkit does with a container's request."""

    honours_keys: bool
    refuses_other_ids: bool


# From which release on, read in NVIDIA/nvidia-container-toolkit by tag. Until 1.9 a hook decides and
# libnvidia-container injects; what that does with other ids is not known.
TOOLKITS = {
    (1, 0): Toolkit(honours_keys=False, refuses_other_ids=False),  # the hook reads the environment only
    (1, 3): Toolkit(honours_keys=True, refuses_other_ids=False),  # its getDevices takes both keys
    (1, 10): Toolkit(honours_keys=False, refuses_other_ids=False),  # csv.go: DevicesFromEnvvars
    (1, 18): Toolkit(honours_keys=True, refuses_other_ids=False),  # csv.go: VisibleDevices, but a spec of all
    (1, 19): Toolkit(honours_keys=True, refuses_other_ids=True),  # csv.go: a spec of the ids (lib-csv.go)
}


def toolkit(version: str) -> Toolkit:
    """Return what a release does; raises Refused for a text that is no version, or one before the first."""
    try:
        wanted = tuple(int(part) for part in version.strip().split(".")[:2])
        return TOOLKITS[max(first for first in TOOLKITS if first <= wanted)]
    except ValueError as error:
        raise Refused(f"{VERSION}: no release of the toolkit: {version.strip()!r}") from error


@dataclass(frozen=True)
class Settings:
    """The keys of config.toml, with the toolkit's defaults."""

    accept_env_when_unprivileged: bool = True
    accept_volume_mounts: bool = False

    @classmethod
    def read(cls, path: Path) -> "Settings":
        try:
            given = tomllib.loads(path.read_text())
        except FileNotFoundError:
            return cls()
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise Refused(f"failed to load config: {path}: {error}") from error
        return cls(
            given.get(
                "accept-nvidia-visible-devices-envvar-when-unprivileged", cls.accept_env_when_unprivileged
            ),
            given.get("accept-nvidia-visible-devices-as-volume-mounts", cls.accept_volume_mounts),
        )


def environment(spec: Mapping[str, Any]) -> dict[str, str]:
    return dict(entry.partition("=")[::2] for entry in spec["process"].get("env") or [])


def requested(spec: Mapping[str, Any], settings: Settings) -> str | None:
    """Return the container's request for devices as it was made, None when it made none that counts."""
    if settings.accept_volume_mounts:
        ids = [
            str(Path(mount["destination"]).relative_to(VOLUME_MOUNTS))
            for mount in spec.get("mounts") or []
            if mount.get("source") == "/dev/null" and VOLUME_MOUNTS in Path(mount["destination"]).parents
        ]
        if ids:
            return ",".join(ids)
    bounding = (spec["process"].get("capabilities") or {}).get("bounding") or []
    if settings.accept_env_when_unprivileged or "CAP_SYS_ADMIN" in bounding:
        return environment(spec).get("NVIDIA_VISIBLE_DEVICES")
    return None


def wants_gpu(request: str | None, release: Toolkit) -> bool:
    """Say whether a request is for the GPU; raises Refused for ids that the release does not take."""
    if request is None or request in NO_DEVICE:
        return False
    for device in request.split(","):
        if release.refuses_other_ids and device not in EVERY_DEVICE:
            raise Refused(
                'failed to generate CDI spec for mode "csv": failed to construct device spec generators: '
                f"unsupported device id: {device}"
            )
    return True


def csv_entries(directory: Path) -> Iterator[tuple[str, str]]:
    """Yield (type, path pattern) of the CSV lists' lines, leaving malformed ones out."""
    for name in CSV_FILES:
        try:
            text = (directory / name).read_text()
        except FileNotFoundError:
            continue
        for line in text.splitlines():
            kind, comma, path = (part.strip() for part in line.partition(","))
            if comma and kind in ("dev", "dir", "lib", "sym") and path.startswith("/"):
                yield kind, path


def injection(directory: Path = CSV_DIRECTORY) -> tuple[list[str], list[str]]:
    """Return the device nodes and the other files that the CSV lists name and the board has."""
    nodes: list[str] = []
    files: list[str] = []
    for kind, pattern in csv_entries(directory):
        target = nodes if kind == "dev" else files
        for path in sorted(map(str, Path("/").glob(pattern.lstrip("/")))):
            if path not in target and (kind != "dev" or is_device(path)):
                target.append(path)
    if Path(RELEASE_FILE).is_file():
        files.append(RELEASE_FILE)
    return nodes, files


def is_device(path: str) -> bool:
    mode = Path(path).stat().st_mode
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)


def inject(spec: dict[str, Any], nodes: Sequence[str], files: Sequence[str]) -> list[str]:
    """Add devices (nodes and the right to use them) and mounts to a container; return what was added.

    What the container has already, such as a device that the kubelet gave it, is left alone.
    """
    linux = spec.setdefault("linux", {})
    devices = linux.setdefault("devices", [])
    rules = linux.setdefault("resources", {}).setdefault("devices", [])
    mounts = spec.setdefault("mounts", [])
    have_devices = {device["path"] for device in devices}
    have_mounts = {mount["destination"] for mount in mounts}
    added = []
    for path in nodes:
        if path in have_devices:
            continue
        node = Path(path).stat()
        kind = "c" if stat.S_ISCHR(node.st_mode) else "b"
        number = {"type": kind, "major": os.major(node.st_rdev), "minor": os.minor(node.st_rdev)}
        owner = {"fileMode": stat.S_IMODE(node.st_mode), "uid": node.st_uid, "gid": node.st_gid}
        devices.append({"path": path, **number, **owner})
        rule = {"allow": True, **number, "access": "rwm"}
        if rule not in rules:
            rules.append(rule)
        added.append(path)
    for path in files:
        if path not in have_mounts:
            # The source of a link is what it points to on the board.
            mounts.append(
                {
                    "destination": path,
                    "source": os.path.realpath(path),
                    "type": "bind",
                    "options": MOUNT_OPTIONS,
                }
            )
            added.append(path)
    return added


def clamp(process: dict[str, Any], mine: set[str]) -> list[str]:
    """Lower what a process asks for to what the board can give; return what was changed, in words.

    `mine` are the capabilities that this process could hand on.
    """
    changed = []
    lost: set[str] = set()
    sets = process.get("capabilities") or {}
    for name, wanted in sets.items():
        lost.update(set(wanted or ()) - mine)
        sets[name] = [capability for capability in wanted or () if capability in mine]
    if lost:
        changed.append(f"capabilities without {' '.join(sorted(lost))}")
    score = process.get("oomScoreAdj")
    if score is not None and not may_set_oom_score(score):
        process["oomScoreAdj"] = max(score, 0)
        changed.append(f"oomScoreAdj {score} -> {process['oomScoreAdj']}")
    if "CAP_SYS_RESOURCE" in mine:
        return changed
    for limit in process.get("rlimits") or []:
        hard = resource.getrlimit(getattr(resource, limit["type"]))[1]
        if hard != resource.RLIM_INFINITY and limit["hard"] > hard:
            changed.append(f"{limit['type']} {limit['hard']} -> {hard}")
            limit["hard"] = hard
            limit["soft"] = min(limit["soft"], hard)
    return changed


def may_set_oom_score(score: int) -> bool:
    """Try whether this process may take an OOM score adjustment; the kernel tells no other way."""
    path = Path("/proc/self/oom_score_adj")
    before = path.read_text()
    try:
        path.write_text(str(score))
    except PermissionError:
        return False
    path.write_text(before)
    return True


def own_capabilities() -> set[str]:
    status = Path("/proc/self/status").read_text()
    mask = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapBnd:"))
    return {f"CAP_{name}" for number, name in enumerate(CAPABILITIES) if mask >> number & 1}


def injected(spec: dict[str, Any]) -> list[str]:
    """Add the devices that the container requests; return the log's words on it."""
    release = toolkit(VERSION.read_text())
    request = requested(spec, Settings.read(CONFIG) if release.honours_keys else Settings())
    done = ",".join(inject(spec, *injection())) or "nothing new" if wants_gpu(request, release) else "nothing"
    return [f"request={request}", f"injected={done}"]


def edit_container(bundle: Path) -> str:
    """Change the config.json of a container about to be made; return the log's words on it."""
    path = bundle / "config.json"
    spec = json.loads(path.read_text())
    said = [f"name={environment(spec).get('HOSTNAME') or spec.get('hostname', '')}"]
    said += ["injected=nothing"] if "CLAMP_ONLY" in os.environ else injected(spec)
    said += clamp_words(clamp(spec["process"], own_capabilities()))
    replace_json(path, spec)
    return " ".join(said)


def edit_process(path: Path) -> str:
    process = json.loads(path.read_text())
    words = clamp_words(clamp(process, own_capabilities()))
    if words:
        replace_json(path, process)
    return " ".join(words)


def clamp_words(changed: list[str]) -> list[str]:
    """Name what was clamped as the lab's doing."""
    return [f"clamped by the lab (this machine lacks the right): {'; '.join(changed)}"] if changed else []


def replace_json(path: Path, content: Mapping[str, Any]) -> None:
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(json.dumps(content))
    fresh.replace(path)


def option(argv: list[str], name: str) -> str | None:
    for position, word in enumerate(argv):
        if word == name and position + 1 < len(argv):
            return argv[position + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None


def log(line: str) -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    with LOG.open("a") as file:
        file.write(f"{stamp} {line}\n")


def fail(argv: list[str], message: str) -> NoReturn:
    """End with an error where the engine reads it: the JSON log that it named, and stderr."""
    if path := option(argv, "--log"):
        entry = {"level": "error", "msg": message, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        with Path(path).open("a") as file:
            file.write(f"{json.dumps(entry)}\n")
    sys.exit(message)


def main(argv: list[str]) -> None:
    if "create" in argv or "run" in argv:
        said = f"{argv[-1]} create"
        try:
            log(f"{said} {edit_container(Path(option(argv, '--bundle') or option(argv, '-b') or '.'))}")
        except (Refused, OSError, ValueError) as error:
            log(f"{said} refused: {error}")
            fail(argv, str(error))
    elif "exec" in argv:
        process = option(argv, "--process") or option(argv, "-p")
        if process and (words := edit_process(Path(process))):
            log(f"{argv[-1]} exec {words}")


if __name__ == "__main__":
    main(sys.argv[1:])

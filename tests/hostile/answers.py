# SPDX-License-Identifier: Apache-2.0
"""Answers of a board: those of a good one, and the same after a hostile board has changed them."""

from __future__ import annotations

import base64
import copy
import functools
import hashlib
import io
import json
import os
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ansible_collections.jetson_k3s.cluster.plugins.module_utils import snapshot_capture

from tests import boards
from tests.unit.roles.preflight_facts import with_facts

Answer = dict[str, Any]

OLD, NEW = "v1.33.4+k3s1", "v1.33.5+k3s1"
IMAGES = ("tegra-device-plugin:1", "rancher/mirrored-pause:3.6")
# In every text of a hostile board: by it the text is found again in what others get.
MARK = "hostile"
RUNS_ON = {"active": True, "enabled": True, "installed": True}


def facts(board: str, asked: float) -> Answer:
    """What role jetson_facts gathers of a board in a cluster with an older K3s."""
    server = board in os.environ.get("SCRIPTED_SERVERS", "jetson-1").split(",")
    k3s = {
        "version": OLD,
        "kubectl": None,
        "files": {"config.yaml.d/50-jetson-k3s.yaml": "docker: true\n"},
        "certificates": {"files": [], "started": 100.0, "valid_days": 365},
        "settings": {"flannel-backend": None, "node-ip": None, "node-name": None},
        "server": {**(RUNS_ON if server else dict.fromkeys(RUNS_ON, False)), "command": "k3s server"},
        "agent": {**(dict.fromkeys(RUNS_ON, False) if server else RUNS_ON), "command": "k3s agent"},
    }
    docker = {"default_runtime": "runc", "images": {}, "containers": 3, "command": "dockerd", **RUNS_ON}
    found = with_facts(
        arch="x86_64",
        hostname=board,
        machine_id=f"id of {board}",
        clock={"board": time.time(), "controller": asked},
        kernel="5.15.148-tegra",
        l4t="36.4.3",
        model="Jetson Orin Nano",
        module="orin-nano",
        soc="tegra234",
        power_mode={"id": 0, "name": "15W"},
        reboot={"required": False, "packages": ["libc6"], "kernel": None},
        jtop={**dict.fromkeys(RUNS_ON, False), "command": None, "program": None, "version": None},
        image_supply={**dict.fromkeys(RUNS_ON, False), "command": None, "program": None, "trusted": []},
    )
    found["k3s"] |= k3s
    found["docker"] |= docker
    if board in os.environ.get("SCRIPTED_PLAIN", "").split(","):
        found |= {"platform": "none", **dict.fromkeys(("jetpack", "l4t", "model", "module", "soc"))}
        found["nvidia_runtime"] = {
            "path": None,
            "version": None,
            "optional_lists": [],
            "config": {"keys": []},
        }
        found["k3s"]["files"] = {}
    return found


def stat(board: str, arguments: Answer) -> Answer:
    """Nothing is there, but K3s, what was just uploaded, and the directory of the owner's Prometheus."""
    if arguments["path"] == "/srv/monitoring":
        return {"stat": {"exists": True, "isdir": True}}
    if arguments["path"] == "/usr/local/bin/k3s":
        return {"stat": {"exists": True, "islnk": True, "lnk_target": f"k3s-{OLD}"}}
    checksum = uploaded_checksum(board, arguments)
    fetched = arguments["path"].endswith((".gpg", "/packages.tar"))
    if fetched or (MARK in arguments["path"] and arguments.get("get_checksum")):
        checksum = hashlib.sha1(content(arguments["path"]), usedforsecurity=False).hexdigest()
    found = {"exists": bool(checksum), "islnk": False, "isdir": False, "checksum": checksum}
    return {"stat": {**found, "lnk_target": ""} if checksum else {"exists": False}}


def uploaded_checksum(board: str, arguments: Answer) -> str:
    """The bundle's own sum where a role asks for the sum of what it has uploaded."""
    if arguments.get("checksum_algorithm") != "sha256":
        return ""
    name = arguments["path"].rpartition("/")[2].removeprefix("jetson-k3s-")
    name = {f"k3s-{NEW}": "k3s-amd64"}.get(name, name)
    sums = json.loads(os.environ["SCRIPTED_SUMS"])
    return next((digest for listed, digest in sums.items() if name.endswith(listed)), "")


def command(_board: str, arguments: Answer) -> Answer:
    argv = arguments.get("argv") or [arguments.get("_raw_params", "")]
    outputs = {
        "DefaultRuntime": "nvidia",
        "labels": json.dumps({"nvidia.com/gpu.count": "1", "jetson-k3s.github.io/soc": "tegra234"}),
        "koordinator-device": json.dumps({"kind": "Device", "metadata": {"name": "jetson-2", "labels": {}}}),
        "--help": "--docker --token --node-label --tls-san",
        "--version": f"k3s version {OLD} (abc)",
        "is-active": "active",
    }
    said = next((text for word, text in outputs.items() if any(word in part for part in argv)), "")
    return {"rc": 0, "stdout": said, "stdout_lines": said.splitlines(), "stderr": "", "stderr_lines": []}


def checks(_board: str, arguments: Answer) -> Answer:
    """A stage of the verification in which every check has passed."""
    now = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
    entry = {"status": "passed", "seconds": 1.0, "evidence": ["as it must be"], "events": []}
    entry |= {"reason": "", "diagnosis": [], "fix": "", "url": ""}
    made = [entry | {"id": one["id"], "title": one["title"]} for one in arguments.get("checks", [])]
    gpu = {"resource": "nvidia.com/gpu", "devices": 1, "replicas": 1, "limited": False}
    software = {"k3s": NEW, "container_runtime": "docker://27", "device_plugin": IMAGES[0]}
    return {
        "part": {"started": now, "ended": now, "checks": made, "gpu": gpu, "software": software}
        | ({arguments["stage"]: {"pod": "p"}} if arguments["stage"].startswith("before_") else {})
    }


def job(_board: str, arguments: Answer) -> Answer:
    """A person's job that has passed, with one file."""
    node = {"known": True, "ready": True, "boot_id": "boot 1", "reason": ""}
    state = {"reason": "", "message": "", "started": "", "finished": "", "ran": True}
    ended = state | {"name": "test", "state": "terminated", "exit_code": 0}
    beside = state | {"name": "jetson-k3s-companion", "state": "running", "exit_code": None}
    pod = {"name": "test-x", "phase": "Running", "reason": "", "message": "", "scheduled": True}
    pod |= {"unscheduled": "", "containers": [ended, beside]}
    first = not arguments.get("cursors")
    samples = '{"temperature": {"gpu-thermal": 45.5}}\n'
    output = {"test": f"hello from {arguments['node']}\n", "jetson-k3s-companion": samples} if first else {}
    seen = {"pod": pod, "job_failed": "", "node": node, "output": output, "cursors": {"test": {"read": 1}}}
    packed = {"path": "/var/lib/x/results.tar", "size": len(RESULTS), "too_large": False}
    steps: dict[str, Answer] = {
        "started": {"started": "2026-01-02T03:04:05.000Z", "node": node},
        "observed": {"seen": seen | {"gpu_memory": {}, "warnings": []}},
        "packed": packed | {"listing": {"files": 1, "bytes": 5}},
        "read": {"content": base64.b64encode(RESULTS).decode()},
        "absent": {},
    }
    return steps[arguments["state"]]


def observed(_board: str, _arguments: Answer) -> Answer:
    """The cluster as role gpu_status observes it."""
    node = {"name": "jetson-1", "ready": True, "labels": {}, "allocatable": {}}
    nothing: Answer = {"pods": [], "devices": [], "claims": [], "tokens": [], "gpu_plugins": []}
    found = {"nodes": [node | {"capacity": {"nvidia.com/gpu": 1}}], **nothing}
    return found | {"answers": {"jetson-1": {"problem": "no answer"}}}


def backup(_board: str, _arguments: Answer) -> Answer:
    name = "k3s-jetson-1-20260102T030405Z.tar.gz.gpg"
    file = {"name": name, "path": f"/var/tmp/b/{name}", "sha256": CONTENT_SHA256}
    return file | {"bytes": len(CONTENT), "datastore": "sqlite"}


def content(path: str) -> bytes:
    """The content of a fetched file: packages as the test has packed them, or the same bytes."""
    packages = os.environ.get("SCRIPTED_PACKAGES")
    return Path(packages).read_bytes() if packages and path.endswith("/packages.tar") else CONTENT


def snapshot(board: str, given: Answer) -> Answer:
    """The snapshot of a simulated board."""
    with tempfile.TemporaryDirectory() as directory:
        boards.build(boards.load()["orinnano-jp6"], Path(directory, board))
        archive = snapshot_capture.capture(
            f"{directory}/{board}", given["tool"], names=given["names"], key=bytes.fromhex(given["key"])
        )
    return {"archive": base64.b64encode(archive).decode()}


def results() -> bytes:
    """The archive of a job's files."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        member = tarfile.TarInfo("report.xml")
        member.size = 5
        tar.addfile(member, io.BytesIO(b"<ok/>"))
    return made.getvalue()


RESULTS = results()
CONTENT = bytes(10240)
CONTENT_SHA256 = hashlib.sha256(CONTENT).hexdigest()
CONTENT_SHA1 = hashlib.sha1(CONTENT, usedforsecurity=False).hexdigest()
TOKEN = "SzEwOjpzZXJ2ZXI6c2VjcmV0"  # base64 of a token
DIFF = {"prepared": ""}
JOB = {"ansible_job_id": "j1.1", "started": 1}

HONEST: dict[str, Callable[[str, Answer], Answer] | Answer] = {
    "jetson_facts": lambda board, given: {
        "ansible_facts": {"jetson": facts(board, float(given["controller_clock"]))}
    },
    "stat": stat,
    "command": command,
    "container_command": command,
    "gpu_checks": checks,
    "gpu_job": job,
    "k3s_observe": observed,
    "k3s_nodes": {
        "installed": True,
        "version": OLD,
        "problem": "",
        "denied": [],
        "ca": "",
        "ranges": {},
        "daemonsets": [],
        "settings": {},
        "gpu_plugins": [],
        "nodes": [
            {"name": "jetson-9", "machine_id": "id of jetson-9", "addresses": ["192.0.2.9"]}
            | {"board": "", "ready": True, "voter": None, "labels": {}}
        ],
    },
    "k3s_backup": backup,
    "snapshot": snapshot,
    "gpu_board": {"engine": {"ServerVersion": "27", "DefaultRuntime": "nvidia"}, "video_group": 44},
    "gpu_api_users": {"users": []},
    "gpu_configurations": {"removed": []},
    "package_holds": {"packages": []},
    "docker_environment": {"restart_due": False, "postponed": False},
    "docker_daemon_config": {"activation": "reload", "postponed": False, "default_runtime": "nvidia"},
    "debs_needed": {"paths": []},
    "file_set": {"postponed": False, "paths": [], "restart_due": True},
    "k3s_ca_rotation": {"begins": True, "open": True, "closed": True, "since": 1.0, "restart_due": False}
    | {"trusts_replaced": True},
    "k3s_join_token": {"restart_due": False},
    "k3s_node": {"allocatable": {}, "cordoned": False, "diff": DIFF},
    "k3s_node_schedule": {
        "known": True,
        "nodes": ["jetson-1"],
        "offers": {"nvidia.com/gpu": 1},
        "capacity": {"nvidia.com/gpu": 1},
        "cordoned": True,
    },
    "os_packages": {
        "updates": {"libc6": "2"},
        "left": {},
        "disruptive": False,
        "summary": "libc6",
    },
    "k3s_token_rotation": {"restart_due": False, "kept": ""},
    "k3s_restore": {
        "snapshot": None,
        "place": "/var/lib/rancher/k3s/server",
        "kept": "/var/lib/rancher/k3s/server.before-1",
    },
    "k3s_user": {
        "api": {"url": "https://127.0.0.1:6443", "ca": "-----BEGIN CERTIFICATE-----\n"},
        "rules": [],
        "others": [],
        "certificate": None,
    },
    "k3s_reset": {"removed": []},
    "nvpmodel": {"id": 1, "reboot_required": False},
    "registry_images": {"missing": []},
    "supplied_images": {"supplied": False, "reason": "no answer"},
    "upload_directory": {"path": "/var/lib/jetson-k3s/uploads/made"},
    "systemd_service": {"status": {"ActiveState": "active"}, "name": "x", "state": "started"},
    "file_texts": {
        "texts": {"ca": "-----BEGIN CERTIFICATE-----\n", "token": f"K10{'c' * 64}::server:secret"},
        "unread": {},
    },
    "slurp": {"content": TOKEN, "encoding": "base64", "source": "/x"},
    "find": {"files": [{"path": "/usr/local/bin/k3s-v1.0"}], "matched": 1, "examined": 1},
    "uri": {"status": 200, "json": {"data": {"activeTargets": []}}},
    "tempfile": {"path": "/var/tmp/made"},
    "ping": {"ping": "pong"},
    "setup": {
        "ansible_facts": {
            "ansible_distribution": "Ubuntu",
            "ansible_distribution_version": "22.04",
            "ansible_os_family": "Debian",
        }
    },
    "async_wrapper": JOB | {"finished": 0, "results_file": "/root/.ansible_async/j1.1"},
    "async_status": JOB | {"finished": 1},
    "copy": {"checksum": CONTENT_SHA1, "dest": "/x", "src": "/y"},
}


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every value that is no list and no dictionary, with the keys that lead there."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key))
    else:
        yield path, value


def changed(answer: Answer, change: Callable[[tuple[str | int, ...], Any], Any]) -> Answer:
    other = copy.deepcopy(answer)
    for path, value in leaves(answer):
        place: Any = other
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = change(path, value)
    return other


def texts(kind: str) -> tuple[str, ...]:
    """Texts that do something where they are taken for more than a text."""
    secret, touched = os.environ["SCRIPTED_SECRET"], os.environ["SCRIPTED_TOUCH"]
    kinds = {
        "templates": (
            "{{ lookup('ansible.builtin.pipe', 'touch " + touched + "-lookup') }}" + MARK,
            "{{ lookup('ansible.builtin.file', '" + secret + "') }}" + MARK,
            "{% set x = lookup('ansible.builtin.pipe', 'touch " + touched + "-block') %}" + MARK,
        ),
        "paths": (f"../../../../../../../../..{touched}-parent-{MARK}", f"{touched}-absolute-{MARK}", secret),
        "options": (f"--all={MARK}", f"*{MARK}", f"$(touch {touched}-shell);touch {touched}-shell\n{MARK}"),
    }
    return kinds[kind]


# What a run needs to get as far as where a hostile answer matters.
KEPT = {
    "arch", "command", "jetpack", "l4t", "version", "platform", "python",
    "exists", "state", "status", "id", "cgroup_driver", "backend", "rc", "activation", "checksum",
    "runc", "sha256", "ansible_job_id", "min_api_version", "kernel", "ping", "hostname",
}  # fmt: skip


def with_texts(answer: Answer, kind: str) -> Answer:
    choice = texts(kind)

    def change(path: tuple[str | int, ...], value: Any) -> Any:
        of_node = path[0] == "nodes" and path[-1] == "name"  # `answers` has it, too
        of_toolkit = {"nvidia_runtime", "config"} <= set(path)  # preflight stops at an unknown mode
        if not isinstance(value, str) or of_node or of_toolkit or KEPT & set(path):
            return value
        return choice[zlib.crc32(repr(path).encode()) % len(choice)]

    return changed(answer, change)


def with_facts_of_others(answer: Answer) -> Answer:
    """Facts and keys that have a meaning for Ansible or the roles."""
    directory = os.environ["SCRIPTED_TOUCH"] + "-facts"
    names = json.loads(os.environ["SCRIPTED_VARIABLES"])
    secret = Path(os.environ["SCRIPTED_SECRET"])
    # Otherwise as the controller's own, so that preflight has no finding.
    files = {
        name: {"sha256": digest, "error": None}
        for name, digest in json.loads(os.environ["SCRIPTED_SUMS"]).items()
    }
    versions = {"k3s_version": NEW, "jtop": {"version": "4.3.2", "wheels": [secret.name]}}
    versions |= dict(zip(("plugin_image", "pause_image"), IMAGES, strict=True))
    bundle: Answer = {
        "path": str(secret.parent),
        "versions": versions,
        "files": {name: one | {"images": {}, "packages": {}} for name, one in files.items()},
        "errors": [],
    }
    shadows = dict.fromkeys(names, directory) | {"jetson_bundle": bundle, "preflight_bundle_info": bundle}
    shadows |= {
        f"ansible_{key}": directory for key in ("host", "connection", "python_interpreter", "check_mode")
    }
    found = answer.get("ansible_facts", {})
    return answer | {
        "ansible_facts": shadows | found,
        "add_host": {"host_name": f"added-{MARK}", "groups": ["server"], "host_vars": {}},
        "add_group": "server",
        "_ansible_delegated_vars": {"ansible_host": directory},
        "ansible_stats": {"data": {"x": MARK}, "per_host": True, "aggregate": True},
    }


def with_other_types(answer: Answer) -> Answer:
    others: tuple[Any, ...] = (None, [], {}, 0, -1, "", [[MARK]], {MARK: MARK}, 10**400, True)
    return changed(answer, lambda path, _: others[zlib.crc32(repr(path).encode()) % len(others)])


# A title of the terminal, a cleared screen, hidden text, CSI in eight bits.
ESCAPES = f"\x1b]0;{MARK}\x07\x1b[2J\x1b[8m\x9b31m\x08\x7f{MARK}\n"


def with_failure(answer: Answer) -> Answer:
    """A task that fails, with escape sequences and templates wherever Ansible prints what a module says."""
    said = ESCAPES + " ".join(texts("templates"))
    trouble = {"failed": True, "msg": said, "exception": f"Traceback:\n{said}", "warnings": [said]}
    return (
        answer | trouble | {"deprecations": [{"msg": said, "version": "9.9"}], "stderr": said, "stdout": said}
    )


ATTACKS: dict[str, Callable[[Answer], Answer]] = {
    **{kind: functools.partial(with_texts, kind=kind) for kind in ("templates", "paths", "options")},
    "facts": with_facts_of_others,
    "types": with_other_types,
    "fails": with_failure,
}
RAW = {
    "garbage": lambda text: b"\x00\xff{{ 1 }}" + text[: len(text) // 2],
    "huge": lambda text: text[:-1] + b', "hostile": "' + b"A" * 10_000_000 + b'"}',
}


@functools.cache
def attacks() -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads(os.environ["SCRIPTED_ATTACKS"])
    return found


def merged(answer: Answer, other: Answer) -> Answer:
    """The answer with other values; those of a dictionary go into its place."""
    both = {key: merged(answer[key], other[key]) for key in other if isinstance(answer.get(key), dict)}
    return answer | other | {key: both[key] for key in both if isinstance(other[key], dict)}


@functools.cache
def others() -> list[Answer]:
    """Other answers of a test, each with its `boards`, `module`, arguments (`has`) and a `text` in them."""
    found: list[Answer] = json.loads(os.environ.get("SCRIPTED_ANSWERS", "[]"))
    return found


def changes(board: str, module: str, arguments: Answer) -> list[Answer]:
    """What a test has this board answer to a call, over what it answers otherwise."""
    given = json.dumps(arguments)
    return [
        other["answer"]
        for other in others()
        if other["module"] == module and board in other["boards"]
        if all(arguments.get(key) == value for key, value in other.get("has", {}).items())
        if other.get("text", "") in given
    ]


def answer(board: str, module: str, arguments: Answer) -> bytes:
    made = HONEST.get(module, {})
    result = {"changed": False, **(made(board, arguments) if callable(made) else made)}
    result = functools.reduce(merged, changes(board, module, arguments), result)
    chosen = attacks().get(board, [])
    for name in chosen:
        if name in ATTACKS:
            result = ATTACKS[name](result)
    text = json.dumps(result).encode()
    for name in chosen:
        if name in RAW and module != "jetson_facts":
            text = RAW[name](text)
    return text

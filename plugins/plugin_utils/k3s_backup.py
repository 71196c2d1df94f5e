# SPDX-License-Identifier: Apache-2.0
"""Backups that are kept, and a restore with several servers: its next step, and where the data are. Pure.

`states` is {inventory name: state} of all servers of the inventory, the first one first. Stages of a state:

- checked: nothing is in the way on this server. prepared: K3s' files are there. Its K3s runs as before.
- stopping: K3s is being stopped. aside: it is stopped, and its data store is kept elsewhere.
- placing: the first server's data are being exchanged. placed: they are those of the backup.
- started: K3s runs with the data of the backup. Only a user can go back to the data from before.
- back: its own data are in place again.

An empty state is that of a server on which a step before has failed. `place` is what is exchanged or moved,
`kept` where the data from before are (null: there were none), `active` whether K3s ran before, and `reason`
why a step has failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ansible.utils.unsafe_proxy import wrap_var
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import board_variables

State = Mapping[str, Any]
States = Mapping[str, State]

# In the names of backups, and the end of the name of one that is not complete.
TIME, PARTIAL = re.compile(r"[0-9]{8}T[0-9]{6}Z"), ".partial"
# What the first server may have while the others' data are still those of the cluster.
UNTOUCHED = ("", "checked", "prepared", "back")


def stage(state: State) -> str:
    """How far a server has come; '' before its checks have passed."""
    return str(state.get("stage", ""))


def all_at(states: States, wanted: str, first: str = "") -> bool:
    """Has each server come so far, without a failure? The `first` one need only be prepared."""
    return all(
        stage(state) == ("prepared" if name == first else wanted) and not state.get("reason")
        for name, state in states.items()
    )


def goes_back(states: States, host: str) -> bool:
    """Are the old data of this further server to be put back?

    Not while the first server may have the data of the backup: there would be two clusters with the same CA.
    """
    first = next(iter(states))
    return stage(states[host]) in ("stopping", "aside") and stage(states[first]) in UNTOUCHED


def command(state: State, record: str) -> str:
    """What brings the data from before back, typed on the server. Without what is kept they are in place."""
    place, kept = state["place"], state["kept"]
    return (
        f"sudo sh -c 'systemctl stop k3s; if [ -e {kept} ]; then [ ! -e {place} ] || "
        f"mv {place} {place}.restored; mv {kept} {place}; fi; rm -f {record}; systemctl start k3s'"
    )


def line(name: str, states: States, lost: bool, failed: bool, record: str) -> str:
    """Where the data of one server are, and what brings them back. One that is `lost` does not answer."""
    state, at = states[name], stage(states[name])
    first = next(iter(states))
    started = stage(states[first]) == "started"
    kept = state.get("kept")
    before = f"Its data from before are in {kept}." if kept else "It had no data before."
    way = ""
    if kept and failed:
        way = "To go back instead, on every server: " if started else "To bring them back: "
        way += command(state, record)
    if at in ("", "checked", "prepared"):
        parts = ["K3s was not stopped, and its data were not touched."]
    elif at == "back":
        runs = "K3s runs with them." if state["active"] else "K3s did not run before, and was not started."
        data = "its data from before are in place again." if kept else "it has no data, as before."
        parts = [data] if state.get("reason") else [data, runs]
    elif at in ("stopping", "placing"):
        if kept:
            before = f"Its data from before are in {kept} or, if that is not there, in {state['place']}."
        parts = ["K3s may be stopped.", before, way]
    elif at == "started":
        parts = ["K3s runs with the data of the backup.", before, way]
    elif at == "placed":
        parts = ["it has the data of the backup, and K3s does not run.", before, way]
    elif started:
        parts = [f"it has no data yet and joins {first} in site.yml.", before, way]
    else:
        parts = ["K3s is stopped.", before, way]
    silent = ["it does not answer any more."] if lost else []
    return f"{name}: {' '.join(filter(None, [*silent, *parts, state.get('reason')]))}"


def problems(states: States, answering: Iterable[str], failures: Mapping[str, str]) -> list[str]:
    """What has stopped the run: `failures` of checks, failed steps, servers that do not answer any more.

    A further server that is lost when the first one is restored stops nothing: it joins when it answers.
    """
    there, first = set(answering), next(iter(states))
    why = {name: str(state["reason"]) for name, state in states.items() if state.get("reason")}
    lost = [
        name for name in states if name not in there and (name == first or stage(states[first]) != "started")
    ]
    return [
        *(f"{name}: {text}" for name, text in ({**failures, **why}).items()),
        *(f"{name} does not answer any more" for name in lost if name not in failures),
    ]


def restored(states: States, answering: Iterable[str], failures: Mapping[str, str]) -> bool:
    """Does the first server run with the data of the backup, and can the others join?"""
    return stage(next(iter(states.values()))) == "started" and not problems(states, answering, failures)


def report(states: States, answering: Iterable[str], failures: Mapping[str, str], record: str) -> str:
    """What happened to the servers, where the data of each are, and how to go on.

    `record` is the file by which a server knows an unfinished restore.
    """
    there = set(answering)
    first = next(iter(states))
    started = stage(states[first]) == "started"
    untouched = all(stage(state) in ("", "checked", "prepared") for state in states.values())
    problem = "; ".join(problems(states, there, failures))
    if not problem and started:
        begin = f"{first} runs with the data of the backup."
    elif started:
        begin = f"{first} runs with the data of the backup, and the run ended: {problem}"
    elif untouched:
        begin = f"Not restored. No server was stopped: {problem}"
    else:
        begin = f"Not restored: {problem}"
    lines = [begin]
    lines += [line(name, states, name not in there, bool(problem), record) for name in states]
    if problem and started:
        lines.append(
            "Repair the cause, then run site.yml: the other servers join again. The backup is restored."
        )
    elif problem:
        lines.append("Repair the cause, then run the same command again.")
    if stage(states[first]) in ("placing", "placed"):
        lines.append(
            f"If K3s on {first} starts with the data of the backup, do not bring the others' data back: "
            "there would be two clusters with the same CA."
        )
    return "\n".join(lines)


def states(servers: Iterable[str], hostvars: board_variables.Hostvars) -> dict[str, State]:
    """How far each server of the inventory has come, also one that does not answer any more."""
    found = board_variables.values_of(servers, hostvars, "k3s_backup_restoring")
    return {name: found.get(name, {}) for name in servers}


def failures(servers: Iterable[str], hostvars: board_variables.Hostvars) -> dict[str, str]:
    """Why each server has failed whose part of the run ended before the restore."""
    progress = board_variables.values_of(servers, hostvars, "rollout_progress")
    return {name: str(one["reason"]) for name, one in progress.items() if one["stage"] == "failed"}


def failure(result: Mapping[str, Any], task: str) -> str:
    """Why a task has failed: the end of its output, else its message."""
    said = " ".join(list(result.get("stderr_lines") or [])[-3:])
    return f"{task}: {said or result.get('msg', 'no reason given')}"


def numbers(version: str) -> tuple[int, ...]:
    """The numbers of K3s' version: v1.33.5+k3s1 and v1.33.5 both give (1, 33, 5)."""
    match = re.match(r"v?(\d+(?:[.]\d+)*)", version)
    if match is None:
        raise ValueError(f"not a version of K3s: {version!r}")
    return tuple(map(int, match.group(1).split(".")))


def readable(of: str, by: str) -> bool:
    """Can this K3s read the backup of that one? Of the same, of an older patch or of the minor before."""
    backed_up, reads = numbers(of), numbers(by)
    return reads >= backed_up and reads[1] - backed_up[1] <= 1


def names(files: Iterable[Mapping[str, Any]]) -> list[str]:
    """Paths that the module find has found, the oldest backup first: each name has its time."""
    return sorted(str(file["path"]) for file in files)


def newer(files: Iterable[Mapping[str, Any]], name: str) -> str:
    """The newest backup, if it is from a later time than the one with this name; else ''."""
    newest = max((path.rpartition("/")[2] for path in names(files)), default="")

    def made(text: str) -> str:
        match = TIME.search(text)
        return match[0] if match else ""

    return newest if made(newest) > made(name) else ""


def outdated(files: Iterable[Mapping[str, Any]], keep: Any) -> list[str]:
    """Paths of all but the newest backups, and of those that are not complete."""
    found = names(files)
    partial = [path for path in found if path.endswith(PARTIAL)]
    complete = [path for path in found if path not in partial]
    return complete[::-1][int(keep) :] + partial


def result(made: Mapping[str, Any], host: str, path: str, record: str, check: bool) -> str:
    """What has become of a backup, for the screen."""
    if check:
        return f"A backup would be made of {host} ({made['datastore']})."
    return (
        f"{path} is a backup of {host} ({made['datastore']}, {round(made['bytes'] / 1e6, 1)} MB). "
        f"playbooks/restore.yml brings it back, with the private key. Its SHA-256 is {made['sha256']}. "
        f"Keep copies elsewhere of the backup, of the key and of {record}."
    )


# Boards' own words stay unsafe.
FILTERS = {
    "k3s_backup_all_at": all_at,
    "k3s_backup_failures": lambda *given: wrap_var(failures(*given)),
    "k3s_backup_failure": lambda *given: wrap_var(failure(*given)),
    "k3s_backup_goes_back": goes_back,
    "k3s_backup_newer": newer,
    "k3s_backup_outdated": outdated,
    "k3s_backup_readable": readable,
    "k3s_backup_restored": restored,
    "k3s_backup_report": lambda *given: wrap_var(report(*given)),
    "k3s_backup_result": lambda *given: wrap_var(result(*given)),
    "k3s_backup_states": states,
}

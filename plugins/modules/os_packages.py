#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Update the installed packages by apt, without those that are to be left alone.

Runs on the board, therefore Python 3.6 compatible.
"""

import fnmatch
import os
import re
import time
from typing import Any, Callable, Dict, List, Tuple

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: os_packages
short_description: Updated packages of the operating system
description:
  - apt gets a preferences file for this call. The owner's preferences and package holds stay in force.
  - Nothing is removed. Configuration files that the owner has changed stay.
options:
  fetch: {type: bool, default: false, description: Only fetch the package lists.}
  security: {type: bool, default: true, description: Only updates of archives that end with C(-security).}
  left:
    description: What is left alone, as C(packages) (patterns of names) and C(sites) (of the archives).
    type: dict
    default: {}
  also:
    description: Patterns of packages that are updated in spite of C(left), from any archive.
    type: list
    elements: str
    default: []
  lock_timeout: {type: int, default: 600, description: Seconds to wait while another program uses apt.}
  http_proxy: {default: '', description: 'Proxy for C(http://), unless files of apt name one.'}
  https_proxy: {default: '', description: 'Proxy for C(https://), as above.'}
  no_proxy: {default: '', description: 'Hosts without a proxy, separated by commas.'}
"""

RETURN = r"""
updates: {type: dict, description: 'What is updated or newly installed, as name to version.'}
disruptive: {type: bool, description: Whether a package is updated that is left alone unless it is named.}
summary: {type: str, description: 'What is updated and what has an update and is left alone, for people.'}
"""

Data = Dict[str, Any]  # parameters, or a result
Run = Callable[..., Tuple[int, str, str]]  # AnsibleModule.run_command: exit status, output, errors

OWNERS_PREFERENCES = "/etc/apt/preferences"
# apt's own words for a package that it would install or update.
CHANGE = re.compile(r"^Inst (\S+) (?:\[\S+\] )?\((\S+) ", re.MULTILINE)
LOCKED = re.compile(
    r"Could not get lock|Unable to (acquire the dpkg frontend lock|lock )|lock was locked by another process"
)
# A line that begins with Err: may be one of several forms of a list, of which another was fetched.
NOT_FETCHED = re.compile(r"(?:W: Failed to fetch|E: ).*")
RETRY_SECONDS = 5
ENVIRONMENT = {
    "DEBIAN_FRONTEND": "noninteractive",
    "APT_LISTCHANGES_FRONTEND": "none",
    # needrestart would restart Docker below its pods.
    "NEEDRESTART_SUSPEND": "1",
    "UCF_FORCE_CONFFOLD": "1",
}
PROXY = ("http_proxy", "https_proxy", "no_proxy")
KEEP_CONFIGURATION = ("--force-confdef", "--force-confold")


class AptError(Exception):
    """apt or dpkg failed; the text is for people."""


def preferences(security: bool, left: Dict[str, List[str]], also: List[str]) -> str:
    """Text of apt_preferences(5). The first record that matches counts; those that name packages come first.

    Priorities: 990 above all others, 100 as installed versions have, 1 below these, -1 never.
    """
    names, sites = left.get("packages", []), left.get("sites", [])
    records = []
    if also:
        records.append((" ".join(also), "release *", 990))
    if names:
        records.append((" ".join(names), "release *", -1))
    records.append(("*", "release a=now", 100))
    records += [("*", 'origin "{}"'.format(site), -1) for site in sites]
    if security:
        records += [("*", "release a=*-security", 990), ("*", "release *", 1)]
    return "".join("Package: {}\nPin: {}\nPin-Priority: {}\n\n".format(*record) for record in records)


def matches(name: str, patterns: List[str]) -> bool:
    """Is the package named by one of the patterns? apt calls one of another architecture NAME:ARCH."""
    package = name.partition(":")[0]
    return any(fnmatch.fnmatchcase(package, pattern) for pattern in patterns)


class Apt:
    """Calls apt-get and dpkg, and waits for other programs that do."""

    def __init__(self, module: AnsibleModule) -> None:
        self.run_command: Run = module.run_command
        self.deadline = time.monotonic() + module.params["lock_timeout"]
        proxy = {name: module.params[name] for name in PROXY if module.params[name]}
        self.environment = dict(ENVIRONMENT, **proxy)

    def run(self, *argv: str) -> str:
        """Output of a program, with its complaints; AptError when it fails."""
        while True:
            code, out, err = self.run_command(list(argv), environ_update=self.environment)
            if code == 0:
                return out + err
            if not LOCKED.search(err) or time.monotonic() > self.deadline:
                raise AptError("{}: {}".format(" ".join(argv), (err.strip() or out.strip())[-2000:]))
            time.sleep(RETRY_SECONDS)

    def fetch(self) -> None:
        """Fetch the package lists; one that cannot be fetched would hide updates."""
        try:
            said = self.run("apt-get", "update")
        except AptError as error:
            said = str(error)
        failed = NOT_FETCHED.findall(said)
        if failed:
            raise AptError(
                "the package lists could not be fetched, so updates may be missing. Repair this archive, or "
                "remove it from /etc/apt/sources.list(.d): {}".format("; ".join(failed))
            )

    def upgrade(self, *options: str) -> str:
        """Output of `apt-get upgrade`, which removes nothing."""
        return self.run("apt-get", "--with-new-pkgs", "--assume-yes", *options, "upgrade")

    def changes(self, *options: str) -> Dict[str, str]:
        """Packages that an upgrade with these options would update or install, {name: version}."""
        return dict(CHANGE.findall(self.upgrade("--simulate", *options)))

    def finish(self) -> None:
        """Configure packages that an interrupted run has left."""
        self.run("dpkg", *KEEP_CONFIGURATION, "--configure", "--pending")


def check_holds(apt: Apt, changes: Dict[str, str], available: Dict[str, str], also: List[str]) -> None:
    """Packages that are named have to be free to change."""
    held = apt.run("apt-mark", "showhold").split()
    named = [name for name in held if matches(name, also) and name in available and name not in changes]
    if named:
        raise AptError(
            "os_update_packages names {0}, which apt-mark holds on this board. Run on the board: "
            "sudo apt-mark unhold {1}   (or take it out of os_update_packages)".format(
                ", ".join(named), " ".join(named)
            )
        )


def summary(changes: Dict[str, str], left: Dict[str, str]) -> str:
    """The update for people."""
    return "\n".join(
        "{}: {}".format(title, ", ".join(" ".join(item) for item in sorted(found.items())) or "nothing")
        for title, found in (("to update", changes), ("left alone", left))
    )


def update(module: AnsibleModule, apt: Apt) -> Data:
    """Update; returns the module's result."""
    params = module.params
    text = preferences(params["security"], params["left"], params["also"])
    if os.path.exists(OWNERS_PREFERENCES):
        with open(OWNERS_PREFERENCES) as stream:
            text += stream.read()
    path = os.path.join(module.tmpdir, "preferences")
    with open(path, "w") as stream:
        stream.write(text)
    option = "--option=Dir::Etc::Preferences=" + path
    if not module.check_mode:
        apt.finish()
    changes = apt.changes(option)
    available = apt.changes("--ignore-hold", "--allow-change-held-packages")
    check_holds(apt, changes, available, params["also"])
    if changes and not module.check_mode:
        keep = tuple("--option=Dpkg::Options::=" + flag for flag in KEEP_CONFIGURATION)
        apt.upgrade(option, *keep)
    left = {name: version for name, version in available.items() if name not in changes}
    return {
        "changed": bool(changes),
        "updates": changes,
        "disruptive": any(matches(name, params["left"].get("packages", [])) for name in changes),
        "summary": summary(changes, left),
    }


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "fetch": {"type": "bool", "default": False},
            "security": {"type": "bool", "default": True},
            "left": {"type": "dict", "default": {}},
            "also": {"type": "list", "elements": "str", "default": []},
            "lock_timeout": {"type": "int", "default": 600},
            "http_proxy": {"type": "str", "default": "", "no_log": True},
            "https_proxy": {"type": "str", "default": "", "no_log": True},
            "no_proxy": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LC_ALL": "C", "LANG": "C"}
    apt = Apt(module)
    result: Data = {"changed": False}
    try:
        if not module.params["fetch"]:
            result = update(module, apt)
        elif not module.check_mode:
            apt.fetch()
            result["changed"] = True
    except AptError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()

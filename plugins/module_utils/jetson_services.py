# SPDX-License-Identifier: Apache-2.0
"""Configuration of the services on a board: units, daemon.json, K3s, jtop.

Runs on the board, therefore Python 3.6 compatible.
"""

import glob
import json
import os
import re
import shlex
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.bundle_archive import sha256
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_board import (
    first,
    parse_version,
    read,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.redact import redact, redact_data

# Flags of dockerd whose key in daemon.json has another name (moby cmd/dockerd/config*.go).
FLAG_KEYS = {
    "D": "debug",
    "G": "group",
    "H": "hosts",
    "add-runtime": "runtimes",
    "authorization-plugin": "authorization-plugins",
    "b": "bridge",
    "cdi-spec-dir": "cdi-spec-dirs",
    "cluster-store-opt": "cluster-store-opts",
    "default-address-pool": "default-address-pools",
    "default-network-opt": "default-network-opts",
    "default-ulimit": "default-ulimits",
    "dns-opt": "dns-opts",
    "exec-opt": "exec-opts",
    "feature": "features",
    "g": "data-root",
    "graph": "data-root",
    "host": "hosts",
    "insecure-registry": "insecure-registries",
    "l": "log-level",
    "label": "labels",
    "log-opt": "log-opts",
    "node-generic-resource": "node-generic-resources",
    "p": "pidfile",
    "registry-mirror": "registry-mirrors",
    "s": "storage-driver",
    "storage-opt": "storage-opts",
}

# Where pip, Debian's Python and our role jtop put packages; jetson-stats insists on the system's Python.
PACKAGES = (
    "usr/lib/python3*/dist-packages",
    "usr/local/lib/python3*/dist-packages",
    "usr/local/lib/jetson-k3s/jtop-*",
)
JTOP = "usr/local/bin/jtop"
# The second line of the program that role jtop writes.
JTOP_OWN = "\n# Written by Ansible (role jtop)."

# Where K3s reads its configuration (pkg/configfilearg/parser.go); a file is far smaller than this.
K3S_DIRECTORY, K3S_FILE = "etc/rancher/k3s", "config.yaml"
K3S_FILE_BYTES = 1 << 16
# Settings of K3s that are facts.
SETTINGS = ("data-dir", "node-name")
# Role k3s lets it lead to a program with its version in the name.
K3S_LINK = "usr/local/bin/k3s"
# Data of a server whose data store is embedded etcd.
ETCD = "var/lib/rancher/k3s/server/db/etcd"
# K3s' tokens on a server, and the role's file for releases of K3s that write no `agent-token`.
SERVERS_TOKEN = "var/lib/rancher/k3s/server/token"  # noqa: S105 - a file
AGENTS_TOKENS = ("var/lib/rancher/k3s/server/agent-token", "etc/rancher/k3s/jetson-k3s.agent-token")
# What comes before the secret in a token that K3s has written (pkg/clientaccess/token.go).
BEFORE_SECRET = re.compile("^K10[0-9a-f]{64}::[^:]+:")
# Role k3s_backup has not finished a restore while this file exists.
UNFINISHED_RESTORE = "var/lib/rancher/k3s/restore.json"
# K3s' short names of these settings (pkg/cli/cmds); K3s takes them as keys, too.
SHORT = {"d": "data-dir", "i": "node-ip"}
# A key with its value, or the first of several, in a file of K3s; a flag with its value. Switches have none.
KEY = re.compile(
    r"""(?:^|[{,])[ \t]*["']?([\w-]+)["']?\+?[ \t]*:(?:[ \t]+|(?=["'\[\n]|$))["'\[]*([^\s"'\],}]*)""",
    re.MULTILINE,
)
FLAG = re.compile(r"\s--?([\w-]+)(?:=|\s+(?!-))?(\S*)")
# Environment files of K3s' units, from the template of role k3s and from K3s' install.sh.
K3S_ENVIRONMENT = ("/etc/default/{}", "/etc/sysconfig/{}", "/etc/systemd/system/{}.service.env")

# Files with credentials of registries, K3s' own and the kubelet's for Docker, and how role k3s begins each.
REGISTRIES, OWN = "etc/rancher/k3s/registries.yaml", "# Written by Ansible (role k3s)"
CREDENTIALS, OWN_JSON = "var/lib/kubelet/config.json", '{\n    "written-by": "Ansible (role k3s)'

# The certificate of a registry of role image_supply; its directory has the registry's name.
SUPPLY_TRUST = "etc/docker/certs.d/*/jetson-k3s.crt"


Properties = Dict[str, str]  # of a unit


def parse_units(text: str) -> Dict[str, Properties]:
    """Output of `systemctl show` on several units, as {unit: {property: value}}; repeated ones as lines."""
    units = {}
    for block in text.strip().split("\n\n"):
        properties: Properties = {}
        for line in block.splitlines():
            key, _, value = line.partition("=")
            properties[key] = properties[key] + "\n" + value if key in properties else value
        if "Id" in properties:
            units[properties["Id"]] = properties
    return units


def unit_state(properties: Properties) -> Dict[str, Any]:
    """Facts about one unit. Facts are printed, so its command has no secrets."""
    exec_start = re.search(r"argv\[\]=(.*?) ;", redact(properties.get("ExecStart", "")))
    return {
        "installed": properties.get("LoadState") == "loaded",
        "active": properties.get("ActiveState") == "active",
        "enabled": properties.get("UnitFileState") == "enabled",
        "command": exec_start.group(1) if exec_start else None,
    }


def words(text: str) -> List[str]:
    """Words of a line as a shell divides it; a line with an open quote is divided at its blanks."""
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return text.split()


def environment(root: str, properties: Properties) -> Dict[str, str]:
    """The variables that a unit gives its program, files after settings as in systemd.exec(5)."""
    values = dict(pair.split("=", 1) for pair in words(properties.get("Environment", "")) if "=" in pair)
    for entry in properties.get("EnvironmentFiles", "").splitlines():
        for line in (read(root, entry.split(" (")[0].lstrip("/")) or "").splitlines():
            name, sign, value = line.strip().partition("=")
            if sign and not name.startswith(("#", ";")):
                values[name] = " ".join(words(value))
    return values


def arguments(command: Optional[str], variables: Dict[str, str]) -> List[str]:
    """A unit's command as arguments, variables put in as by systemd: `$A` as words, `${A}` as text."""
    result = []
    for word in (command or "").split():
        if re.match(r"^\$\w+$", word):
            result.extend(variables.get(word[1:], "").split())
        else:
            result.append(re.sub(r"\$\{(\w+)\}", lambda match: variables.get(match.group(1), ""), word))
    return result


def _unique(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    """An object of JSON. ValueError names a key that occurs twice: parsers keep only the last value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError("the key {} occurs twice".format(next(key for key in keys if keys.count(key) > 1)))
    return found


def daemon_json(root: str) -> Dict[str, Any]:
    """State of Docker's configuration file: {exists, error, config}; the error names line and column.

    Its proxies may have passwords, which are left out.
    """
    text = read(root, "etc/docker/daemon.json")
    if text is None or not text.strip():
        return {"exists": text is not None, "error": None, "config": {}}
    try:
        config = json.loads(text, object_pairs_hook=_unique)
    except ValueError as error:
        return {"exists": True, "error": str(error), "config": {}}
    if not isinstance(config, dict):
        return {"exists": True, "error": "the top level is not a JSON object", "config": {}}
    return {"exists": True, "error": None, "config": redact_data(config)}


def daemon_flags(command_line: Sequence[str]) -> Dict[str, str]:
    """Flags of dockerd, each with its key in daemon.json: dockerd refuses to start with both."""
    return {flag: key for flag, key, _ in _flags(command_line)}


def daemon_values(command_line: Sequence[str]) -> Dict[str, List[str]]:
    """Values of dockerd's flags by their key in daemon.json. A switch without a value is `true`."""
    values: Dict[str, List[str]] = {}
    for _, key, value in _flags(command_line):
        values.setdefault(key, []).append(value)
    return values


def _flags(command_line: Sequence[str]) -> Iterator[Tuple[str, str, str]]:
    """(flag, key, value) of each flag. dockerd has no arguments but flags and their values."""
    words = list(command_line[1:])
    for number, word in enumerate(words):
        if not word.startswith("-"):
            continue
        flag, sign, value = word.partition("=")
        if not flag.startswith("--"):
            flag, value = word[:2], word[2:].lstrip("=")  # -Hfd:// and -H fd:// are the same
            sign = value
        if not sign:
            following = words[number + 1 : number + 2]
            value = following[0] if following and not following[0].startswith("-") else "true"
        name = flag.lstrip("-")
        yield flag, FLAG_KEYS.get(name, name), value


def k3s_files(root: str) -> Dict[str, str]:
    """K3s' configuration files without secrets and comment lines, by their path below /etc/rancher/k3s.

    They are in K3s' order of reading. The controller parses them: a board may have no YAML parser.
    """
    directory = os.path.join(root, K3S_DIRECTORY, K3S_FILE + ".d")
    names = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
    paths = [K3S_FILE] + [
        "{}.d/{}".format(K3S_FILE, name) for name in names if name.lower().endswith((".yaml", ".yml"))
    ]
    texts = ((path, read(root, os.path.join(K3S_DIRECTORY, path), K3S_FILE_BYTES)) for path in paths)
    return {path: re.sub(r"(?m)^[ \t]*#.*$", "", redact(text)) for path, text in texts if text is not None}


def k3s_environment(root: str, units: Dict[str, Properties]) -> Dict[str, Dict[str, str]]:
    """K3s' own variables in the environment of its units, by the unit's name."""
    found = {}
    for name in ("k3s", "k3s-agent"):
        unit = units.get(name + ".service", {})
        files = [path.format(name) for path in K3S_ENVIRONMENT] + unit.get(
            "EnvironmentFiles", ""
        ).splitlines()
        given = environment(
            root, {"Environment": unit.get("Environment", ""), "EnvironmentFiles": "\n".join(files)}
        )
        found[name] = redact_data({key: value for key, value in given.items() if key.startswith("K3S_")})
    return found


def k3s_given(files: Dict[str, str], command: Optional[str]) -> List[Tuple[str, str]]:
    """[(setting, value)] of K3s' `files`, and after them of a unit's command. A switch has the value ''."""
    pairs = [pair for text in files.values() for pair in KEY.findall(text)] + FLAG.findall(command or "")
    return [(SHORT.get(name, name), value) for name, value in pairs]


def k3s_settings(files: Dict[str, str], command: Optional[str]) -> Dict[str, Optional[str]]:
    """K3s' present settings, null if neither its `files` nor its unit's command set them.

    A flag has priority over all files, and a later file over earlier ones.
    """
    found = dict.fromkeys(SETTINGS)
    found.update((name, value) for name, value in k3s_given(files, command) if name in found and value)
    return found


def active_binary(root: str) -> Optional[Dict[str, str]]:
    """Path and SHA-256 of the program that the link to K3s leads to; None without it."""
    path = os.path.realpath(os.path.join(root, K3S_LINK))
    return {"path": path, "sha256": sha256(path)} if os.path.isfile(path) else None


def on_etcd(root: str) -> bool:
    """Does this server have data of embedded etcd?"""
    return os.path.isdir(os.path.join(root, ETCD))


def agents_join_with(root: str) -> Optional[str]:
    """Which token the cluster of this server has for agents: 'own', or 'servers'. None without a cluster."""
    servers, agents = read(root, SERVERS_TOKEN), first([read(root, path) for path in AGENTS_TOKENS])
    if not servers:
        return None
    return "servers" if BEFORE_SECRET.sub("", agents or servers) == BEFORE_SECRET.sub("", servers) else "own"


def unfinished_restore(root: str) -> Optional[str]:
    """Where an unfinished restore has kept the server's data, '' without data; None without a restore."""
    text = read(root, UNFINISHED_RESTORE)
    if text is None:
        return None
    try:
        return str(json.loads(text)["kept"] or "")
    except (KeyError, TypeError, ValueError):
        return ""


def author(root: str, path: str, own: str) -> Optional[str]:
    """Who has written a file, 'role' if it begins like the role's `own`, or 'owner'; None without a file.

    The text itself is no fact: it may have passwords.
    """
    text = read(root, path)
    if text is None:
        return None
    return "role" if text.startswith(own) else "owner"


def registries(root: str) -> Optional[str]:
    """Who has written K3s' registries.yaml."""
    return author(root, REGISTRIES, OWN)


def credentials(root: str) -> Optional[str]:
    """Who has written the kubelet's config.json."""
    return author(root, CREDENTIALS, OWN_JSON)


def image_supply_facts(root: str, unit: Properties, program: Optional[str]) -> Dict[str, Any]:
    """The registry that role image_supply runs on one board, and those that this board trusts."""
    trust = glob.glob(os.path.join(root, SUPPLY_TRUST))
    state = unit_state(unit)
    state["program"] = program
    state["trusted"] = sorted(os.path.basename(os.path.dirname(path)) for path in trust)
    return state


def jtop_facts(root: str, unit: Properties) -> Dict[str, Any]:
    """jtop: the newest jetson-stats for the system's Python, and its service."""
    found = [
        parse_version(r"jetson_stats-(\d+(?:\.\d+)*)", os.path.basename(path))
        for directory in PACKAGES
        for path in glob.glob(os.path.join(root, directory, "jetson_stats-*-info"))
    ]
    versions = [version for version in found if version]
    state = unit_state(unit)
    program = read(root, JTOP)
    state["program"] = None if program is None else "role" if JTOP_OWN in program else "owner"
    state["version"] = max(versions, key=lambda text: [int(part) for part in text.split(".")], default=None)
    return state

# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's config.toml: what its container runtime gives a container.

Runs on the board, therefore Python 3.6 compatible, which has no parser of TOML. This one reads the part of
TOML that NVIDIA's programs write, and does not guess: other text is broken, or not read.
"""

import glob
import os
import re
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_board import read
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_commands import Commands
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.redact import redact_data

Data = Dict[str, Any]

RUNTIME_CONFIG = "etc/nvidia-container-runtime/config.toml"
# Keys of config.toml, all of the top level, and their values in strict mode of role nvidia_docker.
STRICT = (
    ("accept-nvidia-visible-devices-envvar-when-unprivileged", "false"),
    ("accept-nvidia-visible-devices-as-volume-mounts", "true"),
)
OURS = "  # jetson-k3s: strict"
THEIRS = "#jetson-k3s# "
# The lists that the toolkit reads for each image (csv.BaseFilesOnly).
BASE_LISTS = ("devices.csv", "drivers.csv", "l4t.csv")
# Where L4T has the driver's library, and Yocto.
LIBCUDA = (
    "usr/lib/aarch64-linux-gnu/*/libcuda.so*",
    "usr/lib/aarch64-linux-gnu/libcuda.so*",
    "usr/lib/libcuda.so*",
)

BARE = re.compile(r"[A-Za-z0-9_-]+")
BASIC = re.compile(r'"((?:[^"\\\x00-\x1f]|\\.)*)"')
LITERAL = re.compile(r"'([^'\x00-\x1f]*)'")
INTEGER = re.compile(r"[+-]?(?:0|[1-9](?:_?[0-9])*)(?![\w.:+-])")
BOOLEAN = re.compile(r"(true|false)(?![\w-])")
SPACE = re.compile(r"[ \t]*")
# Between values of an array.
GAP = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
END = re.compile(r"[ \t]*(?:#[^\n]*)?\r?(?:\n|$)")
# TOML that is not read here: strings of several lines, tables in a line, other numbers, dates and times.
OTHER = re.compile(r"\"\"\"|'''|\{|[+-]?(?:[0-9]|inf|nan)")
ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\"}


class Broken(ValueError):  # noqa: N818 - it is the file's
    """The text is not TOML: NVIDIA's runtime starts no container with it."""


class Unread(ValueError):  # noqa: N818 - it is the file's
    """The text may be TOML of a form that is not known here."""


class Reader:
    """A text and the place in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def take(self, pattern: "re.Pattern[str]") -> "Optional[re.Match[str]]":
        """The match of a pattern at the place, which is then after it."""
        match = pattern.match(self.text, self.at)
        if match:
            self.at = match.end()
        return match

    def accept(self, text: str) -> bool:
        """Is this text at the place? The place is then after it."""
        found = self.text.startswith(text, self.at)
        self.at += len(text) if found else 0
        return found

    def place(self, what: str) -> str:
        """A message with the number of the line."""
        return "line {}: {}".format(self.text.count("\n", 0, self.at) + 1, what)

    def string(self) -> Optional[str]:
        """A string in one line, None if there is none."""
        if self.text.startswith(('"""', "'''"), self.at):
            return None
        match = self.take(LITERAL)
        if match:
            return match.group(1)
        match = self.take(BASIC)
        return (
            None
            if match is None
            else re.sub(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", self.escaped, match.group(1))
        )

    def escaped(self, match: "re.Match[str]") -> str:
        """The character that an escape stands for."""
        code = match.group(1)
        if len(code) > 1:
            return chr(int(code[1:], 16))
        if code not in ESCAPES:
            raise Broken(self.place("the escape \\{} is none of TOML".format(code)))
        return ESCAPES[code]

    def key(self) -> List[str]:
        """The parts of a key, such as `a.b`."""
        parts = []
        while True:
            self.take(SPACE)
            part = self.string()
            if part is None:
                match = self.take(BARE)
                if match is None:
                    raise Broken(self.place("a key is expected"))
                part = match.group()
            parts.append(part)
            self.take(SPACE)
            if not self.accept("."):
                return parts

    def value(self) -> Any:
        """A value, also an array of values."""
        text = self.string()
        if text is not None:
            return text
        match = self.take(BOOLEAN)
        if match:
            return match.group() == "true"
        match = self.take(INTEGER)
        if match:
            return int(match.group().replace("_", ""))
        if self.accept("["):
            return self.array()
        raise (Unread if OTHER.match(self.text, self.at) else Broken)(self.place("this value is not read"))

    def array(self) -> List[Any]:
        """The values up to the closing bracket."""
        values = []
        self.take(GAP)
        while not self.accept("]"):
            values.append(self.value())
            self.take(GAP)
            if not self.accept(",") and not self.text.startswith("]", self.at):
                raise Broken(self.place("a comma or ] is expected"))
            self.take(GAP)
        return values


def table_at(root: Data, parts: List[str], reader: Reader) -> Data:
    """The table at a path, made if it is missing."""
    table = root
    for part in parts:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise Broken(reader.place("{} is a value and a table".format(part)))
    return table


def parse_toml(text: str) -> Data:
    """The tables of a text. Raises Broken and Unread, which name the line."""
    reader = Reader(text)
    root: Data = {}
    table = root
    headers: Set[Tuple[str, ...]] = set()
    while reader.at < len(text):
        if reader.take(END):
            continue
        reader.take(SPACE)
        if reader.accept("[["):
            raise Unread(reader.place("an array of tables is not read"))
        if reader.accept("["):
            parts = reader.key()
            if not reader.accept("]"):
                raise Broken(reader.place("] is expected"))
            if tuple(parts) in headers:
                raise Broken(reader.place("the table {} occurs twice".format(".".join(parts))))
            headers.add(tuple(parts))
            table = table_at(root, parts, reader)
        else:
            parts = reader.key()
            if not reader.accept("="):
                raise Broken(reader.place("= is expected after the key {}".format(".".join(parts))))
            reader.take(SPACE)
            value = reader.value()
            place = table_at(table, parts[:-1], reader)
            if parts[-1] in place:
                raise Broken(reader.place("the key {} occurs twice".format(".".join(parts))))
            place[parts[-1]] = value
        if not reader.take(END):
            raise Broken(reader.place("the end of the line is expected"))
    return root


def strict_config(text: str, strict: bool) -> str:
    """config.toml with the keys of strict mode, or as its owner had it; exactly reversible."""
    lines = [
        line[len(THEIRS) :] if line.startswith(THEIRS) else line
        for line in text.splitlines()
        if not line.endswith(OURS)
    ]
    if strict:
        table = next(
            (number for number, line in enumerate(lines) if line.lstrip().startswith("[")), len(lines)
        )
        names = tuple(key for key, _ in STRICT)
        top = [THEIRS + line if line.split("=")[0].strip() in names else line for line in lines[:table]]
        lines = ["{} = {}{}".format(key, value, OURS) for key, value in STRICT] + top + lines[table:]
    return "".join(line + "\n" for line in lines)


def flat(table: Data, above: str = "") -> Dict[str, Any]:
    """The values of all tables by their full key, such as `nvidia-container-cli.root`."""
    found: Dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found.update(flat(value, above + key + "."))
        else:
            found[above + key] = value
    return found


def config_facts(commands: Commands, root: str) -> Data:
    """The file as its owner has it, without the lines of strict mode, and what it names that is not there.

    `values` has the tables as in the file, `keys` the full names of all its keys, `problems` a text in the
    place of a value.
    """
    text = read(root, RUNTIME_CONFIG)
    facts: Data = {
        "exists": text is not None,
        "broken": None,
        "unread": None,
        "values": {},
        "keys": [],
        "problems": {},
    }
    if text is None:
        return facts
    try:
        values = parse_toml(strict_config(text, False))
    except Unread as error:
        return dict(facts, unread=str(error))
    except Broken as error:
        return dict(facts, broken=str(error))
    keys = flat(values)
    problems = path_problems(commands, root, keys)
    found: Data = redact_data(dict(facts, values=values, keys=sorted(keys), problems=nested(problems)))
    return found


def nested(flat_keys: Dict[str, str]) -> Data:
    """Tables again, because a rule names a fact by its path."""
    tables: Data = {}
    for key, value in flat_keys.items():
        parts = key.split(".")
        table = tables
        for part in parts[:-1]:
            table = table.setdefault(part, {})
        table[parts[-1]] = value
    return tables


def path_problems(commands: Commands, root: str, keys: Dict[str, Any]) -> Dict[str, str]:
    """What is wrong on this board with a path or a program of a key; keys that are all right are left out."""
    checks: Dict[str, Callable[[Any], Optional[str]]] = {
        "nvidia-container-cli.root": lambda value: driver_root_problem(root, value),
        "nvidia-container-cli.path": lambda value: program_problem(commands, value),
        "nvidia-container-cli.ldcache": lambda value: file_problem(root, value),
        "nvidia-container-cli.ldconfig": lambda value: ldconfig_problem(root, value),
        "nvidia-container-runtime.runtimes": lambda value: runtimes_problem(commands, value),
        "nvidia-container-runtime.modes.csv.mount-spec-path": lambda value: lists_problem(root, value),
        "nvidia-container-runtime-hook.path": lambda value: program_problem(commands, value),
        "nvidia-ctk.path": lambda value: program_problem(commands, value),
    }
    found = {}
    for key, check in checks.items():
        # Another type is a mistake that the runtime reports by itself; an empty text is the default.
        value = keys.get(key)
        fits = isinstance(value, list if key.endswith(".runtimes") else str)
        problem = check(value) if value and fits else None
        if problem:
            found[key] = problem
    return found


def driver_root_problem(root: str, value: str) -> Optional[str]:
    """Is the driver below this directory?"""
    place = os.path.join(root, value.strip("/"))
    if not os.path.isdir(place):
        return "there is no directory {}".format(value)
    if value.strip("/") and not any(glob.glob(os.path.join(place, pattern)) for pattern in LIBCUDA):
        return "there is no libcuda.so below {}".format(value)
    return None


def lists_problem(root: str, value: str) -> Optional[str]:
    """Are NVIDIA's lists in this directory?"""
    place = os.path.join(root, value.strip("/"))
    if any(os.path.isfile(os.path.join(place, name)) for name in BASE_LISTS):
        return None
    return "there is none of {} in {}".format(", ".join(BASE_LISTS), value)


def file_problem(root: str, value: str) -> Optional[str]:
    """Is there such a file?"""
    return (
        None if os.path.isfile(os.path.join(root, value.lstrip("/"))) else "there is no file {}".format(value)
    )


def ldconfig_problem(root: str, value: str) -> Optional[str]:
    """Is the board's ldconfig there? A path without @ is one of the container."""
    return file_problem(root, value[1:]) if value.startswith("@") else None


def program_problem(commands: Commands, value: str) -> Optional[str]:
    """Is there such a program?"""
    return None if commands.path(value) else "there is no program {}".format(value)


def runtimes_problem(commands: Commands, value: Any) -> Optional[str]:
    """Which low-level runtime is started? The first one that is there."""
    names = [name for name in value if isinstance(name, str)]
    first = next((name for name in names if commands.path(name)), None)
    if first is None:
        return "there is no program {}".format(", ".join(names))
    if os.path.basename(first).startswith("nvidia-container-runtime"):
        return "{} is NVIDIA's own runtime, which would start itself".format(first)
    return None

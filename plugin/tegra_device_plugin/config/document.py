# SPDX-License-Identifier: Apache-2.0
"""Reads a YAML (or JSON) file strictly: every value is asked for by name and type, and has a line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import yaml

from tegra_device_plugin.system.yamlloader import Loader

T = TypeVar("T")

_TYPES = {
    "tag:yaml.org,2002:str": "text",
    "tag:yaml.org,2002:bool": "true or false",
    "tag:yaml.org,2002:int": "a number",
    "tag:yaml.org,2002:float": "a number",
    "tag:yaml.org,2002:null": "nothing",
    "tag:yaml.org,2002:map": "a mapping",
    "tag:yaml.org,2002:seq": "a list",
}
_MAX_BYTES = 1 << 20  # no ConfigMap is larger


class Document:
    """A file; collects what is wrong with it in `problems`, and what has no effect in `notes`.

    `root` is None if the file could not be read at all.
    """

    def __init__(self, path: Path) -> None:
        self.problems: list[str] = []
        self.notes: list[str] = []
        self._path = path
        self.root = self._read()

    def _read(self) -> Section | None:
        try:
            with self._path.open("rb") as file:
                content = file.read(_MAX_BYTES)
            node = yaml.compose(content, Loader=Loader)
        except yaml.MarkedYAMLError as error:
            self.problem(error.problem_mark, f"not YAML: {error.problem}")
        except (OSError, ValueError, yaml.YAMLError) as error:
            self.problems.append(f"{self._path}: {error.strerror if isinstance(error, OSError) else error}")
        else:
            if isinstance(node, yaml.MappingNode):
                return Section(self, "", node)
            self.problems.append(f"{self._path}:1: a mapping that begins with `version: v1` is needed")
        return None

    def problem(self, mark: yaml.Mark | None, text: str) -> None:
        """Note what is wrong at a place of the file."""
        self.problems.append(f"{self._where(mark)}: {text}")

    def note(self, mark: yaml.Mark | None, text: str) -> None:
        """Note what has no effect at a place of the file."""
        self.notes.append(f"{self._where(mark)}: {text}")

    def _where(self, mark: yaml.Mark | None) -> str:
        return f"{self._path}:{mark.line + 1}" if mark else str(self._path)


class Section:
    """A mapping in the file. Each key is taken once; `finish` refuses the keys that nobody took."""

    def __init__(self, document: Document, path: str, node: yaml.MappingNode) -> None:
        self._document = document
        self._path = path
        self._node = node
        self._known: list[str] = []
        self._values: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            name = str(key.value)
            if name in self._values:
                document.problem(key.start_mark, f"{self._name(name)} is given twice")
            self._values[name] = (key, value)

    def text(self, key: str, parse: Callable[[str], T], *, required: bool = False) -> T | None:
        """Give a text, parsed; None if absent or wrong."""
        node = self._take(key, "tag:yaml.org,2002:str", required=required)
        return None if node is None else self._parse(key, node, node.value, parse)

    def option(self, key: str, parse: Callable[[str], T]) -> T | None:
        """Give what could also be a flag: a text, a boolean, or a list of texts, parsed."""
        node = self._take(key)
        if isinstance(node, yaml.SequenceNode) and all(
            isinstance(item, yaml.ScalarNode) for item in node.value
        ):
            return self._parse(key, node, ",".join(item.value for item in node.value), parse)
        if isinstance(node, yaml.ScalarNode):
            return self._parse(key, node, node.value, parse)
        if node is not None:
            self._document.problem(node.start_mark, f"{self._name(key)} must be text, not {_type(node)}")
        return None

    def boolean(self, key: str, *, only: bool | None = None) -> bool | None:
        """Give a boolean, None if absent or wrong; `only` is the one value that can work."""
        node = self._take(key, "tag:yaml.org,2002:bool")
        if node is None:
            return None
        value = yaml.SafeLoader.bool_values[node.value.lower()]
        if only is not None and value != only:
            self._document.problem(node.start_mark, f"{self._name(key)}: allowed: {str(only).lower()}")
        return value

    def integer(self, key: str, least: int, most: int, *, required: bool = False) -> int | None:
        """Give a whole number between `least` and `most`, None if absent or wrong."""
        node = self._take(key, "tag:yaml.org,2002:int", required=required)

        def parse(text: str) -> int:
            if not text.isdecimal() or not least <= int(text) <= most:
                raise ValueError(f"allowed: {least} to {most}")
            return int(text)

        return None if node is None else self._parse(key, node, node.value, parse)

    def section(self, key: str) -> Section | None:
        """Give a mapping, None if absent, empty or wrong."""
        node = self._take(key, "tag:yaml.org,2002:map", "tag:yaml.org,2002:null")
        return Section(self._document, self._name(key), node) if isinstance(node, yaml.MappingNode) else None

    def sections(self, key: str) -> list[Section]:
        """Give a list of mappings, empty if absent, empty or wrong."""
        node = self._take(key, "tag:yaml.org,2002:seq", "tag:yaml.org,2002:null")
        found = []
        for number, item in enumerate(node.value if isinstance(node, yaml.SequenceNode) else ()):
            name = f"{self._name(key)}[{number}]"
            if isinstance(item, yaml.MappingNode):
                found.append(Section(self._document, name, item))
            else:
                self._document.problem(item.start_mark, f"{name} must be a mapping, not {_type(item)}")
        return found

    def ignore(self, *keys: str) -> None:
        """Accept keys that have no effect."""
        for key in keys:
            node = self._take(key)
            if node is not None:
                self._document.note(node.start_mark, f"{self._name(key)} has no effect in this plugin")

    def problem(self, text: str) -> None:
        """Refuse the section as a whole."""
        self._document.problem(self._node.start_mark, f"{self._path}: {text}")
        self._values.clear()

    def finish(self) -> None:
        """Refuse the keys that were not taken."""
        for key, (node, _) in self._values.items():
            self._document.problem(
                node.start_mark, f"{self._name(key)} is not known; allowed: {', '.join(sorted(self._known))}"
            )

    def _take(self, key: str, *tags: str, required: bool = False) -> yaml.Node | None:
        self._known.append(key)
        _, node = self._values.pop(key, (None, None))
        if node is None:
            if required:
                self._document.problem(self._node.start_mark, f"{self._name(key)} is missing")
            return None
        if tags and node.tag not in tags:
            wanted = _TYPES[tags[0]]
            self._document.problem(node.start_mark, f"{self._name(key)} must be {wanted}, not {_type(node)}")
            return None
        return node

    def _parse(self, key: str, node: yaml.Node, text: str, parse: Callable[[str], T]) -> T | None:
        try:
            return parse(text)
        except ValueError as error:
            self._document.problem(node.start_mark, f"{self._name(key)}: {text!r}: {error}")
            return None

    def _name(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key


def _type(node: yaml.Node) -> str:
    return _TYPES.get(node.tag, f"a value of type {node.tag}")

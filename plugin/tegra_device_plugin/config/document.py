# SPDX-License-Identifier: Apache-2.0
"""Reads a YAML (or JSON) file strictly: by key and type, with the line of each value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import yaml

T = TypeVar("T")

# Both loaders are safe. libyaml is ten times faster; PyYAML's wheels have it on the image's platforms.
Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_TEXT = "tag:yaml.org,2002:str"
_BOOLEAN = "tag:yaml.org,2002:bool"
_INTEGER = "tag:yaml.org,2002:int"
_NULL = "tag:yaml.org,2002:null"
_MAPPING = "tag:yaml.org,2002:map"
_LIST = "tag:yaml.org,2002:seq"
_TYPES = {
    _TEXT: "text",
    _BOOLEAN: "true or false",
    _INTEGER: "a number",
    "tag:yaml.org,2002:float": "a number",
    _NULL: "nothing",
    _MAPPING: "a mapping",
    _LIST: "a list",
}
_TRUTH = yaml.SafeLoader.bool_values
_MAX_BYTES = 1 << 20  # no ConfigMap is larger
_MAX_DEPTH = 64  # NVIDIA's schema has 6 levels; yaml.compose recurses in C until the stack overflows


class Document:
    """A file; collects its errors in `problems`, and its keys without effect in `notes`.

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
                content = file.read(_MAX_BYTES + 1)
            if len(content) > _MAX_BYTES:
                self.problem(None, f"larger than {_MAX_BYTES} bytes: no ConfigMap is")
                return None
            if place := _too_deep(content):
                self.problem(place, f"nested deeper than {_MAX_DEPTH} levels")
                return None
            node = yaml.compose(content, Loader=Loader)
        except yaml.MarkedYAMLError as error:
            self.problem(error.problem_mark, f"not YAML: {error.problem}")
        except (OSError, ValueError, yaml.YAMLError) as error:
            self.problem(None, getattr(error, "strerror", None) or str(error))
        else:
            if isinstance(node, yaml.MappingNode):
                return Section(self, "", node)
            self.problems.append(f"{self._path}:1: a mapping is needed, such as `version: v1`")
        return None

    def problem(self, mark: yaml.Mark | None, text: str) -> None:
        """Add an error at a place of the file, on one line."""
        self.problems.append(f"{self._where(mark)}: {' '.join(text.split())}")

    def note(self, mark: yaml.Mark | None, text: str) -> None:
        """Add a key without effect at a place of the file."""
        self.notes.append(f"{self._where(mark)}: {text}")

    def _where(self, mark: yaml.Mark | None) -> str:
        return f"{self._path}:{mark.line + 1}" if mark else str(self._path)


class Section:
    """A mapping in the file. Each key is read once; `finish` rejects the keys that were not read."""

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
        node = self._pop(key, _TEXT, required=required)
        return None if node is None else self._parse(key, node, node.value, parse)

    def option(
        self, key: str, parse: Callable[[str], T], *, many: bool = False, required: bool = False
    ) -> T | None:
        """Give a key that is also a flag, parsed: text, boolean, or with `many` a list of texts."""
        node = self._pop(key, required=required)
        if node is None:
            return None
        items = node.value if many and isinstance(node, yaml.SequenceNode) else [node]
        for item in items:
            if not isinstance(item, yaml.ScalarNode):
                self._document.problem(item.start_mark, f"{self._name(key)} must be text, not {_type(item)}")
                return None
        return self._parse(key, node, ",".join(map(_as_flag, items)), parse)

    def boolean(self, key: str, *, only: bool | None = None) -> bool | None:
        """Give a boolean, None if absent or wrong; `only` is the one value that can work."""
        node = self._pop(key, _BOOLEAN)
        if node is None:
            return None
        value = _TRUTH[node.value.lower()]
        if only is not None and value != only:
            self._document.problem(node.start_mark, f"{self._name(key)}: allowed: {str(only).lower()}")
        return value

    def integer(self, key: str, least: int, most: int, *, required: bool = False) -> int | None:
        """Give an integer between `least` and `most`, None if absent or wrong."""
        node = self._pop(key, _INTEGER, required=required)

        def parse(text: str) -> int:
            # Not 010, which is 8 in YAML.
            if not text.isdecimal() or text.startswith("0") or not least <= int(text) <= most:
                raise ValueError(f"allowed: {least} to {most}")
            return int(text)

        return None if node is None else self._parse(key, node, node.value, parse)

    def section(self, key: str) -> Section | None:
        """Give a mapping, None if absent, empty or wrong."""
        node = self._pop(key, _MAPPING, _NULL)
        return Section(self._document, self._name(key), node) if isinstance(node, yaml.MappingNode) else None

    def sections(self, key: str, *, required: bool = False) -> list[Section]:
        """Give a list of mappings, empty if absent, empty (which `required` rejects) or wrong."""
        node = self._pop(key, _LIST, *(() if required else (_NULL,)), required=required)
        if not isinstance(node, yaml.SequenceNode):
            return []
        if required and not node.value:
            self._document.problem(node.start_mark, f"{self._name(key)} is empty")
        found = []
        for number, item in enumerate(node.value):
            name = f"{self._name(key)}[{number}]"
            if isinstance(item, yaml.MappingNode):
                found.append(Section(self._document, name, item))
            else:
                self._document.problem(item.start_mark, f"{name} must be a mapping, not {_type(item)}")
        return found

    def ignore(self, *keys: str) -> None:
        for key in keys:
            node = self._pop(key)
            if node is not None:
                self._document.note(node.start_mark, f"{self._name(key)} has no effect in this plugin")

    def problem(self, text: str) -> None:
        self._document.problem(self._node.start_mark, f"{self._path}: {text}")

    def finish(self) -> None:
        for key, (node, _) in self._values.items():
            self._document.problem(
                node.start_mark, f"{self._name(key)} is not known; allowed: {', '.join(sorted(self._known))}"
            )

    def _pop(self, key: str, *tags: str, required: bool = False) -> yaml.Node | None:
        self._known.append(key)
        _, node = self._values.pop(key, (None, None))
        if node is None:
            if required:
                self._document.problem(self._node.start_mark, f"{self._name(key)} is missing")
            return None
        if tags and _tag(node) not in tags:
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


def _too_deep(content: bytes) -> yaml.Mark | None:
    """Give the place where the document has too many levels. Raises YAMLError."""
    depth = 0
    for event in yaml.parse(content, Loader=Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            return event.start_mark  # type: ignore[return-value]  # libyaml's Mark is alike
    return None


def _tag(node: yaml.Node) -> str | None:
    """Give the type of a node, also under a tag of its own; None if value and tag contradict each other."""
    if isinstance(node, yaml.MappingNode):
        return _MAPPING
    if isinstance(node, yaml.SequenceNode):
        return _LIST
    if node.tag in (_MAPPING, _LIST) or (node.tag == _BOOLEAN and node.value.lower() not in _TRUTH):
        return None
    return node.tag


def _type(node: yaml.Node) -> str:
    return _TYPES.get(_tag(node) or "", f"a value of type {node.tag}")


def _as_flag(node: yaml.ScalarNode) -> str:
    return str(_TRUTH[node.value.lower()]).lower() if _tag(node) == _BOOLEAN else node.value

# SPDX-License-Identifier: Apache-2.0
"""Reads a YAML (or JSON) file strictly: by key and kind, with the line of each value."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

if TYPE_CHECKING:
    from yaml import BaseLoader as _BaseLoader
else:  # libyaml is ten times faster; PyYAML's wheels have it on the image's platforms
    _BaseLoader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)

T = TypeVar("T")

_NULLS = ("", "~", "null", "Null", "NULL")


class _Mapping(dict[Hashable, Any]):
    """A mapping with the line of its start and the lines of its keys."""

    line: int
    lines: dict[str, int]


class _Loader(_BaseLoader):
    """Reads every scalar as text: the reader of a key knows the key's type."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> _Mapping:
        found = _Mapping(super().construct_mapping(node, deep))
        found.line = node.start_mark.line + 1
        found.lines = {key.value: key.start_mark.line + 1 for key, _ in node.value}
        if len(found) < len(node.value):
            raise yaml.MarkedYAMLError(problem="a key is given twice", problem_mark=node.start_mark)
        return found


class Document:
    """A file; collects its errors in `problems`, and its keys without effect in `notes`.

    `root` is None if the file could not be read at all.
    """

    def __init__(self, path: Path) -> None:
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.path = path
        self.root: Section | None = None
        try:
            content = yaml.load(path.read_bytes(), _Loader)  # noqa: S506 - it makes text, lists and mappings only
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            self.problem(line, f"not YAML: {error.problem}")
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
            self.problem(None, getattr(error, "strerror", None) or str(error))
        else:
            if isinstance(content, _Mapping):
                self.root = Section(self, "", content)
            else:
                self.problem(1, "a mapping is needed, such as `version: v1`")

    def problem(self, line: int | None, text: str) -> None:
        """Add an error at a line of the file, on one line."""
        place = f"{self.path}:{line}" if line else str(self.path)
        self.problems.append(f"{place}: {' '.join(text.split())}")


class Section:
    """A mapping in the file. Each key is read once; `finish` rejects the keys that were not read."""

    def __init__(self, document: Document, path: str, content: _Mapping) -> None:
        self._document = document
        self._path = path
        self._content = content
        self._known: list[str] = []

    def text(
        self, key: str, parse: Callable[[str], T], *, many: bool = False, required: bool = False
    ) -> T | None:
        """Give a value, parsed; None if absent or wrong. With `many` it may be a list."""
        value = self._get(key, required=required)
        items = value if many and isinstance(value, list) else [value]
        if value is None:
            return None
        for item in items:
            if not isinstance(item, str):
                self._reject(key, f" must be text, not {_kind(item)}")
                return None
        text = ",".join(items)
        return self.check(key, text, parse)

    def __contains__(self, key: str) -> bool:
        return key in self._content

    def check(self, key: str, text: str, parse: Callable[[str], T]) -> T | None:
        """Parse a text that is derived from the key's value; None if it is wrong."""
        try:
            return parse(text)
        except ValueError as error:
            self._reject(key, f": {text!r}: {error}")
            return None

    def texts(self, key: str, parse: Callable[[str, str], tuple[str, str]]) -> tuple[tuple[str, str], ...]:
        """Give the pairs of a mapping with any keys, parsed; none if absent. Leaves out the wrong ones."""
        section = self.section(key)
        if section is None:
            return ()
        pairs = (section.text(name, partial(parse, name)) for name in section._content.lines)
        return tuple(pair for pair in pairs if pair)

    def integer(self, key: str, minimum: int, maximum: int, *, required: bool = False) -> int | None:
        """Give an integer between `least` and `most`, None if absent or wrong."""

        def parse(text: str) -> int:
            # Not 010, which is 8 in YAML.
            if not text.isdecimal() or text.startswith("0") or not minimum <= int(text) <= maximum:
                raise ValueError(f"allowed: {minimum} to {maximum}")
            return int(text)

        return self.text(key, parse, required=required)

    def section(self, key: str) -> Section | None:
        """Give a mapping, None if absent, empty or wrong."""
        value = self._get(key)
        if isinstance(value, _Mapping):
            return Section(self._document, self._name(key), value)
        if value is not None and value not in _NULLS:
            self._reject(key, f" must be a mapping, not {_kind(value)}")
        return None

    def sections(self, key: str, *, required: bool = False) -> list[Section]:
        """Give a list of mappings, empty if absent, empty (which `required` rejects) or wrong."""
        value = self._get(key, required=required)
        if not isinstance(value, list):
            if value is not None and (required or value not in _NULLS):
                self._reject(key, f" must be a list, not {_kind(value)}")
            return []
        if required and not value:
            self._reject(key, " is empty")
        found = []
        for number, item in enumerate(value):
            if isinstance(item, _Mapping):
                found.append(Section(self._document, f"{self._name(key)}[{number}]", item))
            else:
                self._reject(key, f"[{number}] must be a mapping, not {_kind(item)}")
        return found

    def ignore(self, *keys: str) -> None:
        for key in keys:
            if self._get(key) is not None:
                place = f"{self._document.path}:{self._content.lines[key]}"
                self._document.notes.append(f"{place}: {self._name(key)} has no effect in this plugin")

    def problem(self, text: str) -> None:
        self._document.problem(self._content.line, f"{self._path}: {text}")

    def finish(self) -> None:
        for key in self._content.lines:
            if key not in self._known:
                self._reject(key, f" is not known; allowed: {', '.join(sorted(self._known))}")

    def _get(self, key: str, *, required: bool = False) -> Any:
        self._known.append(key)
        if required and key not in self._content:
            self._document.problem(self._content.line, f"{self._name(key)} is missing")
        return self._content.get(key)

    def _reject(self, key: str, text: str) -> None:
        self._document.problem(self._content.lines[key], f"{self._name(key)}{text}")

    def _name(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key


def _kind(value: object) -> str:
    if isinstance(value, _Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list) else "text"

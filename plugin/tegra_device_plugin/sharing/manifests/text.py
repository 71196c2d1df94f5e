# SPDX-License-Identifier: Apache-2.0
"""Reads Kubernetes manifests with the line of each value, and replaces keys in their text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import yaml

_KEY_OF_A_PATH = re.compile(r"[A-Za-z][A-Za-z0-9]*")


class ManifestError(ValueError):
    """The text is not YAML, or a key in it cannot be replaced. The text begins with the line."""


@dataclass(frozen=True)
class Field:
    """One key of a mapping, with its value."""

    key: str
    path: str
    """Such as `spec.containers[0].resources`."""
    line: int
    _key_node: yaml.Node
    _value: yaml.Node

    @property
    def text(self) -> str:
        """The value as text; empty for a mapping or a list."""
        return self._value.value if isinstance(self._value, yaml.ScalarNode) else ""

    @property
    def section(self) -> Section:
        """The value as a mapping; without keys for another value."""
        return Section(self._value, self.path)

    @property
    def sections(self) -> list[Section]:
        """The value as a list of mappings; empty for another value."""
        items = self._value.value if isinstance(self._value, yaml.SequenceNode) else ()
        return [Section(item, f"{self.path}[{number}]") for number, item in enumerate(items)]

    @property
    def start(self) -> tuple[int, int]:
        """Line and column of the key, from 0."""
        return self._key_node.start_mark.line, self._key_node.start_mark.column

    @property
    def end(self) -> tuple[int, int]:
        """Line and column behind the value, from 0."""
        return self._value.end_mark.line, self._value.end_mark.column


class Section:
    """A mapping of the manifest. Other values have no keys."""

    def __init__(self, node: yaml.Node, path: str) -> None:
        self.line = node.start_mark.line + 1
        self.fields: Mapping[str, Field] = {}
        if isinstance(node, yaml.MappingNode):
            pairs = ((key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode))
            self.fields = {
                key.value: Field(key.value, _join(path, key.value), key.start_mark.line + 1, key, value)
                for key, value in pairs
            }

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields.values())

    def find(self, *keys: str) -> Field | None:
        """Give the field at a path of keys, None if a key is absent."""
        section, found = self, None
        for key in keys:
            found = section.fields.get(key)
            if found is None:
                return None
            section = found.section
        return found

    def text(self, *keys: str) -> str:
        """Give the text at a path of keys, empty if there is none."""
        found = self.find(*keys)
        return found.text if found else ""

    def section(self, *keys: str) -> Section:
        """Give the mapping at a path of keys, without keys if there is none."""
        found = self.find(*keys)
        return found.section if found else _NOTHING

    def sections(self, *keys: str) -> list[Section]:
        """Give the mappings of the list at a path of keys, none if there is no list."""
        found = self.find(*keys)
        return found.sections if found else []


_MARK = yaml.Mark("", 0, 0, 0, None, 0)
_NOTHING = Section(yaml.ScalarNode("", "", _MARK, _MARK), "")


def _join(path: str, key: str) -> str:
    if not _KEY_OF_A_PATH.fullmatch(key):
        return f'{path}["{key}"]'
    return f"{path}.{key}" if path else key


def objects(text: str) -> list[Section]:
    """Give the objects of a file, also those of a List. Raises ManifestError."""
    try:
        nodes = list(yaml.compose_all(text, yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ManifestError(f"{line}: not YAML: {' '.join(str(error.problem).split())}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ManifestError(f"1: not YAML: {' '.join(str(error).split())}") from error
    found = [Section(node, "") for node in nodes if isinstance(node, yaml.MappingNode)]
    return [one for section in found for one in (section.sections("items") or [section])]


class Replacement(NamedTuple):
    """Lines in the place of a key and its value; none: the key is removed."""

    field: Field
    lines: tuple[str, ...]


def replace(text: str, replacements: Sequence[Replacement]) -> str:
    """Replace keys in the text. Raises ManifestError for a key that shares its line with another one.

    A comment behind a replaced value is removed, because it describes that value.
    """
    lines = text.splitlines()
    for one in sorted(replacements, key=lambda one: one.field.start, reverse=True):
        (first, column), (last, end) = one.field.start, one.field.end
        before, after = lines[first][:column], lines[last][end:].strip()
        if before.strip(" -") or (after and not after.startswith("#")):
            raise ManifestError(f"{first + 1}: several keys on one line: write each on a line of its own")
        if before.strip() and not one.lines:
            raise ManifestError(
                f"{first + 1}: the first key of a list item cannot be removed: remove it by hand"
            )
        indented = [f"{' ' * column}{line}" for line in one.lines]
        if indented:
            indented[0] = before + one.lines[0]
        lines[first : last + 1] = indented
    return "\n".join(lines) + "\n"

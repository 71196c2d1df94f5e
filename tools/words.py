# SPDX-License-Identifier: Apache-2.0
"""Reject words that hide the meaning: in pages, comments, docstrings, messages, names and JSON."""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import yaml

CHECKOUT = Path(__file__).parents[1]
TESTS = CHECKOUT / "tests"
# Each hides which term of Kubernetes or Ansible is meant: allocate, release, lock, keep, roll back,
# immediately or simultaneously. Everyday words that do not mislead are none of this list's.
WORDS = (
    *("sold", "sells?", "given out", "gives? back", "gave back", "(its|their|a|whose) turn", "taker"),
    *("farewell", "holds?", "held", "way back", "at once", "of then", "of before", "import the"),
)
BANNED = re.compile(rf"\b({'|'.join(WORDS)})\b", re.IGNORECASE)
# A term of apt, also in names, and one of pods: in the first two its context says so.
ALLOWED = re.compile(r"apt(-mark)? hold|packages? holds?|holds? (\w+ )?packages?")
IN_NAMES = re.compile(r"\b(holds?|held)\b")
CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
PROSE_KEYS = {
    *("name", "msg", "fail_msg", "success_msg", "description", "short_description"),
    *("title", "fix", "why", "notes", "summary"),
}
TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
C_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
HASH_COMMENT = re.compile(r"(?:^|\s)#.*", re.MULTILINE)
CODE = re.compile(r"^```.*?^```|`[^`\n]*`|<a id=[^>]*>|\]\([^)]*\)", re.DOTALL | re.MULTILINE)
COMMENTED = {".c", ".h", ".go", ".sh", ".toml", ".cfg"}
BLANKS = 3
"""Of a text in Python that is a sentence. Identifiers, paths and commands have fewer."""

Text = tuple[int, str]
"""The line of its beginning, and the text."""


def matches(pattern: re.Pattern[str], text: str) -> Iterator[Text]:
    for match in pattern.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match[0]


def python(text: str, *, literals: bool) -> Iterator[Text]:
    """Comments and docstrings; with `literals` all other strings, too."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    nodes = list(ast.walk(ast.parse(text)))
    docstrings = [node.value for node in nodes if isinstance(node, ast.Expr)]
    for node in nodes if literals else docstrings:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") >= BLANKS:
            yield node.lineno, node.value


def names(text: str) -> Iterator[Text]:
    """Each name that a file in Python defines, as words."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.arg(arg=name)
                | ast.Name(id=name, ctx=ast.Store())
            ):
                yield node.lineno, as_words(name)


def as_words(name: str) -> str:
    """A name as words; apt's hold of a package is its own term."""
    return IN_NAMES.sub("", CAMEL.sub("_", name).replace("_", " ").lower())


def json_text(text: str) -> Iterator[Text]:
    """Each line, with its keys as words."""
    for number, line in enumerate(text.splitlines(), 1):
        key, _, value = line.rpartition('":')
        yield number, as_words(key.rpartition('"')[2])
        yield number, value


def yaml_text(text: str) -> Iterator[Text]:
    yield from matches(HASH_COMMENT, text)
    for document in yaml.compose_all(text, yaml.SafeLoader):
        yield from scalars(document, prose=False)


def scalars(node: yaml.Node | None, *, prose: bool) -> Iterator[Text]:
    """Texts below keys that people read."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from scalars(value, prose=key.value in PROSE_KEYS)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from scalars(item, prose=prose)
    elif isinstance(node, yaml.ScalarNode) and prose:
        yield node.start_mark.line + 1, TEMPLATE.sub("", node.value)


def texts(suffix: str, text: str, *, literals: bool) -> Iterator[Text]:
    """Yield what people read in a file."""
    if suffix == ".py":
        return chain(python(text, literals=literals), names(text))
    if suffix == ".json":
        return json_text(text)
    if suffix == ".md":
        return iter([(1, CODE.sub(lambda match: "\n" * match[0].count("\n"), text))])
    if suffix in (".yml", ".yaml"):
        return yaml_text(text)
    comment = {".c": C_COMMENT, ".h": C_COMMENT, ".go": C_COMMENT}.get(suffix, HASH_COMMENT)
    return matches(comment, text) if suffix in COMMENTED else iter([])


def banned(suffix: str, text: str, *, literals: bool = True) -> Iterator[Text]:
    """Yield each banned word of a file, with its line."""
    for start, part in texts(suffix, text, literals=literals):
        for number, line in enumerate(part.splitlines(), start):
            for match in BANNED.finditer(ALLOWED.sub("", line)):
                yield number, f"{match[0]!r} in {line.strip()!r}"


def main() -> int:
    command = ["git", "-C", str(CHECKOUT), "ls-files", "-z"]
    listed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    paths = [CHECKOUT / name for name in listed.split("\0") if "templates/" not in name]
    found = [
        f"{path.relative_to(CHECKOUT)}:{number}: {what}"
        for path in paths
        if path.is_file() and path.suffix and path.name != Path(__file__).name
        # Tests quote messages, which are found where they are written.
        for number, what in banned(
            path.suffix, path.read_text(errors="replace"), literals=TESTS not in path.parents
        )
    ]
    sys.stdout.write("".join(f"{line}\n" for line in found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())

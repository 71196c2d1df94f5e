# SPDX-License-Identifier: Apache-2.0
"""Reject words that hide the meaning: in pages, comments, docstrings, messages and names of tasks."""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import yaml

CHECKOUT = Path(__file__).parents[1]
TESTS = CHECKOUT / "tests"
BANNED = re.compile(
    r"\b(sold|sells?|given out|gives? back|gave back|(its|their|a|whose) turn|look(s|ed|ing)?(?! up)|told"
    r"|asked|holds?|held|heard|lives?|life|taker|rooms?|eyes?|word|farewell|way back|troubles?|whole|at once"
    r"|begun|whoever|whatever|anew|of then|of before|import the)\b",
    re.IGNORECASE,
)
# Terms of apt and of Kubernetes.
ALLOWED = re.compile(r"apt(-mark)? hold|packages? holds?|holds? (\w+ )?packages?|lifecycle")
PROSE_KEYS = {
    *("name", "msg", "fail_msg", "success_msg", "description", "short_description"),
    *("title", "fix", "why", "notes", "summary"),
}
TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
C_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
HASH_COMMENT = re.compile(r"(?:^|\s)#.*", re.MULTILINE)
CODE = re.compile(r"^```.*?^```|`[^`\n]*`|<a id=[^>]*>|\]\([^)]*\)", re.DOTALL | re.MULTILINE)
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
        return python(text, literals=literals)
    if suffix == ".md":
        return iter([(1, CODE.sub(lambda match: "\n" * match[0].count("\n"), text))])
    if suffix in (".yml", ".yaml"):
        return yaml_text(text)
    if suffix in (".c", ".h", ".go"):
        return matches(C_COMMENT, text)
    if suffix in (".sh", ".toml", ".cfg"):
        return matches(HASH_COMMENT, text)
    return iter([])


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

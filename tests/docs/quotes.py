# SPDX-License-Identifier: Apache-2.0
"""Messages, lines of logs and paths that the documents quote, and whether the sources print them.

A source's text is a list of words in which a gap stands for a value: what an f-string, a format, Jinja or
`printf` puts there. A quote has gaps, too: `...`, and placeholders in capitals such as BOARD.
"""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import yaml

from tests.docs import CHECKOUT
from tests.docs.commands import PROMPT
from tests.docs.markdown import Document
from tools.process import run

GAP = ""
Words = tuple[str, ...]

SOURCES = re.compile(
    r"(images|playbooks|plugin|plugins|release|roles|tools|meta|\.github|docs/(ci|examples))/"
    r"|(Makefile|ansible\.cfg|galaxy\.yml|install\.sh|inventory\.example|jetson-k3s|pyproject\.toml)$"
)
NO_SOURCES = re.compile(r"\.(md|svg|png|ptx|txt)$|/words\.py$")
NEVER = -1000
_SEAMS = (r"\s{2,}", r" : ", r": ", r" \(|\)$", r"\. ", r"; ", r", ")
MOST_OF_A_QUOTE, MOST_OF_A_VALUE = 15, 6
"""Words of a source that `...` leaves out, and words of a quote that one value has."""

# Of Jinja: what is no value.
_BLOCK = re.compile(r"\{%.*?%\}", re.DOTALL)
_VALUE = re.compile(
    r"\{\{.*?\}\}|\$\{\w+[^}]*\}|\$\w+|\{\w*(?:[.\[][^{}\s]*)?(?:![rs])?(?::[^{}\s]*)?\}|%-?[\d.]*(?:l|ll|z)?[sdrfux]",
    re.DOTALL,
)
_PLACEHOLDER = re.compile(r"\.\.\.|…|<\w+>|\b(?:[A-Z]{4,}|N|ID|DIR)\b")
_EDGES = "\"'`,;:.()[]{}<>!?|\\*"
# A word that is a value where it is no word of the source: a number, a name of an example, a path.
_EXAMPLE = re.compile(r".*[\d/@=].*|.*\w[.:]\w.*|utc")
_C_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_HASH_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\n]*")
# The end of a string and the beginning of its next part.
_JOINT = re.compile(r"\"\s*\n?\s*\"")


def words(text: str) -> Words:
    """The words of a text, whose values are zero bytes."""
    found = ((GAP if "\0" in word else word.strip(_EDGES).lower()) for word in text.split())
    return tuple(word for word, raw in zip(found, text.split(), strict=True) if word or "\0" in raw)


def of_python(text: str) -> Iterator[str]:
    """Strings without docstrings."""
    nodes = list(ast.walk(ast.parse(text)))
    left_out = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    left_out |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            yield node.value
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg


def of_yaml(text: str) -> Iterator[str]:
    """Keys and values."""
    todo = list(yaml.compose_all(text, yaml.SafeLoader))
    while todo:
        node = todo.pop()
        if isinstance(node, yaml.MappingNode):
            todo += [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            todo += node.value
        elif isinstance(node, yaml.ScalarNode):
            yield node.value


def texts_of(path: Path) -> Iterator[str]:
    """What a file prints or sets, without its comments; values as zero bytes."""
    text = path.read_text()
    if path.suffix == ".py":
        found = of_python(text)
    elif path.suffix in (".yml", ".yaml") and path.parent.name != "templates":
        found = of_yaml(text)
    elif path.suffix in (".c", ".h", ".go", ".proto"):
        found = iter([_JOINT.sub("", _C_COMMENT.sub("", text))])
    else:
        found = iter([_HASH_COMMENT.sub("", text)])
    for one in found:
        yield _VALUE.sub("\0", _BLOCK.sub(" ", one))


class Corpus:
    """Texts of sources, with an index of their words."""

    def __init__(self, texts: list[str]) -> None:
        self.raw = "\n".join(" ".join(text.split()).lower() for text in texts)
        self.templates = list({words(text): None for text in texts})
        self._complete = {tuple(plain(template)) for template in self.templates}
        self._by_word: dict[str, set[int]] = defaultdict(set)
        for number, template in enumerate(self.templates):
            for word in template:
                self._by_word[word].add(number)

    def has(self, quote: str) -> bool:
        """Whether a source prints the quote: in these words, with other values, or in parts."""
        return self._has(quote) or self._has_parts(quote)

    def _has(self, quote: str) -> bool:
        return self.says(quote) or self._prints(self._words(quote))

    def _has_parts(self, quote: str) -> bool:
        """Whether the quote is put together: of a message and its reason, or of a list's items."""
        for where in _SEAMS:
            parts = [part for part in re.split(where, quote) if plain(self._words(part))]
            if parts and all(part != quote and self._is_part(part) for part in parts):
                return True
        return False

    def _is_part(self, part: str) -> bool:
        """Whether a source prints a part. One word has to be a complete text of a source."""
        own = self._words(part)
        if tuple(plain(own)) in self._complete or (len(plain(own)) > 1 and self._has(part)):
            return True
        return self._has_parts(part)

    @staticmethod
    def _words(quote: str) -> Words:
        return words(_PLACEHOLDER.sub("\0", quote))

    def says(self, quote: str) -> bool:
        """Whether a source has exactly this text, at the borders of words."""
        plain = " ".join(quote.split()).lower()
        at = self.raw.find(plain)
        while at >= 0:
            around = self.raw[at - 1 : at] + self.raw[at + len(plain) : at + len(plain) + 1]
            if not re.search(r"[\w-]", around):
                return True
            at = self.raw.find(plain, at + 1)
        return False

    def _prints(self, quote: Words) -> bool:
        own = plain(quote)
        if not own:
            return False
        numbers = Counter(number for word in set(own) for number in self._by_word.get(word, ()))
        fewest = min(len(set(own)), max(1, enough(own)))
        return any(
            count >= fewest and aligned(quote, self.templates[number]) for number, count in numbers.items()
        )


def plain(quote: Words) -> list[str]:
    """The words of a quote that are no values of an example."""
    return [word for word in quote if word and not _EXAMPLE.fullmatch(word)]


def enough(own: list[str]) -> int:
    """How many plain words of a quote a source has to have itself: a value can be a plain word, too."""
    return len(own) - len(own) // 5


def aligned(quote: Words, template: Words) -> bool:
    """Whether the quote is a part of the template, where gaps on each side stand for words of the other."""
    least = enough(plain(quote))

    @cache
    def literal(at: int, place: int, gap: int) -> int:
        """The most plain words in common from here on; below zero if the rest does not fit."""
        if at == len(quote):
            return 0
        if place == len(template):
            return 0 if quote[at:] == (GAP,) else NEVER
        if quote[at] == GAP:
            longer = literal(at, place + 1, gap + 1) if gap < MOST_OF_A_QUOTE else NEVER
            return max(literal(at + 1, place, 0), longer)
        if template[place] == GAP:
            longer = literal(at + 1, place, gap + 1) if gap < MOST_OF_A_VALUE else NEVER
            return max(literal(at, place + 1, 0), longer)
        if quote[at] != template[place]:
            return NEVER
        return literal(at + 1, place + 1, 0) + (not _EXAMPLE.fullmatch(quote[at]))

    return any(literal(0, place, 0) >= least for place in range(len(template)))


@cache
def listed() -> tuple[str, ...]:
    return tuple(run(["git", "ls-files"], cwd=CHECKOUT).stdout.splitlines())


@cache
def sources() -> Corpus:
    roles = [path.name for path in (CHECKOUT / "roles").iterdir()]
    paths = [CHECKOUT / name for name in listed() if SOURCES.match(name) and not NO_SOURCES.search(name)]
    return Corpus([text for path in paths if path.is_file() for text in texts_of(path)] + [*listed(), *roles])


_PROGRAMS = (
    *(
        r"ansible[\w-]*",
        r"apt[\w-]*",
        "crictl",
        "crontab",
        "ctr",
        "curl",
        r"docker[\w-]*",
        "export",
        "findmnt",
    ),
    *(
        "getent",
        "git",
        "gpg",
        "grep",
        r"gst-launch-1\.0",
        "helm",
        "hostnamectl",
        r"install\.sh",
        "jetson-k3s",
    ),
    *("journalctl", "k3s", "kill", "kubectl", "ls", "make", "modinfo", "mypy", "nvidia-smi", "nvpmodel"),
    *("openssl", "pip", "pre-commit", "pytest", "python3?", r"ssh[\w-]*", "swapon", "systemctl"),
    *("tegra-device-plugin", "timedatectl", "update-alternatives", "zcat", r"[a-z_]+\.yml"),
)
_BEFORE = r"(\S*/|sudo |python3? -m |[a-z_]+=\S+ )*"
# An option, a heading, a variable, a list, a fingerprint of a key, and what follows a program's name.
_NO_MESSAGE = (
    r"-|#|\$|\[|<a |([0-9A-F]{4} ){2}|sudo dmesg|completion |config check$|attach$|agent --|allocations --"
    r"|VERIFY=|LD_PRELOAD=|0 3 "
)
COMMANDS = re.compile(rf"{_BEFORE}({'|'.join(_PROGRAMS)}) |{_NO_MESSAGE}")
SETTING = re.compile(r"[\w.\"/-]+(: | = )(\S+|[\[{].*)|.*[{\[]\S*[}\]]")
REASON = re.compile(r"[A-Z][a-z]+([A-Z][a-z]+)+|OOM[A-Z]\w+")
"""A reason or an error in the style of Kubernetes and Python."""


def messages(document: Document) -> Iterator[str]:
    """Each message, error and line of output; neither commands nor settings."""
    for text in document.code:
        is_other = COMMANDS.match(text) or SETTING.fullmatch(text)
        if REASON.fullmatch(text) or (" " in text and not is_other):
            yield text
    for block in document.blocks:
        if block.language == "text":
            lines = filter(None, map(str.strip, block.text.splitlines()))
            yield from (line for line in lines if not COMMANDS.match(line))
        elif block.language == "console":
            yield from outputs(block.text)


def outputs(text: str) -> Iterator[str]:
    """The output of a program of ours: tables of kubectl are left out."""
    ours = True
    for line in text.replace("\\\n", "").splitlines():
        if prompt := PROMPT.match(line):
            ours = not re.search(r"kubectl (\S+ )*(get|describe|apply)\b", prompt["command"])
        elif ours and line.strip(" .") and not PATH.fullmatch(line):
            yield line.strip()


PATH = re.compile(r"(?:~|\./)?/[\w./@*<>$-]+|[\w.@-]+/(?:[\w.@*<>-]+/)*[\w.@*<>-]*")
# What stands for a part of a name.
_PART = re.compile(r"<[\w-]+>|[*$]|\.\.\.|\b[A-Z]{2,}(?:_[A-Z]+)*\b")
# Where paths of documents begin.
_BASES = ("", "docs", "plugin", "plugin/deploy", "plugin/tegra_device_plugin", "plugins")


def files(document: Document) -> Iterator[str]:
    """Each path of this computer, of a board or of the checkout; no names with a slash, such as a label's."""
    for text in document.code:
        first = text.partition("/")[0]
        if PATH.fullmatch(text) and not ("." in first[1:] or first.startswith("@")):
            yield text


def is_in_checkout(path: str, document: Document) -> bool:
    """Whether files of that name are in the checkout, where the document or a directory of the project is."""
    pattern = _PART.sub("*", path.strip("/"))
    bases = [document.path.parent, *(CHECKOUT / base for base in _BASES)]
    return not path.startswith(("/", "~")) and any(any(base.glob(pattern)) for base in bases)


def is_made(path: str) -> bool:
    """Whether sources name the path, or its last part and a directory above."""
    # git ignores what tests, playbooks and releases make.
    ignored = {name.strip("/") for name in (CHECKOUT / ".gitignore").read_text().split()}
    if sources().says(path.rstrip("/")) or path.removeprefix("./").partition("/")[0] in ignored:
        return True
    *above, last = [part for part in path.strip("/").split("/") if part not in ("~", ".")]
    ends = range(min(2, len(above)), len(above) + 1)
    return _is_named(last) and any(_is_named("/".join(above[:end])) for end in ends)


def chunks(path: str) -> list[str]:
    """The words of a path, without placeholders."""
    return [word for word in re.split(r"\W+", _PART.sub(".", path)) if word]


def _is_named(name: str) -> bool:
    parts = [part.strip("-._@") for part in _PART.split(name)]
    return all(sources().says(part) for part in parts if part)

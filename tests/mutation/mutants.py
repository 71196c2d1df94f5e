# SPDX-License-Identifier: Apache-2.0
"""Small faults for a module: mutmut's, and a few more. Each gives the text of the faulty module.

mutmut's own runner is not used. It leaves decorated functions alone, and it learns from calls in its own
process which tests reach a function, while the conformance tests start the plugin as a process.

Left out is what no test should pin: annotations, docstrings, log calls, raised messages, other prose, and
what stands outside of functions (tables and limits, whose values are facts). Left out are also faults that
crash wherever the line is run at all: None instead of a value or an argument.
"""

from __future__ import annotations

import difflib
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation import mutators

# Arguments that are prose, or make no difference on Linux.
_IDLE_KEYWORDS = {"help", "metavar", "description", "epilog", "encoding"}
_LEFT_OUT = (cst.Annotation, cst.Assert, cst.Decorator, cst.Import, cst.ImportFrom, cst.Raise)
# Their argument is not free: anything else fails immediately.
_CHECKS = {"len", "isinstance"}


@dataclass(frozen=True)
class Mutant:
    path: Path
    line: int
    original: str
    node: cst.CSTNode
    fault: cst.CSTNode
    module: cst.Module

    @property
    def code(self) -> str:
        faulty = self.module.deep_replace(self.node, self.fault)
        assert isinstance(faulty, cst.Module)
        return faulty.code

    def diff(self) -> str:
        lines = difflib.unified_diff(self.original.splitlines(), self.code.splitlines(), lineterm="", n=0)
        return "\n".join(line for line in lines if line[:2] not in ("--", "++", "@@"))


def of_module(path: Path, original: str) -> list[Mutant]:
    wrapper = MetadataWrapper(cst.parse_module(original), unsafe_skip_copy=True)
    positions = wrapper.resolve(PositionProvider)
    return [
        Mutant(path, positions[node].start.line, original, node, fault, wrapper.module)
        for function in _functions(wrapper.module)
        for node in _nodes(function)
        for fault in _faults(node)
    ]


def sample(mutants: Iterable[Mutant], number: int, seed: str) -> list[Mutant]:
    """Choose one fault on each of so many lines, always the same ones as long as these lines are the same."""
    by_line: defaultdict[int, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        by_line[mutant.line].append(mutant)

    def rank(line: int) -> bytes:
        text = by_line[line][0].original.splitlines()[line - 1]
        return hashlib.sha256(f"{seed} {text}".encode()).digest()

    chosen = sorted(by_line, key=rank)[:number]
    return [by_line[line][rank(line)[0] % len(by_line[line])] for line in sorted(chosen)]


def _functions(node: cst.CSTNode) -> Iterator[cst.FunctionDef]:
    for child in node.children:
        if isinstance(child, cst.FunctionDef):
            yield child
        elif isinstance(child, cst.BaseStatement | cst.BaseSuite):
            yield from _functions(child)


def _nodes(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """A function's nodes, without what is left out."""
    if _left_out(node):
        return
    yield node
    for child in node.children:
        yield from _nodes(child)


def _left_out(node: cst.CSTNode) -> bool:
    match node:
        case cst.Call(func=cst.Attribute(value=cst.Name(owner))):
            return owner == "logger"
        case cst.Call(func=cst.Name(name)):
            return name in _CHECKS
        case cst.Arg(keyword=cst.Name(name)):
            return name in _IDLE_KEYWORDS
        case cst.Expr(value=value):  # a docstring, or a call of the above
            return isinstance(value, cst.BaseString) or _left_out(value)
        case cst.BaseString():
            return _is_prose(node)
    return isinstance(node, _LEFT_OUT)


def _is_prose(node: cst.CSTNode) -> bool:
    """Whether it is text for people: it has spaces, and is no pattern."""
    match node:
        case cst.SimpleString():
            return " " in node.raw_value and "r" not in node.prefix
        case cst.FormattedString():
            return any(isinstance(part, cst.FormattedStringText) and " " in part.value for part in node.parts)
        case cst.ConcatenatedString():
            return _is_prose(node.left) or _is_prose(node.right)
    return False


def _faults(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    for kind, operator in _OPERATORS:
        if isinstance(node, kind):
            yield from operator(node)


def _option_left_out(node: cst.Call) -> Iterator[cst.CSTNode]:
    for option in node.args:
        if option.keyword and not _left_out(option) and not _is_prose(option.value):
            yield node.with_changes(args=[argument for argument in node.args if argument is not option])


def _call_left_out(node: cst.Expr) -> Iterator[cst.CSTNode]:
    if isinstance(node.value, cst.Call | cst.Await):
        yield cst.Pass()


def _nothing_returned(node: cst.Return) -> Iterator[cst.CSTNode]:
    # EXIT_OK is 0, for which Python takes None as well.
    if isinstance(node.value, cst.Name) and node.value.value not in ("None", "True", "False", "EXIT_OK"):
        yield node.with_changes(value=cst.Name("None"))


def _condition_turned(node: cst.If) -> Iterator[cst.CSTNode]:
    test = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    yield node.with_changes(test=cst.UnaryOperation(cst.Not(), test))


_CRASHES = (mutators.operator_assignment, mutators.operator_lambda, mutators.operator_arg_removal)
_OPERATORS: tuple[tuple[type, Callable[[Any], Iterable[cst.CSTNode]]], ...] = (
    *((kind, operator) for kind, operator in mutators.mutation_operators if operator not in _CRASHES),
    (cst.Call, _option_left_out),
    (cst.Expr, _call_left_out),
    (cst.Return, _nothing_returned),
    (cst.If, _condition_turned),
)

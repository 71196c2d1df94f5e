# SPDX-License-Identifier: Apache-2.0
"""The nightly tests: their shards, and the page of their results. Only Python's own library is needed.

`python3 -m tools.nightly shards` prints the names of the shards, in JSON.
`python3 -m tools.nightly arguments SHARD` prints the arguments of pytest for a shard.
`python3 -m tools.nightly page RESULTS SITE` writes SITE/index.html from RESULTS/junit-SHARD/junit.xml.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from html import escape
from pathlib import Path
from xml.etree import ElementTree

SHARDS = Path(__file__).parents[1] / "tests/shards.json"
DEFAULT_K3S = "default-k3s"
"""The shard that runs `make demo` with the default K3s. Its result is the report of site.yml."""
STYLE = """\
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100% }
th, td { border-bottom: 1px solid #8886; padding: .3rem .6rem; text-align: left }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums }
.failed { color: #c62828; font-weight: 600 }
pre { overflow-x: auto; white-space: pre-wrap }
"""


@dataclass(frozen=True)
class Failure:
    """A test that failed, and the first line of its message."""

    test: str
    message: str


@dataclass
class Result:
    """What ran in a shard. Without a file of results, `arrived` is False."""

    shard: str
    arrived: bool = False
    passed: int = 0
    seconds: float = 0
    failures: list[Failure] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    """Number of tests by the reason of their skip."""

    @property
    def is_green(self) -> bool:
        """Whether tests ran and none failed. A shard that has only skipped tests has proven nothing."""
        return self.arrived and not self.failures and self.passed > 0

    def add(self, case: ElementTree.Element) -> None:
        """Count one test case."""
        failed = case.find("failure")
        failed = case.find("error") if failed is None else failed
        skipped = case.find("skipped")
        if failed is not None:
            name = f"{case.get('classname', '')}::{case.get('name', '')}"
            message = failed.get("message") or failed.text or "without a message"
            self.failures.append(Failure(name, message.strip().partition("\n")[0]))
        elif skipped is not None:
            self.skipped[skipped.get("message") or "without a reason"] += 1
        else:
            self.passed += 1


def shards() -> dict[str, dict[str, str | list[str]]]:
    """Return the suite and the test files of each shard by its name."""
    return json.loads(SHARDS.read_text())  # type: ignore[no-any-return]


def names() -> list[str]:
    """Return the names of all shards of the workflow."""
    return [*shards(), DEFAULT_K3S]


def arguments(shard: str) -> list[str]:
    """Return the arguments of pytest for a shard. Raises KeyError if there is no such shard."""
    entry = shards()[shard]
    return [f"--suite={entry['suite']}", *entry["tests"]]


def result(shard: str, file: Path) -> Result:
    """Return the result in a JUnit file. A file that is missing or damaged has not arrived."""
    found = Result(shard)
    try:
        root = ElementTree.parse(file).getroot()  # noqa: S314  # written by this workflow's own jobs
    except (OSError, ElementTree.ParseError):
        return found
    found.arrived = True
    for suite in root.iter("testsuite"):
        found.seconds += float(suite.get("time", 0))
        for case in suite.iter("testcase"):
            found.add(case)
    return found


def results(directory: Path) -> list[Result]:
    """Return the result of each shard, also of those without a file."""
    return [result(name, directory / f"junit-{name}" / "junit.xml") for name in names()]


def duration(seconds: float) -> str:
    """Return a duration as `1 h 02 min`, `3 min` or `4 s`."""
    minutes = round(seconds / 60)
    if minutes >= 60:  # noqa: PLR2004  # minutes of an hour
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes} min" if minutes else f"{seconds:.0f} s"


def row(cells: Sequence[str], tag: str = "td") -> str:
    """Return a row of the table: a name and a state, then numbers."""
    numbers = "".join(f'<{tag} class="number">{cell}</{tag}>' for cell in cells[2:])
    return f"<tr><{tag}>{cells[0]}</{tag}><{tag}>{cells[1]}</{tag}>{numbers}</tr>"


def state(of: Result) -> str:
    """Return the state of a shard for the page."""
    if not of.arrived:
        return '<span class="failed">no result</span>'
    if of.failures:
        return '<span class="failed">failed</span>'
    return "passed" if of.passed else '<span class="failed">nothing ran</span>'


def rows(of: Iterable[Result]) -> list[str]:
    """Return a row for each shard."""
    return [
        row(
            (
                escape(one.shard),
                state(one),
                *(f"{number:,}" for number in (one.passed, one.skipped.total(), len(one.failures))),
                duration(one.seconds),
            )
        )
        for one in of
    ]


def failures(of: Iterable[Result]) -> list[str]:
    """Return the failed tests of all shards with their messages."""
    return [
        f"<li><code>{escape(failure.test)}</code><pre>{escape(failure.message)}</pre></li>"
        for one in of
        for failure in one.failures
    ]


def skips(of: Iterable[Result]) -> list[str]:
    """Return the reasons of skipped tests, with the number of tests."""
    return [
        f"<li>{escape(one.shard)}: {escape(reason)} ({number:,})</li>"
        for one in of
        for reason, number in sorted(one.skipped.items())
    ]


def part(title: str, items: Sequence[str]) -> list[str]:
    """Return a list with its heading; nothing without items."""
    return [f"<h2>{title}</h2>", "<ul>", *items, "</ul>"] if items else []


def page(of: Sequence[Result], *, commit: str, date: datetime, repository: str, run: str) -> str:
    """Return the page. `repository` and `run` are the addresses of the project and of the workflow's run."""
    green = sum(one.is_green for one in of)
    passed = sum(one.passed for one in of)
    skipped = sum(one.skipped.total() for one in of)
    failed = sum(len(one.failures) for one in of)
    seconds = sum(one.seconds for one in of)
    total = ("all", f"{green} of {len(of)} shards passed", *(f"{n:,}" for n in (passed, skipped, failed)))
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Nightly tests: {green} of {len(of)} shards passed</title>",
            f"<style>\n{STYLE}</style></head><body>",
            "<h1>Nightly tests</h1>",
            f"<p>{date:%Y-%m-%d %H:%M} UTC, commit "
            f'<a href="{escape(repository)}/commit/{escape(commit)}"><code>{escape(commit[:12])}</code></a>, '
            f'<a href="{escape(run)}">logs of the run</a>.</p>',
            "<p><strong>SIMULATED:</strong> every board is a virtual board, and its GPU is simulated. "
            "No result on this page is from a real Jetson.</p>",
            "<table>",
            row(("shard", "state", "passed", "skipped", "failed", "duration"), "th"),
            *rows(of),
            row((*total, duration(seconds)), "th"),
            "</table>",
            *part("Failed", failures(of)),
            *part("Skipped", skips(of)),
            "</body></html>",
            "",
        ]
    )


def main(given: Sequence[str] | None = None) -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(prog="python3 -m tools.nightly", description="the nightly tests")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("shards", help="print the names of the shards, in JSON")
    one = commands.add_parser("arguments", help="print the arguments of pytest for a shard")
    one.add_argument("shard", choices=sorted(shards()))
    site = commands.add_parser("page", help="write the page of the results")
    site.add_argument("results", type=Path, help="directory with a directory junit-SHARD for each shard")
    site.add_argument("site", type=Path, help="directory of the page")
    for name in ("commit", "repository", "run"):
        site.add_argument(f"--{name}", required=True)
    options = parser.parse_args(given)
    if options.command == "shards":
        sys.stdout.write(f"{json.dumps(names())}\n")
    elif options.command == "arguments":
        sys.stdout.write(f"{' '.join(arguments(options.shard))}\n")
    else:
        found = results(options.results)
        text = page(
            found,
            commit=options.commit,
            date=datetime.now(timezone.utc),
            repository=options.repository,
            run=options.run,
        )
        options.site.mkdir(parents=True, exist_ok=True)
        (options.site / "index.html").write_text(text)
        sys.stdout.write(f"{sum(one.is_green for one in found)} of {len(found)} shards passed\n")


if __name__ == "__main__":
    main()

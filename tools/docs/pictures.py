# SPDX-License-Identifier: Apache-2.0
"""Write docs/images: what ./install.sh says on a terminal, and its report in a browser.

ANSIBLE_FORCE_COLOR=1 ./install.sh jetson@10.207.1.11 2>&1 | tee install.log
python -m tools.docs.pictures "./install.sh jetson@10.207.1.11" install.log reports
"""

import argparse
import io
import re
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

from tools.cache import CHECKOUT
from tools.debian import ensure_packages

IMAGES = CHECKOUT / "docs/images"
COLUMNS = 110
# Of the output: the beginning, and the proof at the end.
FIRST, LAST = 12, 34
# Of the report's page, in CSS pixels.
WIDTH, HEIGHT = 1280, 820
# rich's SVG loads its font from a server.
FONTS = re.compile(r"@font-face \{.*?\}\n?", re.DOTALL)


def shortened(output: str) -> list[str]:
    """Return the first and last lines, and between them how many are left out."""
    lines = [line for line in output.splitlines() if line.strip()]
    left_out = len(lines) - FIRST - LAST
    if left_out <= 0:
        return lines
    return [*lines[:FIRST], "", f"  ... {left_out} lines ...", "", *lines[-LAST:]]


def recording(command: str, output: str) -> str:
    """Return an SVG of a terminal with a command and its output, colours included."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {command}", style="bold"))
    for line in shortened(output):
        console.print(Text.from_ansi(line), overflow="ellipsis", no_wrap=True)
    svg = console.export_svg(title="a bare virtual board becomes a node", unique_id="install")
    return FONTS.sub("", svg)


def report(page: Path, out: Path) -> None:
    """Write a picture of the report's page."""
    ensure_packages("chromium-headless-shell")
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path="/usr/bin/chromium-headless-shell") as chromium,
        chromium.new_page(viewport={"width": WIDTH, "height": HEIGHT}) as shown,
    ):
        shown.goto(page.resolve().as_uri())
        shown.screenshot(path=out)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.docs.pictures", description=__doc__)
    parser.add_argument("command", help="the command as it was typed")
    parser.add_argument("output", type=Path, help="output of ./install.sh")
    parser.add_argument("reports", type=Path, help="directory of the reports")
    options = parser.parse_args()
    checkout = f"{options.reports.resolve().parent}/"
    output = options.output.read_text().replace(checkout, "")
    (IMAGES / "install.svg").write_text(recording(options.command, output))
    report(options.reports / "index.html", IMAGES / "report.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())

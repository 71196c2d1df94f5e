# SPDX-License-Identifier: Apache-2.0
"""Write docs/images: what ./install.sh says on a terminal, and its report in a browser.

python -m tests.benchmarks.first_day day
python -m tools.docs.pictures day
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
COLUMNS = 80
# Of the report's page, in CSS pixels.
WIDTH, HEIGHT = 1280, 820
# rich's SVG loads its font from a server.
FONTS = re.compile(r"@font-face \{.*?\}\n?", re.DOTALL)


def recording(command: str, screen: list[str]) -> str:
    """Return an SVG of a terminal with a command and all that is left on its screen, colours included."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {command}", style="bold"))
    for line in screen:
        console.print(Text.from_ansi(line))
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
    parser.add_argument("directory", type=Path, help="what tests.benchmarks.first_day has written")
    directory = parser.parse_args().directory
    command, *screen = (directory / "install.log").read_text().splitlines()
    (IMAGES / "install.svg").write_text(recording(command, screen))
    report(directory / "reports/index.html", IMAGES / "report.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Take a picture of a report's page: python -m tests.reports reports/index.html docs/images/report.png."""

import argparse
import sys
from pathlib import Path

import playwright.sync_api

from tests.reports.browser import browser, shown
from tools.process import ToolError


def main() -> int:
    """Take it; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.reports", description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path, help="a .png or .webp file")
    parser.add_argument(
        "--width", type=int, default=1280, help="of the window, in pixels (default: %(default)s)"
    )
    parser.add_argument("--height", type=int, default=0, help="of the picture (default: the whole page)")
    parser.add_argument("--dark", action="store_true", help="as somebody sees it who prefers dark pages")
    options = parser.parse_args()
    try:
        with (
            browser() as chromium,
            shown(chromium, options.page, options.width, options.height or 900, dark=options.dark) as one,
        ):
            one.picture(options.picture, options.height)
    except (ToolError, playwright.sync_api.Error) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

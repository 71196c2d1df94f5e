# SPDX-License-Identifier: Apache-2.0
"""A real browser: Debian's Chromium without a window, driven by Playwright."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from tools.debian import ensure_packages

PACKAGE = "chromium-headless-shell"
# Playwright adds a fresh profile, no sandbox (tests run as root) and nothing that works in the background.
FLAGS = ("--disable-gpu", "--disable-quic")
# Of a window in CSS pixels; a narrower one is a phone's.
NARROWEST_DESKTOP = 500


@dataclass(frozen=True)
class Shown:
    """A page in a window, and what it has done since it was opened."""

    page: Page
    # URLs that it has asked for; data: is not among them.
    requests: list[str] = field(default_factory=list)
    # Errors, warnings and all other lines of the console, refused content among them.
    complaints: list[str] = field(default_factory=list)

    def picture(self, path: Path, height: int = 0) -> None:
        """Write a picture of the page, or of its first `height` pixels, as the path's suffix says."""
        width = self.page.evaluate("innerWidth")
        self.page.screenshot(
            path=path,
            full_page=True,
            clip={"x": 0, "y": 0, "width": width, "height": height} if height else None,
        )


@contextmanager
def browser() -> Iterator[Browser]:
    """Start Chromium, which is installed where it is missing; end it afterwards."""
    ensure_packages(PACKAGE)
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=f"/usr/bin/{PACKAGE}", args=FLAGS) as chromium,
    ):
        yield chromium


@contextmanager
def shown(chromium: Browser, file: Path, width: int, height: int, *, dark: bool = False) -> Iterator[Shown]:
    """Show a file in a window of that many CSS pixels; close it afterwards."""
    with chromium.new_page(
        viewport={"width": width, "height": height},
        is_mobile=width < NARROWEST_DESKTOP,
        color_scheme="dark" if dark else "light",
    ) as page:
        one = Shown(page)
        page.on("request", lambda request: one.requests.append(request.url))
        page.on("console", lambda message: one.complaints.append(message.text))
        page.on("pageerror", lambda error: one.complaints.append(str(error)))
        page.goto(file.resolve().as_uri())
        yield one

# SPDX-License-Identifier: Apache-2.0
"""The fleet's page in a real browser, on a desktop and on a phone, light and dark."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import report_page
from playwright.sync_api import Browser, Page, sync_playwright

from tests.reports import samples
from tests.reports.samples import fleet
from tools.cache import CHECKOUT
from tools.debian import ensure_packages

pytestmark = pytest.mark.lab

TEMPLATES = CHECKOUT / "roles" / "gpu_report" / "templates"
CATALOGUE = yaml.safe_load((CHECKOUT / "roles/gpu_verify/vars/main.yml").read_text())["__gpu_verify_checks"]
# Debian's, without a window. Playwright adds a fresh profile, no sandbox (tests run as root) and nothing that
# works in the background.
CHROMIUM = "chromium-headless-shell"
FLAGS = ("--disable-gpu", "--disable-quic")
# Of a window in CSS pixels; a narrower one is a phone's.
NARROWEST_DESKTOP = 500
# The first is the narrowest one in which the matrix is a table.
SIZES = ((1200, 900), (360, 740))
# WCAG 2.1, level AA, for text of this size.
CONTRAST = 4.5
# The least contrast of any visible text with what is behind it, and where.
LEAST_CONTRAST = """(() => {
  const rgba = text => text.match(/[\\d.]+/g).map(Number);
  const light = colour => colour.slice(0, 3).map(part => part / 255)
    .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    throw new Error('no background');
  };
  const found = [...document.querySelectorAll('body *')]
    .filter(one => [...one.childNodes].some(node => node.nodeType === 3 && node.textContent.trim()))
    .filter(one => one.checkVisibility())
    .map(one => {
      const both = [rgba(getComputedStyle(one).color), behind(one)].map(light);
      const [dark, bright] = both.sort((a, b) => a - b);
      return [(bright + 0.05) / (dark + 0.05), one.className + ' ' + one.textContent.trim().slice(0, 40)];
    });
  return found.sort((a, b) => a[0] - b[0])[0];
})()"""


@dataclass(frozen=True)
class Shown:
    """A page in a window, and what it has done since it was opened."""

    page: Page
    # Requested URLs; data: is not among them.
    requests: list[str] = field(default_factory=list)
    # Errors, warnings and all other lines of the console, refused content among them.
    complaints: list[str] = field(default_factory=list)


Show = Callable[..., Shown]


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


@pytest.fixture(scope="module")
def views() -> dict[str, Any]:
    three = {f"jetson-{number}": samples.passed(f"jetson-{number}") for number in (1, 2, 3)}
    before = samples.slower(samples.passed("jetson-1"), "device-query", 1.2)
    before["software"]["k3s"] = "v1.32.1+k3s1"
    mixed = {
        "jetson-1": (three["jetson-1"], before),
        "jetson-2": (samples.failed("jetson-2"), three["jetson-2"]),
        "jetson-3": (None, three["jetson-3"]),
        "jetson-4": samples.error("jetson-4"),
    }
    many: dict[str, Any] = {f"jetson-{number}": samples.passed(f"jetson-{number}") for number in range(100)}
    many["jetson-17"] = samples.failed("jetson-17")
    many["jetson-71"] = None
    many["a-board-with-a-very-long-name.rack-7.machine-hall-3.example.com"] = samples.error("long")
    every = samples.failed("jetson-1")
    some = samples.passed_check("non-root")
    every["checks"] = [some | {"id": one["id"], "title": one["title"]} for one in CATALOGUE]
    samples.set_status(every, "limits", "error", "no answer")
    return {
        "every": fleet(**{"jetson-1": every, "jetson-2": samples.in_use("jetson-2")}),
        "one": fleet(**{"jetson-1": three["jetson-1"]}),
        "three": fleet(**{name: (report, report) for name, report in three.items()}),
        "mixed": fleet(**mixed),
        "many": fleet(**many),
        "hostile": fleet(**{"jetson-1": samples.hostile("jetson-1")}),
        "none": fleet(**{"jetson-1": None}),
    }


@pytest.fixture(scope="module")
def pages(views: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    make = report_page.page
    directory = tmp_path_factory.mktemp("pages")
    for name, view in views.items():
        (directory / f"{name}.html").write_text(make(view, TEMPLATES))
    return {name: directory / f"{name}.html" for name in views}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    ensure_packages(CHROMIUM)
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=f"/usr/bin/{CHROMIUM}", args=FLAGS) as chromium,
    ):
        yield chromium


@pytest.fixture
def show(chromium: Browser, pages: dict[str, Path]) -> Iterator[Show]:
    with ExitStack() as windows:

        def show(name: str, size: tuple[int, int] = SIZES[0], *, dark: bool = False) -> Shown:
            return windows.enter_context(shown(chromium, pages[name], *size, dark=dark))

        yield show


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", SIZES, ids=["desktop", "phone"])
@pytest.mark.parametrize("name", ["every", "one", "three", "mixed", "many", "hostile", "none"])
def test_page_is_readable(
    show: Show,
    views: dict[str, Any],
    pages: dict[str, Path],
    *,
    name: str,
    size: tuple[int, int],
    dark: bool,
) -> None:
    one = show(name, size, dark=dark)
    page = one.page
    if name != "many":
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert one.complaints == []
    assert one.requests == [pages[name].as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    assert page.evaluate("innerWidth") == size[0]
    ratio, where = page.evaluate(LEAST_CONTRAST)
    assert ratio >= CONTRAST, where

    boards = views[name].boards
    assert page.locator("tbody tr").count() == len(boards)
    assert page.locator("details.board").count() == len(boards)
    checks = sum(len(board.checks) for board in boards)
    assert page.locator("tbody td > a").count() == checks
    assert page.locator("details.check").count() == checks


def test_status_is_written_in_words_too(show: Show) -> None:
    rows = show("mixed").page.locator("tbody tr").all_text_contents()
    for row, word in zip(rows, ("failed", "not finished", "not verified", "passed"), strict=True):
        assert word in row


def test_simulated_boards_are_marked(show: Show) -> None:
    page = show("three", SIZES[1]).page
    assert "SIMULATED" in page.locator("header .verdict").inner_text()
    assert "SIMULATED" in page.title()
    assert page.locator("details.board .tag").count() == 3
    assert page.locator("tbody th .tag").count() == 3


def test_page_says_how_much_was_checked_and_what_failed(show: Show) -> None:
    page = show("every").page
    assert (
        "No pod tried the GPU of jetson-2: the GPU is in use by default/train"
        in page.locator("header").inner_text()
    )
    assert "3 of 9 checked" in page.locator("tbody th", has_text="jetson-2").inner_text()
    failed = show("mixed").page.locator(".problem.failed")
    assert failed.locator("h3").inner_text().endswith("A pod does not run deviceQuery")
    assert "Expected: Title of device-query" in failed.inner_text()


def test_details_open_by_keyboard(show: Show) -> None:
    page = show("mixed").page
    focused = page.locator("details.board > summary:focus")
    for _ in range(200):
        page.keyboard.press("Tab")
        if focused.count():
            break
    assert focused.count() == 1, "the Tab key never comes to a board"
    assert focused.evaluate("one => one.parentElement.open") is False
    assert focused.evaluate("one => getComputedStyle(one).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert focused.evaluate("one => one.parentElement.open") is True


def test_a_cell_of_the_matrix_leads_to_its_check(show: Show) -> None:
    page = show("mixed").page
    check = page.locator("#jetson-1--concurrency")
    assert not check.is_visible()
    page.locator('td a[href="#jetson-1--concurrency"]').press("Enter")
    check.wait_for(state="visible")
    assert check.evaluate("one => one.closest('details.board').open")
    assert "Insufficient nvidia.com/gpu" in check.inner_text()


def test_boards_in_trouble_can_be_shown_alone(show: Show) -> None:
    page = show("many").page
    rows = page.locator("tbody tr").filter(visible=True)
    assert rows.count() == 101
    page.locator("#show-problems").press(" ")
    assert rows.count() == 3


def test_logs_cannot_become_part_of_the_page(show: Show) -> None:
    page = show("hostile").page
    text = page.locator("body").text_content() or ""
    assert page.locator("script, img").count() == 0
    assert "owned" not in page.title()
    assert "<script>document.title='owned'</script>" in text
    assert "{{ 7 * 7 }}" in text
    assert page.evaluate("[...document.links].filter(one => !one.hash).length") == 0
    # And were something to get through, the browser would not run it.
    page.evaluate("document.body.append(document.createElement('script'))")
    page.evaluate("document.scripts[0].text = 'document.title = \"owned\"'")
    assert "owned" not in page.title()

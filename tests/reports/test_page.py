# SPDX-License-Identifier: Apache-2.0
"""The fleet's page in a real browser, on a desktop and on a phone, light and dark."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.lab.paths import CHECKOUT
from tests.reports import samples
from tests.reports.browser import Browser, browser
from tests.reports.conftest import fleet

pytestmark = pytest.mark.lab

TEMPLATES = CHECKOUT / "roles" / "gpu_report" / "templates"
PICTURES = CHECKOUT / ".lab" / "pictures"
SIZES = ((1280, 900), (360, 740))
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


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    """One browser for all tests."""
    with browser() as tab:
        yield tab


@pytest.fixture(scope="module")
def views(fleets: ModuleType) -> dict[str, Any]:
    """Fleets by what is the matter with them."""
    three = {f"jetson-{number}": samples.passed(f"jetson-{number}", number) for number in (1, 2, 3)}
    before = samples.slower(samples.passed("jetson-1", 1), "device-query", 1.2)
    before["software"]["k3s"] = "v1.32.1+k3s1"
    mixed = {
        "jetson-1": (three["jetson-1"], before),
        "jetson-2": (samples.failed("jetson-2", 2), three["jetson-2"]),
        "jetson-3": (None, three["jetson-3"]),
        "jetson-4": samples.error("jetson-4"),
    }
    many: dict[str, Any] = {
        f"jetson-{number}": samples.passed(f"jetson-{number}", number) for number in range(100)
    }
    many["jetson-17"] = samples.failed("jetson-17")
    many["jetson-71"] = None
    many["a-board-with-a-very-long-name.rack-7.machine-hall-3.example.com"] = samples.error("long")
    return {
        "one": fleet(fleets, **{"jetson-1": three["jetson-1"]}),
        "three": fleet(fleets, **{name: (report, report) for name, report in three.items()}),
        "mixed": fleet(fleets, **mixed),
        "many": fleet(fleets, **many),
        "hostile": fleet(fleets, **{"jetson-1": samples.hostile("jetson-1")}),
        "none": fleet(fleets, **{"jetson-1": None}),
    }


@pytest.fixture(scope="module")
def pages(views: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages of these fleets."""
    make = importlib.import_module("ansible.module_utils.report_page").page
    directory = tmp_path_factory.mktemp("pages")
    for name, view in views.items():
        (directory / f"{name}.html").write_text(make(view, TEMPLATES))
    return {name: directory / f"{name}.html" for name in views}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", SIZES, ids=["desktop", "phone"])
@pytest.mark.parametrize("name", ["one", "three", "mixed", "many", "hostile", "none"])
def test_page_is_readable(
    tab: Browser,
    views: dict[str, Any],
    pages: dict[str, Path],
    *,
    name: str,
    size: tuple[int, int],
    dark: bool,
) -> None:
    tab.open(pages[name], *size, dark=dark)
    if name != "many":
        tab.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    tab.screenshot(
        PICTURES / f"{name}-{size[0]}-{'dark' if dark else 'light'}.png", height=2000 if name == "many" else 0
    )
    assert tab.complaints() == []
    assert tab.requests() == [pages[name].as_uri()]
    assert tab.evaluate("document.documentElement.scrollWidth") <= size[0]
    assert tab.evaluate("innerWidth") == size[0]
    ratio, where = tab.evaluate(LEAST_CONTRAST)
    assert ratio >= CONTRAST, where

    boards = views[name].boards
    assert tab.evaluate("document.querySelectorAll('tbody tr').length") == len(boards)
    assert tab.evaluate("document.querySelectorAll('details.board').length") == len(boards)
    checks = sum(len(board.checks) for board in boards)
    assert tab.evaluate("document.querySelectorAll('tbody td > a').length") == checks
    assert tab.evaluate("document.querySelectorAll('details.check').length") == checks


def test_a_status_is_told_by_words_too(tab: Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["mixed"], *SIZES[0])
    rows = tab.evaluate("[...document.querySelectorAll('tbody tr')].map(row => row.textContent)")
    for row, word in zip(rows, ("failed", "not finished", "not verified", "passed"), strict=True):
        assert word in row


def test_simulated_boards_are_marked(tab: Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["three"], *SIZES[1])
    assert "SIMULATED" in tab.evaluate("document.querySelector('header').innerText")
    assert tab.evaluate("document.querySelectorAll('details.board .tag').length") == 3


def test_details_open_by_keyboard(tab: Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["mixed"], *SIZES[0])
    focused = "document.activeElement.matches('details.board > summary')"
    for _ in range(200):
        tab.press("Tab")
        if tab.evaluate(focused):
            break
    assert tab.evaluate(focused), "the Tab key never comes to a board"
    assert tab.evaluate("document.activeElement.parentElement.open") is False
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    tab.press("Enter", "\r")
    assert tab.evaluate("document.activeElement.parentElement.open") is True


def test_a_cell_of_the_matrix_leads_to_its_check(tab: Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["mixed"], *SIZES[0])
    tab.evaluate("document.querySelector('td a[href=\"#jetson-1--concurrency\"]').focus()")
    tab.press("Enter", "\r")
    target = "document.getElementById('jetson-1--concurrency')"
    assert tab.evaluate(f"{target}.checkVisibility()")
    assert tab.evaluate(f"{target}.closest('details.board').open")
    assert "Insufficient nvidia.com/gpu" in tab.evaluate(f"{target}.innerText")


def test_boards_in_trouble_can_be_shown_alone(tab: Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["many"], *SIZES[0])
    visible = "[...document.querySelectorAll('tbody tr')].filter(row => row.checkVisibility()).length"
    assert tab.evaluate(visible) == 101
    tab.evaluate("document.getElementById('show-problems').focus()")
    tab.press(" ", " ")
    assert tab.evaluate(visible) == 3


def test_logs_cannot_become_part_of_the_page(tab: Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["hostile"], *SIZES[0])
    assert tab.evaluate("document.scripts.length + document.images.length") == 0
    assert "owned" not in tab.evaluate("document.title")
    assert "<script>document.title='owned'</script>" in tab.evaluate("document.body.textContent")
    assert "{{ 7 * 7 }}" in tab.evaluate("document.body.textContent")
    assert tab.evaluate("[...document.links].filter(one => !one.hash).length") == 0
    # And were something to get through, the browser would not run it.
    tab.evaluate("document.body.append(document.createElement('script'))")
    tab.evaluate("document.scripts[0].text = 'document.title = \"owned\"'")
    assert "owned" not in tab.evaluate("document.title")


def test_what_has_changed_is_shown(tab: Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["mixed"], *SIZES[0])
    told = tab.evaluate(
        "[...document.querySelectorAll('.changes li')].map(one => one.innerText.replace(/\\s+/g, ' '))"
    )
    text = json.dumps(told, ensure_ascii=False)
    for part in (
        "jetson-2 device-query: passed → failed",
        "jetson-3 passed → not verified",
        "jetson-1 device-query: 1.2 s → 3.2 s",
        "jetson-1 K3s: v1.32.1+k3s1 → v1.33.5+k3s1",
    ):
        assert part in text
    assert told[0].upper().startswith("BROKEN")

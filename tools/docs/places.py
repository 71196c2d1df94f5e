# SPDX-License-Identifier: Apache-2.0
"""Write the directories that the roles write to into docs/changes.md: `python -m tools.docs.places`."""

import sys

from tools.cache import CHECKOUT

sys.path.append(str(CHECKOUT / ".collections"))
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import jetson_places

PAGE = CHECKOUT / "docs/changes.md"
BEGIN = "<!-- places, written by `python -m tools.docs.places` -->"
END = "<!-- end -->"
WHEN = {
    jetson_places.ALWAYS: "yes",
    jetson_places.DOCKER: "with Docker or `image_supply_host`",
    jetson_places.PACKAGES: "if a package is missing",
    jetson_places.RENAME: "with `jetson_set_hostname`",
    jetson_places.REGISTRY: "with `image_supply_host`",
    jetson_places.NEVER: "no",
}


def table() -> str:
    """A row for each directory."""
    rows = [
        f"| `{place.path}` | {place.content} | {', '.join(place.roles)} | {WHEN[place.when]} | "
        f"{'yes' if place.runs else ''} |"
        for place in sorted(jetson_places.PLACES)
    ]
    return "\n".join(["| directory | content | roles | checked | programs |", "|---|---|---|---|---|", *rows])


def written(page: str) -> str:
    """The page with the table between its marks."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END, 1)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))

# SPDX-License-Identifier: Apache-2.0
"""Send a large image of a user over a slow link to the boards of a site, then its next version.

The link from this machine to the boards is shaped. Boards reach each other without limit. One board has the
registry of the site. The next version has one other layer. The ratio is to the compressed size of the image.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.acceptance import user_images
from tests.acceptance.playbook import run_playbook
from tests.acceptance.site import bring_images, bring_registry, crossed, shaped
from tests.lab import lab
from tools.process import say

LAB = "imagespeed"
KIND = "orinnano-jp6"
LAYERS = 8
MB = 1_000_000
RUN_SECONDS = 7200


def measure(name: str, archive: Path, megabits: float) -> str:
    """Bring an archive to the boards, and return a row of the table."""
    (entry,) = bring_images(LAB, archive)
    size = sum(layer["size"] for layer in entry["layers"])
    say(f"{name}: {size // MB} MB")
    given = {"bundle_images": [archive.name], "image_supply_host": "jetson-2"}
    before, began = crossed(LAB), time.monotonic()
    with shaped(LAB, megabits):
        run_playbook(
            LAB,
            "site.yml",
            "--tags=user_images",
            f"--extra-vars={json.dumps(given)}",
            timeout_seconds=RUN_SECONDS,
        ).checked()
    seconds, sent = time.monotonic() - began, crossed(LAB) - before
    return f"| {name} | {size // MB} | {sent // MB} | {sent / size:.2f} | {seconds:.0f} |"


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.images", description=__doc__)
    parser.add_argument("--boards", type=int, default=6)
    parser.add_argument("--megabytes", type=int, default=2000, help="of the image")
    parser.add_argument("--megabits", type=float, default=100, help="of the link, per second")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, lab.fresh(LAB, [KIND] * options.boards):
        bring_registry(LAB, jetpack=6)
        run_playbook(
            LAB, "site.yml", "--skip-tags=gpu_verify", "--extra-vars=image_supply_host=jetson-2"
        ).checked()
        layers = []
        for number in range(LAYERS + 1):
            layer = Path(scratch, f"{number}.tar")
            layer.write_bytes(user_images.payload(number, options.megabytes // LAYERS))
            layers.append(layer)
        archive, rows = Path(scratch, "app.tar"), []
        for name, chosen in (("first version", layers[:-1]), ("next version", [*layers[:-2], layers[-1]])):
            user_images.write(archive, chosen)
            rows.append(measure(name, archive, options.megabits))
    head = ["| image | MB | MB over the link | ratio | seconds |", "|---|---|---|---|---|"]
    what = f"{options.boards} boards, {options.megabits:g} Mbit/s"
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"
    sys.stdout.write("\n".join([f"{what}, {load}", *head, *rows]) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

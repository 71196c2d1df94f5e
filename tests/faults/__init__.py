# SPDX-License-Identifier: Apache-2.0
"""Faults in roles and playbooks, one at a time, and whether the fast tests notice each.

`python -m tests.faults` puts each fault of faults.yml into a copy of the checkout and runs the tests that
should notice it. Faults in Python modules are made by cosmic-ray (tests/cosmic-ray.toml).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

LIST = Path(__file__).with_name("faults.yml")


@dataclass(frozen=True)
class Fault:
    """One edit of one file, and the tests that have to fail by it."""

    name: str
    """What the users of the faulty project would get."""
    file: str
    right: str
    """Text that `file` has once."""
    wrong: str
    """Text in its place."""
    tests: tuple[str, ...]
    """Files or node ids, as pytest takes them."""

    def applied(self, checkout: Path) -> str:
        """Return the text of the file with the fault; ValueError if `right` is not there once."""
        text = (checkout / self.file).read_text()
        if text.count(self.right) != 1:
            raise ValueError(f"{self.name}: {self.file} has {self.right!r} {text.count(self.right)} times")
        return text.replace(self.right, self.wrong)


def load() -> Iterator[Fault]:
    """Yield the faults of the list, in its order."""
    for entry in yaml.safe_load(LIST.read_text()):
        yield Fault(**{**entry, "tests": tuple(entry["tests"])})

# SPDX-License-Identifier: Apache-2.0
"""How each command of the documents is tried: `cases.yml`."""

from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Case:
    """A command as the documents have it; `status` is what it ends with.

    `run` is what is run in its stead, and `why`; `test` is the test that runs it. With `why` alone nothing
    runs it.
    """

    command: str
    status: int = 0
    run: str = ""
    why: str = ""
    test: str = ""


CASES = tuple(Case(**entry) for entry in yaml.safe_load(Path(__file__).with_name("cases.yml").read_text()))

# SPDX-License-Identifier: Apache-2.0
"""Every option of the lab's K3s is classified by role k3s, so that a new one is noticed."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import k3s_options as options
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import k3s_reading as reading

from tests.lab import gomodules, k3s
from tools.process import run

pytestmark = pytest.mark.lab


TABLES = (options.REFUSED.keys(), options.ELSEWHERE.keys(), options.FREE)
K3S = "github.com/k3s-io/k3s"
SHORT = re.compile(r"^ +--([a-z-]+)(?: \S+)?, -([a-z])\b", re.MULTILINE)
VARIABLE = re.compile(r"^ +--([a-z0-9-]+).*\[\$(K3S_\w+)\]$", re.MULTILINE)


def sources() -> Iterator[str]:
    """Where K3s was compiled here, the sources of its options: --help leaves the hidden ones out."""
    if shutil.which("go") is None:
        return
    cache = Path(run(["go", "env", "GOMODCACHE"]).stdout.strip())
    module = f"{K3S}@{gomodules.required('k3s', K3S)}"
    for name in ("agent", "server"):
        file = cache / module / f"pkg/cli/cmds/{name}.go"
        if file.is_file():
            yield file.read_text()


def test_every_option_of_k3s_is_classified_once() -> None:
    program = k3s.k3s()
    shown = "".join(run([program, role, "--help"]).stdout for role in ("server", "agent"))
    names = {match["name"] for match in options.OPTION.finditer(shown)} - {"help", "h"}
    assert len(names) > 80, shown
    for source in sources():
        names.update(re.findall(r'\bName:\s+"([a-z0-9-]+)[,"]', source))
    unclassified = names.difference(*TABLES, {"server", "agent"} - options.REFUSED.keys())
    assert unclassified == set(), "decide in k3s_options.py if the option changes the node that a board is"
    assert sum(map(len, TABLES)) == len(set().union(*TABLES))
    shorts = {short: name for name, short in SHORT.findall(shown) if short != "h"}
    assert shorts == reading.SHORT
    of_refused = {variable: name for name, variable in VARIABLE.findall(shown) if name in options.REFUSED}
    assert of_refused.items() <= reading.ENVIRONMENT.items()

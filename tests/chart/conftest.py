# SPDX-License-Identifier: Apache-2.0
"""The real Helm, compiled in the version that is maintained, and its output."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import newer_go
from tests.lab import gomodules
from tools import debian
from tools.cache import CHECKOUT
from tools.process import run

CHART = CHECKOUT / "plugin" / "deploy" / "chart"
Object = dict[str, Any]
Values = dict[str, Any]
Said = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Helm:
    """One version of Helm; `home` is a directory of its own, `chart` a directory or an archive.

    It asks no cluster, whichever the machine knows, unless it is given a kubeconfig.
    """

    program: Path
    home: Path
    chart: Path = CHART
    kubernetes: str = "1.36.0"
    kubeconfig: Path = Path(os.devnull)

    def __call__(
        self, *arguments: str | Path, values: Values | None = None
    ) -> subprocess.CompletedProcess[str]:
        places = {f"HELM_{name}_HOME": str(self.home / name) for name in ("CACHE", "CONFIG", "DATA")}
        environment = {**os.environ, **places, "KUBECONFIG": str(self.kubeconfig)}
        command = [self.program, *arguments, *([] if values is None else ["--values=-"])]
        return run(command, stdin=yaml.safe_dump(values), env=environment, check=False, timeout=120)

    def _template(self, values: Values | None, namespace: str = "kube-system") -> Said:
        options = (f"--namespace={namespace}", f"--kube-version={self.kubernetes}")
        return self("template", "plugin", self.chart, *options, values=values)

    def template(self, values: Values | None = None, namespace: str = "kube-system") -> list[Object]:
        done = self._template(values, namespace)
        assert done.returncode == 0, done.stderr
        return [document for document in yaml.safe_load_all(done.stdout) if document]

    def refusal(self, values: Values) -> str:
        done = self._template(values)
        assert done.returncode != 0, done.stdout
        return done.stderr


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    with newer_go.skipped_without():
        programs = gomodules.programs(gomodules.HELM, debian.architecture())
    return Helm(programs / "helm", tmp_path_factory.mktemp("helm"))

# SPDX-License-Identifier: Apache-2.0
"""The real Helm in the version that is maintained, its output, and kubeconform, which validates that."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests import newer_go
from tests.lab import api_server, gomodules
from tests.lab.api_server import ApiServer
from tools import debian
from tools.cache import CHECKOUT
from tools.process import run

CHART = CHECKOUT / "plugin" / "deploy" / "chart"
# The handbook's: its objects have the names of the plain manifests.
RELEASE = "tegra-device-plugin"
OTHER_RELEASE = "thor"
OPERATOR = "github.com/prometheus-operator/prometheus-operator"
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
    release: str = RELEASE
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
        return self("template", self.release, self.chart, *options, values=values)

    def template(self, values: Values | None = None, namespace: str = "kube-system") -> list[Object]:
        done = self._template(values, namespace)
        assert done.returncode == 0, done.stderr
        return [document for document in yaml.safe_load_all(done.stdout) if document]

    def refusal(self, values: Values) -> str:
        done = self._template(values)
        assert done.returncode != 0, done.stdout
        return done.stderr


def operator_definitions() -> list[Path]:
    """Return the files with the Prometheus Operator's definitions of what the chart can have."""
    directory = gomodules.sources("kubeconform", OPERATOR) / "example/prometheus-operator-crd"
    return [directory / f"monitoring.coreos.com_{kind}.yaml" for kind in ("podmonitors", "prometheusrules")]


def strict(schema: Any) -> Any:
    """Refuse properties that a schema does not list, as an API server does that decodes strictly."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    return found | {"additionalProperties": False} if isinstance(found.get("properties"), dict) else found


@dataclass(frozen=True)
class Kubeconform:
    """Validates by schemas of Kubernetes and of the Prometheus Operator, in a directory for each version."""

    program: Path
    schemas: Path

    def __call__(self, documents: list[Object], kubernetes: str) -> None:
        place = (
            f"{self.schemas}/{{{{.NormalizedKubernetesVersion}}}}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}"
        )
        options = ["-strict", "-output=json", "-verbose", f"-kubernetes-version={kubernetes}.0"]
        command: list[str | Path] = [self.program, *options, f"-schema-location={place}.json"]
        done = run(command, stdin=yaml.safe_dump_all(documents), check=False, timeout=120)
        resources = json.loads(done.stdout)["resources"]
        valid = [one for one in resources if one["status"] == "statusValid"]
        assert (done.returncode, len(valid)) == (0, len(documents)), done.stdout + done.stderr


def write_schemas(directory: Path, files: list[Path]) -> None:
    """Write the schemas of each Kubernetes that kubernetes-validate has, and those of the definitions."""
    custom = {}
    for file in files:
        spec = yaml.safe_load(file.read_text())["spec"]
        (served,) = spec["versions"]
        name = f"{spec['names']['kind'].lower()}-monitoring-{served['name']}.json"
        custom[name] = json.dumps(strict(served["schema"]["openAPIV3Schema"]))
    builtin = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
    for source in builtin.glob("*-local-strict"):
        target = directory / source.name.removesuffix("-local-strict")
        target.mkdir()
        # Their references have the place that kubernetes-validate gives them.
        definitions = (target / "_definitions.json").as_uri()
        for name, text in ({path.name: path.read_text() for path in source.glob("*.json")} | custom).items():
            (target / name).write_text(text.replace('"/api/_definitions.json#', f'"{definitions}#'))


@pytest.fixture(scope="session")
def kubeconform(tmp_path_factory: pytest.TempPathFactory) -> Kubeconform:
    directory = tmp_path_factory.mktemp("schemas")
    with newer_go.skipped_without():
        programs = gomodules.programs(gomodules.KUBECONFORM, debian.architecture())
        write_schemas(directory, operator_definitions())
    return Kubeconform(programs / "kubeconform", directory)


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    with newer_go.skipped_without():
        programs = gomodules.programs(gomodules.HELM, debian.architecture())
    return Helm(programs / "helm", tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def later(helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """The same chart as a later version."""
    directory = tmp_path_factory.mktemp("later")
    done = helm("package", CHART, "--version=9.9.9", "--app-version=9.9.9", f"--destination={directory}")
    assert done.returncode == 0, done.stderr
    return replace(helm, chart=directory / "tegra-device-plugin-9.9.9.tgz")


@pytest.fixture(scope="module")
def server(helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server; where there is no Go, `helm` has skipped the tests."""
    assert helm
    with api_server.started(tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.fixture
def installed(helm: Helm, server: ApiServer) -> Iterator[Helm]:
    there = replace(helm, kubeconfig=server.kubeconfig)
    yield there
    for release in (RELEASE, OTHER_RELEASE):
        there("uninstall", release, "--namespace=kube-system", "--ignore-not-found")
    server.kubectl("delete", "runtimeclass", "nvidia", "--ignore-not-found")


def apply(helm: Helm, values: Values) -> str:
    options = ("--install", "--namespace=kube-system")
    done = helm("upgrade", helm.release, helm.chart, *options, values=values)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("NOTES:")[2]


def found(server: ApiServer, kind: str, namespace: str = "kube-system") -> dict[str, Object]:
    listed = json.loads(server.kubectl("get", kind, f"--namespace={namespace}", "--output=json"))
    return {one["metadata"]["name"]: one for one in listed["items"]}

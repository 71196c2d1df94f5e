# SPDX-License-Identifier: Apache-2.0
"""`check-manifest` on manifests with the names, amounts and annotations that other systems publish.

A comment of a line in foreign_manifests/ is its verdict, and the lines to write instead. That of `kind` is
the verdict on the object. Each file names its source; the manifests are written anew.
"""

import io
import re
from pathlib import Path

import pytest
from tegra_device_plugin.cli import main
from tegra_device_plugin.config.file import File, read_file
from tegra_device_plugin.sharing.manifests.check import check, rewrite
from tegra_device_plugin.sharing.manifests.text import ManifestError

MANIFESTS = Path(__file__).parent / "foreign_manifests"
# The configuration that is tried with each file: 4 GiB of GPU memory.
SHARING = {
    "koordinator-metax": "units: {preset: koordinator, memoryTotal: 4Gi}",
    "koordinator-share": "units: {preset: koordinator, memoryTotal: 4Gi}",
    "metax": "units: {preset: metax, memoryTotal: 4Gi}",
    "hami": "units: {preset: hami, memoryTotal: 4Gi}",
    "hami-dra": "dra: {mode: capacity, memoryTotal: 4Gi}",
    "hami-dra-class": "dra: {mode: capacity, memoryTotal: 4Gi}",
    "qgpu": "units: {preset: qgpu, memoryTotal: 4Gi}",
    "elastic": "units: {preset: elastic, memoryTotal: 4Gi}",
    "elastic-names": "units: {preset: elastic, memoryTotal: 4Gi}",
}
# No line replaces their findings.
NO_LINE = {"metax", "elastic"}
_EXPECTED = re.compile(r" # (?P<verdict>runs|translated|refused)(: (?P<instead>.+))?$")


def config(tmp_path: Path, sharing: str) -> File:
    path = tmp_path / "config.yaml"
    path.write_text(f"version: v1\nsharing: {{{sharing}}}\n")
    return read_file(path)


def expected(text: str) -> tuple[dict[int, str], dict[int, tuple[str, str | None]]]:
    """The verdicts on objects, by the line of `kind`, and the findings, by line."""
    objects, lines = {}, {}
    for number, line in enumerate(text.splitlines(), start=1):
        if found := _EXPECTED.search(line):
            if line.startswith("kind: "):
                objects[number] = found["verdict"]
                if not line.startswith("kind: Elastic"):
                    continue
            lines[number] = (found["verdict"], found["instead"])
    return objects, lines


def test_every_manifest_is_tried() -> None:
    assert {path.stem for path in MANIFESTS.iterdir()} == SHARING.keys()


@pytest.mark.parametrize("name", SHARING)
def test_each_line_has_its_verdict(name: str, tmp_path: Path) -> None:
    text = (MANIFESTS / f"{name}.yaml").read_text()
    reports = check(text, config(tmp_path, SHARING[name]))
    objects, lines = expected(text)
    # `kind` is in the line behind `apiVersion`, which an object begins with.
    assert {one.line + 1: one.verdict for one in reports} == objects
    assert {
        one.field.line: (
            one.verdict,
            None if one.instead is None else ", ".join(one.instead) or "(remove)",
        )
        for report in reports
        for one in report.findings
    } == lines


@pytest.mark.parametrize("name", sorted(SHARING.keys() - NO_LINE))
def test_a_rewritten_manifest_runs(name: str, tmp_path: Path) -> None:
    text = (MANIFESTS / f"{name}.yaml").read_text()
    nodes = config(tmp_path, SHARING[name])
    rewritten = rewrite(text, check(text, nodes))
    assert [one for one in check(rewritten, nodes) if one.verdict == "refused"] == []
    assert rewrite(rewritten, check(rewritten, nodes)) == rewritten


def test_without_a_configuration_the_names_choose_the_preset(tmp_path: Path) -> None:
    presets = {}
    for name, sharing in SHARING.items():
        text = (MANIFESTS / f"{name}.yaml").read_text()
        presets[name] = {one.preset for one in check(text)} - {""}
        with_configuration = {one.preset for one in check(text, config(tmp_path, sharing))} - {""}
        assert presets[name] == with_configuration
    assert presets["koordinator-metax"] == {"koordinator"}


OTHERS = {
    "timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}": "preset koordinator",
    "units: {preset: hami, memoryTotal: 4Gi}": "preset koordinator",
    "dra: {mode: exclusive}": "claims (DRA)",
}


@pytest.mark.parametrize(("sharing", "said"), OTHERS.items())
def test_a_configuration_with_other_names_is_named(sharing: str, said: str, tmp_path: Path) -> None:
    text = (MANIFESTS / "koordinator-metax.yaml").read_text()
    (report,) = check(text, config(tmp_path, sharing))
    assert report.verdict == "refused"
    assert said in report.findings[-1].text


POD = "kind: Pod\nspec:\n  containers:\n    - resources:\n        limits:\n          {}: {}\n"
AMOUNTS = {
    # On boards with the whole GPU, with shares, and with claims.
    ("", "nvidia.com/gpu", "1"): "runs",
    ("", "nvidia.com/gpu", "2"): "refused",
    ("timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}", "nvidia.com/gpu", "2"): "refused",
    (
        "timeSlicing: {failRequestsGreaterThanOne: false, resources: [{name: nvidia.com/gpu, replicas: 4}]}",
        "nvidia.com/gpu",
        "2",
    ): "runs",
    ("dra: {mode: exclusive}", "nvidia.com/gpu", "1"): "runs",
    ("", "metax-tech.com/gpu", "1"): "refused",
    # Amounts that the configuration does not have, or that Kubernetes does not read.
    ("units: {preset: vcuda, memoryTotal: 4Gi}", "tencent.com/vcuda-memory", "16"): "runs",
    ("units: {preset: vcuda, memoryTotal: 4Gi}", "tencent.com/vcuda-memory", "17"): "refused",
    ("units: {preset: vcuda, memoryTotal: 4Gi}", "tencent.com/vcuda-core", "100"): "translated",
    ("units: {preset: vcuda, memoryTotal: 4Gi}", "tencent.com/vcuda-core", "50"): "refused",
    ("units: {preset: vcuda, memoryTotal: 4Gi}", "tencent.com/vcuda-core", "200"): "refused",
    ("units: {preset: koordinator, memoryTotal: 4Gi}", "koordinator.sh/gpu-memory", "5Gi"): "refused",
    ("units: {preset: koordinator, memoryTotal: 4Gi}", "koordinator.sh/gpu-memory-ratio", "1Gi"): "refused",
    ("units: {preset: gpushare, memoryTotal: 4Gi}", "aliyun.com/gpu-mem", "some"): "refused",
}


@pytest.mark.parametrize(("given", "verdict"), AMOUNTS.items())
def test_amounts(given: tuple[str, str, str], verdict: str, tmp_path: Path) -> None:
    sharing, name, amount = given
    nodes = config(tmp_path, sharing) if sharing else File()
    (report,) = check(POD.format(name, amount), nodes)
    assert report.verdict == verdict


def test_a_resource_in_requests_alone_is_named() -> None:
    (report,) = check(POD.format("aliyun.com/gpu-mem", 1).replace("limits", "requests"))
    assert "write the same line below limits" in report.findings[0].text


def test_objects_without_a_gpu_have_no_report() -> None:
    assert (
        check("kind: Service\nmetadata: {name: web}\n---\nkind: Pod\nspec: {containers: [{name: web}]}\n")
        == []
    )


def test_command_names_file_line_and_the_line_to_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config(tmp_path, SHARING["koordinator-metax"])
    file = tmp_path / "pod.yaml"
    file.write_text((MANIFESTS / "koordinator-metax.yaml").read_text())
    assert main(["check-manifest", str(file), "--config", str(tmp_path / "config.yaml")]) == 1
    out = capsys.readouterr().out.replace(str(file), "pod.yaml")
    assert "pod.yaml:3: Pod default/test-metax-sgpu: does not run as it is, with preset koordinator\n" in out
    assert (
        """
pod.yaml:20: spec.containers[0].resources.limits["koordinator.sh/gpu-memory"]: 1Gi
  refused: bytes are not advertised: each would be one device, and a kubelet takes 195700 of a resource
  write: koordinator.sh/gpu-memory-ratio: 25
"""
        in out
    )
    assert out.endswith("remove the line\n")


def test_command_rewrites_what_kubectl_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "kind: List\nitems:\n- kind: Pod\n  spec:\n    schedulerName: hami-scheduler\n    containers: []\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert main(["check-manifest", "-", "--rewrite"]) == 0
    assert capsys.readouterr().out == text.replace("    schedulerName: hami-scheduler\n", "")


UNREADABLE = {
    "kind: Pod\nkind: [": "2: not YAML",
    "kind: Pod\nspec: {schedulerName: a, containers: []}\n": "2: several keys on one line",
    "kind: List\nitems:\n- kind: Pod\n  spec:\n    schedulerName: a # of b\n    containers: []\n": "",
}


@pytest.mark.parametrize(("text", "said"), UNREADABLE.items())
def test_what_cannot_be_rewritten_is_named_with_its_line(text: str, said: str) -> None:
    if not said:
        assert "schedulerName" not in rewrite(text, check(text))
        return
    with pytest.raises(ManifestError, match=said):
        rewrite(text, check(text))

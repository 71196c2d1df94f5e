# SPDX-License-Identifier: Apache-2.0
"""A report on the screen."""

from tests.reports import samples
from tests.reports.conftest import Load


def test_the_summary_says_what_is_wrong_and_what_to_do(load: Load) -> None:
    summary = load("gpu_report/filter_plugins/gpu_report.py").summary
    good, bad = summary(samples.passed("a")), summary(samples.failed("a"))
    assert good.startswith("a: PASSED (SIMULATED board), Jetson AGX Orin")
    assert "Result = PASS" in good
    assert "Insufficient nvidia.com/gpu" in good
    assert "skipped kubelet-restart: only in mode full" in good
    silent = samples.error("a")
    silent["software"]["k3s"] = None
    assert "K3s not known, allocatable" in summary(silent)
    assert "a: FAILED" in bad
    assert "FAILED device-query: the pod was not created" in bad
    assert "fix: Let the container toolkit run in csv mode" in bad

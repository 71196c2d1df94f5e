# SPDX-License-Identifier: Apache-2.0
"""One step of site.yml alone: Ansible still validates the arguments of roles that other steps import."""

from pathlib import Path

import pytest

from tests.docs import CHECKOUT
from tests.unit.roles.scripted import play_scripted


@pytest.mark.parametrize("step", ["nvidia_docker", "k3s", "gpu_device_plugin"])
def test_step_alone_reads_no_result_of_another(tmp_path: Path, step: str) -> None:
    run, _ = play_scripted(tmp_path, CHECKOUT / "playbooks/site.yml", f"--tags={step}")
    assert "is undefined" not in run.said

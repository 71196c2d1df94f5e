# SPDX-License-Identifier: Apache-2.0
"""Which steps from one K3s to another are allowed."""

import jinja2
import pytest
import yaml

from tests.unit.roles.loading import ROLES, load

FILTER = "k3s_upgrade/filter_plugins/k3s_upgrade.py"


@pytest.mark.parametrize(
    ("role", "installed", "wanted", "server"),
    [
        ("server", "v1.33.5+k3s1", "v1.33.5+k3s1", None),
        ("server", "v1.33.5+k3s1", "v1.33.5+k3s2", None),
        ("server", "v1.33.5+k3s1", "v1.34.0+k3s1", None),
        ("agent", "v1.33.5+k3s1", "v1.34.2+k3s1", "v1.34.0+k3s1"),
        ("agent", "v1.25.4+k3s1", "v1.25.4+k3s12", "v1.25.4+k3s1"),
        # It was off when the server went through 1.33, and is upgraded with or after it.
        ("agent", "v1.32.9+k3s1", "v1.34.0+k3s1", None),
        ("agent", "v1.32.9+k3s1", "v1.34.0+k3s1", "v1.34.0+k3s1"),
    ],
)
def test_supported_step_is_not_refused(role: str, installed: str, wanted: str, server: str | None) -> None:
    assert load(FILTER).refusal(wanted, installed, role, server) == ""


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (("server", None, "v1.33.5+k3s1", None), "site.yml"),
        (("server", "v1.32.9+k3s1", "v1.34.0+k3s1", None), "v1.33 first"),
        (("agent", "v1.33.5+k3s1", "v2.0.0+k3s1", None), "skipped"),
        (("server", "v1.33.5+k3s1", "v1.33.4+k3s1", None), "newer than the bundle"),
        (("agent", "v1.33.5+k3s1", "v1.34.0+k3s1", "v1.33.5+k3s1"), "upgrade the server first"),
        (("agent", "v1.33.5+k3s1", "v1.34.0+k3s1", ""), "does not say which K3s"),
    ],
)
def test_unsupported_step_is_refused_with_the_way_out(step: tuple[str | None, ...], words: str) -> None:
    role, installed, wanted, server = step
    assert words in load(FILTER).refusal(wanted, installed, role, server)


def test_text_that_is_no_version_is_an_error() -> None:
    with pytest.raises(ValueError, match="latest"):
        load(FILTER).refusal("latest", "v1.33.5+k3s1", "server")


@pytest.mark.parametrize(("boards", "drains"), [(["jetson-1"], "False"), (["jetson-1", "jetson-2"], "True")])
@pytest.mark.parametrize("role", ["k3s_upgrade", "rolling_restart"])
def test_pods_are_moved_where_another_board_can_take_them(role: str, boards: list[str], drains: str) -> None:
    drain = yaml.safe_load((ROLES / role / "defaults/main.yml").read_text())[f"{role}_drain"]
    variables = {"groups": {"k3s_cluster": boards}, "__rolling_restart_of_docker": True}
    assert jinja2.Template(drain).render(variables) == drains

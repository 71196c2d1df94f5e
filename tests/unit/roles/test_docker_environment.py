# SPDX-License-Identifier: Apache-2.0
"""What Docker needs around it: the table raw, strict mode, kept images. Iptables: test_jetson_iptables.py."""

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.unit.roles.loading import load
from tests.unit.roles.playing import answer

module = load("nvidia_docker/library/docker_environment.py")
kept_images = load("nvidia_docker/library/docker_kept_images.py")

FAILS = "iptables-legacy, table raw: no"
TOML = """\
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false

[nvidia-container-cli]
environment = []
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "etc/nvidia-container-runtime").mkdir(parents=True)
    return tmp_path


def plan(root: Path, raw: str | None = None, **changes: Any) -> tuple[list[Any], dict[str, str]]:
    params = {"docker_version": "28.4.0", "strict": False, "state": "present"} | changes
    result: tuple[list[Any], dict[str, str]] = module.plan(
        str(root), params, {"iptables": {"choose": None, "raw": raw}}
    )
    return result


@pytest.mark.parametrize(
    ("raw", "version", "needed"),
    [
        (FAILS, "28.4.0", True),
        (FAILS, "28.0.2", True),
        (FAILS, "27.5.1", False),
        (FAILS, "20.10.24+dfsg1", False),
        (FAILS, None, False),
        (None, "28.4.0", False),
    ],
)
def test_docker_28_is_told_about_a_kernel_without_raw(
    raw: str | None, version: str | None, needed: bool
) -> None:
    assert module.needs_raw_drop_in(raw, version) is needed


def test_docker_that_cannot_be_told_is_refused_with_both_ways_out() -> None:
    with pytest.raises(module.EnvironmentProblem, match=r"table raw: no.*28\.0\.2 or newer, or 27\.5\.1"):
        module.needs_raw_drop_in(FAILS, "28.0.1")


def test_drop_in_is_written_once_restarts_docker_and_goes_on_removal(root: Path) -> None:
    ((path, before, after, restarts),), choices = plan(root, FAILS)
    assert (path, before, after, restarts, choices) == (module.DROP_IN, "", module.RAW_DROP_IN, True, {})
    module.put(str(root / path), after)
    assert plan(root, FAILS) == ([], {})
    params = {"docker_version": "28.4.0", "strict": False, "state": "present"}
    assert module.plan(str(root), params, {}) == ([], {}), "not tried: the file stays"
    ((_, _, after, restarts),), _ = plan(root, FAILS, state="absent")
    assert (after, restarts) == ("", True)
    module.put(str(root / path), after)
    assert not (root / path).exists()


def test_a_link_leads_to_the_file_that_is_written(tmp_path: Path) -> None:
    kept = tmp_path / "kept.toml"
    kept.write_text("a = 1\n")
    (tmp_path / "config.toml").symlink_to(kept)
    moved = []

    def atomic_move(source: str, target: str) -> None:
        moved.append(target)
        Path(source).rename(target)

    module.put(str(tmp_path / "config.toml"), "b = 1\n", atomic_move)
    assert (tmp_path / "config.toml").is_symlink()
    assert kept.read_text() == "b = 1\n"
    assert moved == [str(kept)], "Ansible's own move keeps owner and mode"


@pytest.mark.parametrize(
    "text", ["", TOML, "accept-nvidia-visible-devices-as-volume-mounts = false\n[a]\nb = 1\n"]
)
def test_strict_mode_is_reversible_and_written_once(text: str) -> None:
    strict = module.strict_config(text, True)
    assert module.strict_config(strict, True) == strict
    assert module.strict_config(strict, False) == text


def test_strict_mode_is_what_the_runtime_reads() -> None:
    before = "accept-nvidia-visible-devices-as-volume-mounts = false\n" + TOML
    read = tomllib.loads(module.strict_config(before, True))
    assert read["accept-nvidia-visible-devices-envvar-when-unprivileged"] is False
    assert read["accept-nvidia-visible-devices-as-volume-mounts"] is True
    assert read["disable-require"] is False
    assert read["nvidia-container-cli"] == {"environment": []}


def test_strict_mode_restarts_nothing(root: Path) -> None:
    ((path, _, _, restarts),), choices = plan(root, strict=True)
    assert (path, restarts, choices) == (module.RUNTIME_CONFIG, False, {})


@pytest.mark.parametrize(
    ("images", "holders", "missing", "outdated"),
    [
        ({"pause:3.2": "sha256:a"}, [], ["pause:3.2"], []),
        ({"pause:3.2": "sha256:a"}, [("c1", "sha256:a")], [], []),
        ({"plugin:2": "sha256:b"}, [("c1", "sha256:a")], ["plugin:2"], ["c1"]),
        ({}, [("c1", "sha256:a")], [], ["c1"]),
        ({"b": "sha256:b", "a": None}, [], ["a", "b"], []),
    ],
    ids=["first", "kept", "newer", "none", "several"],
)
def test_each_image_has_a_container_and_no_other_image_has(
    images: dict[str, str | None], holders: list[tuple[str, str]], missing: list[str], outdated: list[str]
) -> None:
    assert kept_images.plan(images, holders) == (missing, outdated)


DOCKER = """\
#!/bin/sh
case "$1 $2" in
"image inspect") echo sha256:of-the-manifest ;;
"ps --all") echo c1 ;;
"inspect c1") echo '[{"Id": "c1", "Image": "sha256:of-the-manifest"}]' ;;
*) exit 1 ;;
esac
"""


def test_container_of_an_image_whose_id_is_that_of_a_manifest_stays(tmp_path: Path) -> None:
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o755)
    asked = {"name": "x.tar.gz", "images": ["a:1"]}
    found = answer("nvidia_docker", "docker_kept_images", asked, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert (found["changed"], found["kept"]) == (False, [])


def test_reset_takes_away_what_keeps_images() -> None:
    assert load("k3s_reset/library/k3s_reset.py").KEEPER_LABEL == kept_images.LABEL

# SPDX-License-Identifier: Apache-2.0
"""A GPU in units: what each preset advertises, what a container gets for them, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tegra_device_plugin.board.health import HEALTHY, Health
from tegra_device_plugin.cli import main
from tegra_device_plugin.config.options import ConfigError
from tegra_device_plugin.config.settings import PluginSettings, load_plugin
from tegra_device_plugin.config.units import MAX_IDS, NumberedIds, lowest_id
from tegra_device_plugin.kubelet.endpoint import device_list
from tegra_device_plugin.sharing import memory_limit
from tegra_device_plugin.sharing.allocation import Allocation, RejectedRequestError, Resource
from tegra_device_plugin.sharing.resources import make_resources
from tegra_device_plugin.system.kubernetes import parse_quantity

from tests.conformance.plugin import Node

KUBELET_BYTES = 4 * 1024 * 1024


def read(tmp_path: Path, units: str) -> PluginSettings:
    path = tmp_path / "config.yaml"
    path.write_text(f"version: v1\nsharing:\n  units: {{{units}}}\n")
    return load_plugin(path, {}, {"host_root": board_with(tmp_path, 8 << 20)})


def board_with(tmp_path: Path, kib: int) -> str:
    """The files of a board with so much memory."""
    (tmp_path / "proc").mkdir(exist_ok=True)
    (tmp_path / "proc/meminfo").write_text(f"MemTotal:  {kib} kB\n")
    return str(tmp_path)


def resources_of(tmp_path: Path, units: str) -> list[Resource]:
    settings = read(tmp_path, units)._replace(gpu_limit_dir=tmp_path / "limit")
    return list(make_resources(settings, ("/dev/nvmap",), HEALTHY))


def allocated(resource: Resource, ids: list[str], tmp_path: Path) -> Allocation:
    files = Node(tmp_path)
    memory_limit.provide_files(files.limit, files.library)
    resource.prepare(ids)
    return resource.allocation_for(ids)


# Of each preset, of 6 GiB: its resources with their ids, and the environment of a container with 2 units.
EXPECTED: dict[str, tuple[dict[str, int], dict[str, str]]] = {
    "none": (
        {"jetson-k3s.github.io/gpu-core": 100, "jetson-k3s.github.io/gpu-memory": 24},
        {"NVIDIA_GPU_MEMORY_LIMIT": "512"},
    ),
    "hami": (
        {"nvidia.com/gpucores": 100, "nvidia.com/gpumem": 6144, "nvidia.com/gpu": 10},
        {"NVIDIA_GPU_MEMORY_LIMIT": "2", "CUDA_DEVICE_MEMORY_LIMIT_0": "2m"},
    ),
    "elastic": (
        {"elasticgpu.io/gpu-core": 100, "elasticgpu.io/gpu-memory": 6144},
        {"NVIDIA_GPU_MEMORY_LIMIT": "2"},
    ),
    "qgpu": (
        {"tke.cloud.tencent.com/qgpu-core": 100, "tke.cloud.tencent.com/qgpu-memory": 6},
        {"NVIDIA_GPU_MEMORY_LIMIT": "2048"},
    ),
    "vcuda": (
        {"tencent.com/vcuda-core": 100, "tencent.com/vcuda-memory": 24},
        {"NVIDIA_GPU_MEMORY_LIMIT": "512"},
    ),
    "gpushare": (
        {"aliyun.com/gpu-mem": 6},
        {
            "NVIDIA_GPU_MEMORY_LIMIT": "2048",
            "ALIYUN_COM_GPU_MEM_IDX": "0",
            "ALIYUN_COM_GPU_MEM_POD": "2",
            "ALIYUN_COM_GPU_MEM_CONTAINER": "2",
            "ALIYUN_COM_GPU_MEM_DEV": "6",
        },
    ),
    "metax": (
        {"metax-tech.com/vcore": 100, "metax-tech.com/vmemory": 6, "metax-tech.com/sgpu": 16},
        {"NVIDIA_GPU_MEMORY_LIMIT": "2048"},
    ),
    "koordinator": (
        {
            "koordinator.sh/gpu-core": 100,
            "koordinator.sh/gpu-memory-ratio": 100,
            "koordinator.sh/gpu.shared": 100,
        },
        {"NVIDIA_GPU_MEMORY_LIMIT": "122"},  # of 122.88
    ),
}


@pytest.mark.parametrize("preset", EXPECTED)
def test_a_preset_has_its_systems_names_units_and_environment(preset: str, tmp_path: Path) -> None:
    resources, env = EXPECTED[preset]
    settings = read(tmp_path, f"preset: {preset}, memoryTotal: 6Gi")
    assert settings.units
    assert settings.units.counts == resources
    assert tuple(settings.units.counts) == settings.units.resources == tuple(resources)
    found = {
        resource.name: resource for resource in resources_of(tmp_path, f"preset: {preset}, memoryTotal: 6Gi")
    }
    assert {name: len(resource.ids) for name, resource in found.items()} == resources
    memory = found[settings.units.memory.name]
    ids = [*memory.ids][3:5]
    expected = dict(allocated(memory, ids, tmp_path).envs)
    assert expected.pop("TEGRA_GPU_LIMIT_LEDGER") == "/run/tegra-gpu-limit/ledger"
    assert expected.pop("NVIDIA_VISIBLE_DEVICES") == "all"
    assert expected == env


@pytest.mark.parametrize("preset", EXPECTED)
def test_all_resources_of_a_preset_give_the_nodes_and_agree_on_the_environment(
    preset: str, tmp_path: Path
) -> None:
    seen: dict[str, str] = {}
    for resource in resources_of(tmp_path, f"preset: {preset}, memoryTotal: 6Gi"):
        given = allocated(resource, [next(iter(resource.ids))], tmp_path)
        assert given.device_nodes == ("/dev/nvmap",)
        assert seen.items() <= (seen | dict(given.envs)).items(), "a name has one value"
        seen |= dict(given.envs)
        if resource.limit is None:
            assert dict(given.envs) == {"NVIDIA_VISIBLE_DEVICES": "all"}
            assert given.mounts == ()
    assert "NVIDIA_GPU_MEMORY_LIMIT" in seen


def test_no_allocation_without_its_prepared_files(tmp_path: Path) -> None:
    _, memory = resources_of(tmp_path, "memoryTotal: 6Gi")
    with pytest.raises(RejectedRequestError, match=r"no memory limit is possible: .*ledgers/m9"):
        memory.allocation_for(["m9"])
    allocated(memory, ["m9"], tmp_path)
    (tmp_path / "limit" / memory_limit.LIBRARY).unlink()
    with pytest.raises(RejectedRequestError, match=f"no memory limit is possible: .*{memory_limit.LIBRARY}"):
        memory.prepare(["m9"])


def rejection(resource: Resource, count: int) -> str:
    """Give the reason for which a container cannot have so many ids; empty: it can."""
    try:
        resource.check([*resource.ids][:count])
    except RejectedRequestError as error:
        return str(error)
    return ""


def test_percents_are_requested_in_steps_where_the_system_has_them(tmp_path: Path) -> None:
    core, _ = resources_of(tmp_path, "preset: qgpu, memoryTotal: 6Gi")
    assert [count for count in (1, 4, 5, 7, 15, 96, 100) if not rejection(core, count)] == [5, 15, 100]
    assert rejection(core, 7).endswith("7 requested, but it is allocated in steps of 5: request 5 or 10")
    assert rejection(core, 3).endswith("request 5")
    core, _ = resources_of(tmp_path, "memoryTotal: 6Gi")
    assert not rejection(core, 7)


def test_a_problem_of_the_limit_is_one_of_the_memory_alone(tmp_path: Path) -> None:
    settings = read(tmp_path, "memoryTotal: 6Gi")
    problem, hot = Health(False, "limit-missing", "there is no library"), Health(False, "too-hot", "99 °C")
    core, memory = make_resources(settings, (), HEALTHY, problem)
    assert (core.health.healthy, memory.health.healthy) == (True, False)
    assert rejection(memory, 1).endswith("limit-missing: there is no library")
    both = make_resources(settings, (), hot, problem)
    assert [one.health.reason for one in both] == ["too-hot", "too-hot"]


# Of each preset's other resources: with how many of its ids a container needs no memory.
NEEDS_NO_MEMORY: dict[str, list[tuple[int, ...]]] = {
    "none": [(1, 100)],
    "hami": [(), ()],
    "elastic": [(1, 100)],
    "qgpu": [(100,)],
    "vcuda": [(100,)],
    "gpushare": [],
    "metax": [(), ()],
    "koordinator": [(), ()],
}


@pytest.mark.parametrize("preset", NEEDS_NO_MEMORY)
def test_a_request_for_the_gpu_requires_memory(preset: str, tmp_path: Path) -> None:
    found = resources_of(tmp_path, f"preset: {preset}, memoryTotal: 6Gi")
    (memory,) = [resource.name for resource in found if resource.limit]
    for resource, alone in zip((one for one in found if not one.limit), NEEDS_NO_MEMORY[preset], strict=True):
        needed = {count: resource.requires([*resource.ids][:count]) for count in (1, 100)}
        assert needed == {count: None if count in alone else memory for count in (1, 100)}


@pytest.mark.parametrize(
    ("units", "kib", "total"),
    [
        ("memoryTotal: 75%", 8 << 20, "6Gi"),
        ("memoryTotal: 100%", 8 << 20, "8Gi"),
        # Whole units: an 8 GB board has a bit less than that.
        ("memoryTotal: 75%", 7_900_000, "5632Mi"),
        ("memoryTotal: 75%, preset: gpushare", 7_900_000, "5Gi"),
        ("memoryTotal: 1%, memoryUnit: 1Mi", 7_900_000, "77Mi"),
        ("memoryTotal: 75%, preset: koordinator", 7_900_000, "5786Mi"),
    ],
)
def test_a_percentage_is_of_the_boards_own_memory(units: str, kib: int, total: str, tmp_path: Path) -> None:
    read(tmp_path, units)  # writes the file
    root = board_with(tmp_path, kib)
    for environment, flags in (({}, {"host_root": root}), ({"HOST_ROOT": root}, {})):
        found = load_plugin(tmp_path / "config.yaml", environment, flags).units
        assert found
        assert found.memory_total == parse_quantity(total)
    (tmp_path / "proc/meminfo").unlink()
    with pytest.raises(ConfigError, match="the board's memory is not known"):
        load_plugin(tmp_path / "config.yaml", {}, {"host_root": root})


def test_the_boards_own_root_of_the_file_counts_unless_a_flag_says_another(tmp_path: Path) -> None:
    path, root = tmp_path / "config.yaml", board_with(tmp_path, 8 << 20)
    path.write_text(
        f"version: v1\nflags: {{plugin: {{hostRoot: {root}}}}}\nsharing: {{units: {{memoryTotal: 50%}}}}\n"
    )
    found = load_plugin(path, {}, {}).units
    assert found
    assert found.memory_total == parse_quantity("4Gi")


def test_config_check_takes_percentages_of_the_board_of_host_root(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read(tmp_path, "memoryTotal: 25%")  # writes the file
    root = board_with(tmp_path, 8 << 20)
    assert main(["config", "check", f"--host-root={root}", f"{tmp_path}/config.yaml"]) == 0
    assert "no more than 2Gi of " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("units", "expected"),
    [
        ("", "sharing.units.memoryTotal is missing"),
        ("memoryTotal: 0", "memoryTotal: '0': more than 0"),
        ("memoryTotal: lots", "memoryTotal: 'lots': a quantity of bytes is needed, such as 256Mi"),
        ("memoryTotal: 6000Mi", "no multiple of the memoryUnit 256Mi: take 5888Mi or 6Gi"),
        ("memoryTotal: 1Mi", "memoryTotal: '1Mi': no multiple of the memoryUnit 256Mi: take 256Mi"),
        ("memoryTotal: 1Gi, memoryUnit: 0", "memoryUnit: '0': a multiple of 1Mi above 0"),
        ("memoryTotal: 1Gi, memoryUnit: 100k", "memoryUnit: '100k': a multiple of 1Mi"),
        ("memoryTotal: 1Gi, contextOverhead: -1Mi", "contextOverhead: '-1Mi': 0 or more is needed"),
        ("memoryTotal: 1Gi, contextOverhead: 1Gi", "contextOverhead: '1Gi': 0 or more is needed, and less"),
        ("memoryTotal: 256Gi, preset: hami", "take 190650Mi at most, or a larger memoryUnit"),
        ("memoryTotal: 1Gi, preset: nvshare", "one preset per node; allowed: none, hami, "),
        ("memoryTotal: [1Gi]", "sharing.units.memoryTotal must be text, not a list"),
        ("memoryTotal: 256Gi, memoryUnit: 1Mi", "take 190650Mi at most, or a larger memoryUnit"),
        ("memoryTotal: 1Gi, preset: [hami, qgpu]", "sharing.units.preset must be text, not a list"),
        ("memoryTotal: 1Gi, preset: gpushare, coreResource: a.b/c", "preset gpushare fixes the names"),
        ("memoryTotal: 1Gi, preset: hami, memoryUnit: 2Mi", "memoryUnit: '2Mi': preset hami fixes 1Mi"),
        ("memoryTotal: 1Gi, preset: koordinator, memoryUnit: 1Mi", "fixes a percent of memoryTotal"),
        ("memoryTotal: 99Mi, preset: koordinator", "memoryTotal: '99Mi': 100Mi at least"),
        (
            "memoryTotal: 1Gi, preset: hami, memoryResource: a.b/c",
            "preset hami fixes the names: leave it out",
        ),
        ("memoryTotal: 1Gi, coreResource: a b", "coreResource: 'a b': not the name of an extended resource"),
        ("memoryTotal: 1Gi, coreResource: a.b/c, memoryResource: a.b/c", "two names are needed"),
        ("memoryTotal: 0%", "memoryTotal: '0%': 1% to 100% of the board's memory can be offered"),
        ("memoryTotal: 101%", "memoryTotal: '101%': 1% to 100% of the board's memory can be offered"),
        ("memoryTotal: 12.5%", "memoryTotal: '12.5%': a percentage is needed from 1% to 100%, such as 75%"),
        ("memoryTotal: -5%", "memoryTotal: '-5%': a percentage is needed"),
        (f"memoryTotal: {'9' * 5000}%", "a percentage is needed"),
        ("memoryTotal: '%'", "memoryTotal: '%': a percentage is needed"),
        ("memoryTotal: 1%", "memoryTotal: '1%': that is less than 256Mi of the board's 8Gi"),
        ("memoryTotal: 1%, preset: koordinator", "memoryTotal: '1%': 100Mi at least"),
        ("memoryTotal: 50%, contextOverhead: 4Gi", "contextOverhead: '4Gi': 0 or more is needed, and less"),
        ("memoryTotal: 1Gi, cores: 5", "cores is not known; allowed: contextOverhead, coreResource"),
    ],
)
def test_invalid_units_are_rejected_with_a_remedy(units: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, units)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{tmp_path}/config.yaml:3: sharing.units")
    assert expected in problem


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            "  timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}\n",
            "config.yaml:3: sharing.units: beside timeSlicing: a GPU is shared in one way",
        ),
        ("resources: {gpus: [{pattern: '*', name: a.b/c}]}\n", "units have their own names"),
    ],
)
def test_another_kind_of_sharing_beside_units_is_rejected(more: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"version: v1\nsharing:\n  units: {{memoryTotal: 1Gi}}\n{more}")
    with pytest.raises(ConfigError, match=expected):
        load_plugin(path, {}, {})


def test_names_unit_and_overhead_are_free_without_preset(tmp_path: Path) -> None:
    units = read(
        tmp_path,
        "coreResource: a.b/core, memoryResource: a.b/mem, memoryUnit: 64Mi, "
        "memoryTotal: 1Gi, contextOverhead: 30Mi",
    ).units
    assert units
    assert units.counts == {"a.b/core": 100, "a.b/mem": 16}
    assert (units.context_overhead, units.memory_unit) == (30 << 20, "64Mi")


@pytest.mark.parametrize(("preset", "unit"), [("hami", "1024Ki"), ("gpushare", "1Mi"), ("gpushare", "1Gi")])
def test_a_unit_that_the_preset_has_may_be_named(preset: str, unit: str, tmp_path: Path) -> None:
    units = read(tmp_path, f"preset: {preset}, memoryTotal: 6Gi, memoryUnit: {unit}").units
    assert units and units.memory_bytes(1) == parse_quantity(unit)


def test_the_largest_number_of_ids_fits_into_a_message() -> None:
    ids = NumberedIds("m", MAX_IDS)
    assert len(device_list(ids, unhealthy=ids)) <= KUBELET_BYTES


@given(
    st.integers(1, 2000), st.text("m0123456789٣", max_size=6) | st.integers(0, 3000).map(lambda n: f"m{n}")
)
def test_numbered_ids_are_as_a_list_of_them_would_be(count: int, requested: str) -> None:
    ids, plain = NumberedIds("m", count), [f"m{number}" for number in range(count)]
    assert ([*ids], len(ids), requested in ids) == (plain, len(plain), requested in plain)


def test_a_number_that_python_does_not_parse_is_no_id() -> None:
    assert "m" + "9" * 100_000 not in NumberedIds("m", 10)


def test_the_lowest_id_is_the_lowest_number() -> None:
    assert lowest_id(["m10", "m9", "m100"]) == "m9"


def config_check(tmp_path: Path, capsys: pytest.CaptureFixture[str], units: str) -> list[str]:
    read(tmp_path, units)
    assert main(["config", "check", f"{tmp_path}/config.yaml"]) == 0
    return capsys.readouterr().out.splitlines()


def test_config_check_prints_units_and_guarantees(tmp_path: Path, capsys: pytest.CaptureFixture[Any]) -> None:
    lines = config_check(tmp_path, capsys, "preset: hami, memoryTotal: 6Gi, contextOverhead: 64Mi")
    assert lines[0].endswith("good: 100 x nvidia.com/gpucores, 6144 x nvidia.com/gpumem, 10 x nvidia.com/gpu")
    assert "rejected: nvidia.com/gpucores without nvidia.com/gpumem" in lines
    assert "not advertised, because it is the same memory: nvidia.com/gpumem-percentage" in lines
    assert "promised: no more than 6Gi of nvidia.com/gpumem is allocated" in lines
    assert "a process is charged 64Mi for its CUDA context" in lines
    lines = config_check(tmp_path, capsys, "preset: qgpu, memoryTotal: 6Gi")
    assert any("in steps of 5" in line for line in lines)
    assert any("with all of tke.cloud.tencent.com/qgpu-core and no" in line for line in lines)

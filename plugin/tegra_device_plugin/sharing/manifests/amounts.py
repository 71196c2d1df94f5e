# SPDX-License-Identifier: Apache-2.0
"""Judges amounts of extended resources, by the names and units of a preset."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from tegra_device_plugin.config.units import PERCENT, PRESETS, Core, Preset, Units
from tegra_device_plugin.sharing.manifests.findings import Finding
from tegra_device_plugin.sharing.manifests.text import Field
from tegra_device_plugin.system.kubernetes import DEFAULT_RESOURCE, parse_quantity, render_quantity

_NUMBER = re.compile(r"[0-9]{1,9}")
_SPELLED_BYTES = re.compile(r"([0-9]{1,9}) ?([KMGT])B", re.IGNORECASE)
_ONE_GPU = "a board has one GPU"


class Offer(NamedTuple):
    """The resources of a preset. The numbers are None where only a configuration says them."""

    preset: Preset
    unit: int | None
    """Bytes of one device of memory; None where it is a percent."""
    total: int | None = None
    memory_ids: int | None = None


def offer_of(units: Units) -> Offer:
    """Give the offer of a configuration."""
    preset = Preset(units.memory, units.core, units.count, units.unserved)
    unit = units.memory_total // units.memory_ids if units.memory.units or units.preset == "none" else None
    return Offer(preset, unit, units.memory_total, units.memory_ids)


def default_offer(preset: str) -> Offer:
    """Give the offer of a preset, with the default unit."""
    found = PRESETS[preset]
    return Offer(found, next(iter(found.memory.units), None))


def number(text: str) -> int | None:
    """Give the integer, None for another text."""
    return int(text) if _NUMBER.fullmatch(text) else None


def size(text: str) -> int | None:
    """Give the bytes of `1Gi`, and of `4GB`, which means 4 GiB to the systems that write it."""
    if found := _SPELLED_BYTES.fullmatch(text):
        return int(found[1]) << {"K": 10, "M": 20, "G": 30, "T": 40}[found[2].upper()]
    try:
        return parse_quantity(text)
    except ValueError:
        return None


def reading(text: str) -> str:
    """Say how Kubernetes reads an amount that is not an integer."""
    try:
        count = parse_quantity(text)
    except ValueError:
        return f"{text} is no quantity, so the API server rejects the object"
    return f"Kubernetes reads {text} as {count} devices"


def judge(field: Field, offer: Offer) -> Finding | None:
    """Give a finding on an amount, None if the amount runs as it is."""
    preset, name = offer.preset, field.key
    if name == preset.memory.name:
        return _memory(field, offer)
    if preset.core and name == preset.core.name:
        return _core(field, preset.core)
    if preset.count and name == preset.count.name:
        return one_gpu(field)
    if other := _OTHER_NAMES.get(name):
        return other(field, offer)
    return Finding("refused", field, "not advertised here, so the pod stays Pending", ())


def whole_gpu(field: Field) -> Finding | None:
    """Judge an amount in a pod that needs no preset, on a board whose GPU is exclusive."""
    if field.key == DEFAULT_RESOURCE:
        return one_gpu(field)
    if field.key == "metax-tech.com/gpu":
        text = f"not advertised: the name of a GPU here is {DEFAULT_RESOURCE}"
        return Finding("refused", field, text, (f"{DEFAULT_RESOURCE}: 1",))
    return Finding("refused", field, "not advertised here, so the pod stays Pending")


def one_gpu(field: Field) -> Finding | None:
    if number(field.text) == 1:
        return None
    return Finding("refused", field, _ONE_GPU, (f"{field.key}: 1",))


def _core(field: Field, core: Core) -> Finding | None:
    wanted = number(field.text)
    if wanted is None:
        return Finding("refused", field, f"{reading(field.text)}; percents are an integer")
    if wanted > PERCENT:
        text = f"{_ONE_GPU}, which is {PERCENT} percent"
        return Finding("refused", field, text, (f"{field.key}: {PERCENT}",))
    if wanted % core.step:
        rounded = -(-wanted // core.step) * core.step
        text = f"refused, because it is no multiple of {core.step}"
        return Finding("refused", field, text, (f"{field.key}: {rounded}",))
    return None


def _memory(field: Field, offer: Offer) -> Finding | None:
    wanted = number(field.text)
    if wanted is None:
        found = size(field.text)
        if found is None or offer.unit is None:
            return Finding("refused", field, f"{reading(field.text)}; an integer is needed")
        count = max(1, -(-found // offer.unit))
        text = f"{reading(field.text)}; one device is {render_quantity(offer.unit)}"
        return Finding("refused", field, text, (f"{field.key}: {count}",))
    if offer.memory_ids is not None and wanted > offer.memory_ids:
        text = f"the configuration offers {offer.memory_ids}, so the pod stays Pending"
        return Finding("refused", field, text)
    return None


# Names that no preset advertises.


def _in_ratio(field: Field, offer: Offer) -> Finding:
    """Koordinator's bytes, as percents of the memory that is offered."""
    found, name = size(field.text), offer.preset.memory.name
    if found is None:
        return Finding("refused", field, reading(field.text))
    text = "bytes are not advertised: each would be one device, and a kubelet takes 195700 of a resource"
    if offer.total is None:
        return Finding(
            "refused", field, f"{text}. Write {name}: 100 x {field.text} / memoryTotal, rounded up"
        )
    percents = max(1, -(-found * PERCENT // offer.total))
    if percents > PERCENT:
        text = f"the configuration offers {render_quantity(offer.total)}, so the pod stays Pending"
        return Finding("refused", field, text)
    return Finding("refused", field, text, (f"{name}: {percents}",))


def _in_memory_units(field: Field, offer: Offer) -> Finding:
    """HAMi's percents of the memory, in MiB."""
    percents, name = number(field.text), offer.preset.memory.name
    text = "not advertised, because it names the memory a second time"
    if percents is None or not 1 <= percents <= PERCENT:
        return Finding("refused", field, f"{text}. Percents are an integer from 1 to {PERCENT}")
    if offer.memory_ids is None:
        return Finding("refused", field, f"{text}. Write {name}: {percents} percent of memoryTotal, in MiB")
    return Finding("refused", field, text, (f"{name}: {max(1, offer.memory_ids * percents // PERCENT)}",))


def _percents_of_gpu(field: Field, offer: Offer) -> Finding:
    """`koordinator.sh/gpu`: so many percents of the GPU's time and of its memory."""
    percents, preset = number(field.text), offer.preset
    text = "not advertised, because it names time and memory a second time"
    if percents is None or not 1 <= percents <= PERCENT:
        return Finding("refused", field, f"{text}. {_ONE_GPU}, which is {PERCENT} percent")
    count = (f"{preset.count.name}: 1",) if preset.count else ()
    amounts = tuple(f"{one.name}: {percents}" for one in (preset.core, preset.memory) if one)
    return Finding("refused", field, text, (*count, *amounts))


def _removed(text: str) -> Callable[[Field, Offer], Finding]:
    return lambda field, _offer: Finding("refused", field, f"not advertised: {text}", ())


def _renamed(name: str) -> Callable[[Field, Offer], Finding]:
    def found(field: Field, _offer: Offer) -> Finding:
        return Finding(
            "refused", field, f"not advertised: the name here is {name}", (f"{name}: {field.text}",)
        )

    return found


_OTHER_NAMES: dict[str, Callable[[Field, Offer], Finding]] = {
    "koordinator.sh/gpu-memory": _in_ratio,
    "koordinator.sh/gpu": _percents_of_gpu,
    "nvidia.com/gpumem-percentage": _in_memory_units,
    "nvidia.com/priority": _removed("with the node agent, percents are the weight of a pod"),
    "metax-tech.com/sgpu": _removed("koordinator.sh/gpu.shared counts the same GPU"),
    "tke.cloud.tencent.com/qgpu-core-greedy": _renamed("tke.cloud.tencent.com/qgpu-core"),
    "elasticgpu.com/gpu-core": _renamed("elasticgpu.io/gpu-core"),
    "elasticgpu.com/gpu-memory": _renamed("elasticgpu.io/gpu-memory"),
    "aliyun.com/gpu-count": _removed(_ONE_GPU),
}
SAME_MEMORY = frozenset(
    (
        "koordinator.sh/gpu-memory",
        "koordinator.sh/gpu",
        "nvidia.com/gpumem-percentage",
        "elasticgpu.com/gpu-memory",
    )
)
"""Those of them that name memory."""

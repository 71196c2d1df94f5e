# SPDX-License-Identifier: Apache-2.0
"""Metrics in Prometheus' text format. Values are finite.

The format is a few lines of text; the client library for it would cost 4 MB of memory and 30 ms of start.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Metric(NamedTuple):
    name: str
    kind: Literal["counter", "gauge"]
    help: str
    samples: tuple[tuple[Mapping[str, str], float], ...] = ()


Samples = Iterable[tuple[Mapping[str, str], float]]


def exposition(metrics: Iterable[Metric]) -> str:
    """Give the page; a metric without samples is left out."""
    lines = []
    for metric in metrics:
        if metric.samples:
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
            lines += [f"{metric.name}{_labels(labels)} {_number(value)}" for labels, value in metric.samples]
    return "\n".join(lines) + "\n"


def gauge(name: str, text: str, value: float | None, **labels: str) -> Metric:
    """Give a gauge with one sample, or with none while the value is not known."""
    return Metric(name, "gauge", text, () if value is None else ((labels, value),))


def gauges(name: str, text: str, samples: Samples) -> Metric:
    return Metric(name, "gauge", text, tuple(samples))


def counters(name: str, text: str, samples: Samples) -> Metric:
    return Metric(name, "counter", text, tuple(samples))


def results(name: str, text: str, **values: int) -> Metric:
    return counters(name, text, (({"result": result}, value) for result, value in values.items()))


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else repr(value)


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items()) + "}"

"""The exposition of metrics, for Prometheus and OpenMetrics, rendered in slices.

The data path does not use prometheus-client: families are read from plain counters at each scrape. With 20,000
partitions a scrape is tens of thousands of lines, so it is made in slices, between which the event loop runs.

Lines of samples are the same in both formats. They are written here, as prometheus-client takes four times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Literal, NamedTuple

from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

SAMPLES_PER_SLICE = 100
"""About 0.3 ms of work, for which other connections have to wait."""


class Family(NamedTuple):
    """One metric. Its samples, pairs of label values and a value, are read lazily.

    An empty label is left out: Prometheus takes it for one that is not there.
    """

    name: str
    kind: Literal["counter", "gauge"]
    documentation: str
    labels: tuple[str, ...]
    samples: Iterable[tuple[tuple[str, ...], float]]


Samples = float | Mapping[Any, float] | Iterable[tuple[tuple[str, ...], float]]
"""Of a metric without labels its value, with one label the values by it, with several pairs as a Family has them."""


def gauge(name: str, documentation: str, samples: Samples, labels: str = "") -> Family:
    """Return a metric that goes up and down. `labels` are their names, with blanks between."""
    return Family(name, "gauge", documentation, tuple(labels.split()), _pairs(samples))


def counter(name: str, documentation: str, samples: Samples, labels: str = "") -> Family:
    """Return a metric that only grows. It is shown with `_total` behind its name."""
    return Family(name, "counter", documentation, tuple(labels.split()), _pairs(samples))


def _pairs(samples: Samples) -> Iterable[tuple[tuple[str, ...], float]]:
    if isinstance(samples, Mapping):
        return [((label,), value) for label, value in samples.items()]
    return [((), samples)] if isinstance(samples, (int, float)) else samples


class _One(Collector):
    """The form in which an encoder of prometheus-client takes a metric: as a collector."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return (self._metric,)


def content_type(accept: str) -> str:
    """Return the content type for an Accept header: OpenMetrics or Prometheus text."""
    return choose_encoder(accept)[1]


def is_openmetrics(accept: str) -> bool:
    """Whether OpenMetrics is asked for. What is rendered depends on nothing else of an Accept header."""
    return "openmetrics" in content_type(accept)


def render(shown: Iterable[Family], accept: str = "") -> Iterator[bytes]:
    """Yield the exposition in slices of SAMPLES_PER_SLICE samples; the event loop is to run after each slice.

    Metrics of the process (memory, CPU, descriptors) come last. The slices together are one valid exposition.
    """
    encode, _ = choose_encoder(accept)
    for family in shown:
        name = f"{family.name}_total" if family.kind == "counter" else family.name
        labels = sorted((label, at) for at, label in enumerate(family.labels))
        samples = iter(family.samples)
        head = encode(_One(Metric(family.name, family.documentation, family.kind))).removesuffix(_END)
        while batch := list(islice(samples, SAMPLES_PER_SLICE)):
            yield head + "".join([_line(name, labels, values, value) for values, value in batch]).encode()
            head = b""
    for metric in ProcessCollector(registry=None).collect():
        yield encode(_One(metric)).removesuffix(_END)
    if is_openmetrics(accept):
        yield _END


_END = b"# EOF\n"
_number: Callable[[float], str] = floatToGoString


def _line(name: str, labels: list[tuple[str, int]], values: tuple[str, ...], value: float) -> str:
    pairs = ",".join([f'{label}="{_escaped(one)}"' for label, at in labels if (one := values[at])])
    return f"{name}{{{pairs}}} {_number(value)}\n" if pairs else f"{name} {_number(value)}\n"


def _escaped(text: str) -> str:
    return text if text.isalnum() else text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")

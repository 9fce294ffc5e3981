"""The exposition of metrics, for Prometheus and OpenMetrics, rendered in slices.

The data path does not use prometheus-client: families are read from plain counters at each scrape. With 20,000
partitions a scrape is tens of thousands of lines, so it is made in slices, between which the event loop runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from typing import Literal, NamedTuple

from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

SAMPLES_PER_SLICE = 100
"""About 1 ms of work, for which other connections have to wait."""


class Family(NamedTuple):
    """One metric. Its samples, pairs of label values and a value, are read lazily.

    An empty label is left out: Prometheus takes it for one that is not there.
    """

    name: str
    kind: Literal["counter", "gauge"]
    documentation: str
    labels: tuple[str, ...]
    samples: Iterable[tuple[tuple[str, ...], float]]


class _Slice(Collector):
    """The form in which an encoder of prometheus-client takes a metric: as a collector."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return (self._metric,)


def content_type(accept: str) -> str:
    """Return the content type for an Accept header: OpenMetrics or Prometheus text."""
    return choose_encoder(accept)[1]


async def render(shown: Iterable[Family], accept: str = "") -> AsyncIterator[bytes]:
    """Yield the exposition in slices of SAMPLES_PER_SLICE samples; the event loop runs after each slice.

    Metrics of the process (memory, CPU, descriptors) come last. The slices together are one valid exposition.
    """
    encode, chosen = choose_encoder(accept)
    for family in shown:
        samples = iter(family.samples)
        first = True
        while batch := list(islice(samples, SAMPLES_PER_SLICE)):
            text = _body(encode(_Slice(_metric(family, batch))))
            yield text if first else _without_header(text)
            first = False
            await asyncio.sleep(0)
    for metric in ProcessCollector(registry=None).collect():
        yield _body(encode(_Slice(metric)))
        await asyncio.sleep(0)
    if "openmetrics" in chosen:
        yield _END


_END = b"# EOF\n"


def _metric(family: Family, batch: list[tuple[tuple[str, ...], float]]) -> Metric:
    metric = Metric(family.name, family.documentation, family.kind)
    name = f"{family.name}_total" if family.kind == "counter" else family.name
    labels = family.labels
    metric.samples = [
        Sample(name, {label: one for label, one in zip(labels, values, strict=True) if one}, value)
        for values, value in batch
    ]
    return metric


def _body(text: bytes) -> bytes:
    return text.removesuffix(_END)


def _without_header(text: bytes) -> bytes:
    start = 0
    while text.startswith(b"# ", start):
        start = text.index(b"\n", start) + 1
    return text[start:]

# SPDX-License-Identifier: Apache-2.0
"""The exposition of metrics, for Prometheus and OpenMetrics: rendered in slices, once for all who ask meanwhile.

The data path does not use prometheus-client: families are read from plain counters at each scrape. With 20,000
partitions a scrape is tens of thousands of lines, so it is made in slices, between which the event loop runs. Where
that takes long, those who ask soon after get the same, so that rendering takes a tenth of a core at most.

Lines of samples are the same in both formats. They are written here, as prometheus-client takes four times as long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

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


MOST_UNREAD: Final = 32 * 2**20
"""How many bytes of renderings, the last of them whole, are kept for those who read slowly."""

_PIECE: Final = 2**16  # bytes written in one turn of the event loop
_CHEAP_SECONDS: Final = 0.01  # a rendering that takes less, of some 4,000 series, is made anew for whoever asks next
_FRESH: Final = 9  # a longer one is given to all who ask in so many times as long after it


@dataclass(eq=False, slots=True)
class _Rendered:
    """The metrics of one moment, in pieces, and how they are being written to some."""

    pieces: list[bytes] = field(default_factory=list)
    writings: set[asyncio.Timeout] = field(default_factory=set)

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))


class Scrapes:
    """Renders `metrics`, given an Accept header, and writes them to those who ask.

    `clock` gives seconds of CPU of this thread.
    """

    def __init__(
        self, metrics: Callable[[str], Iterator[bytes]], clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._turn = asyncio.Lock()
        self._current: dict[bool, asyncio.Task[_Rendered]] = {}  # by whether it is OpenMetrics
        self._written: list[_Rendered] = []  # those that somebody reads, the oldest first

    async def write(self, accept: str, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Write the metrics in pieces, one of all scrapers' in each turn of the event loop.

        Raises TimeoutError where the reader is so slow that too many newer ones would have to be kept.
        """
        is_open = is_openmetrics(accept)
        if (rendering := self._current.get(is_open)) is None:
            self._cut_slow()
            rendering = self._current[is_open] = asyncio.create_task(self._render(accept, is_open))
        rendered = await asyncio.shield(rendering)  # shielded, as others wait for it too
        async with asyncio.timeout(None) as writing:
            if not rendered.writings:
                self._written.append(rendered)
            rendered.writings.add(writing)
            try:
                for piece in rendered.pieces:
                    async with self._turn:
                        await asyncio.sleep(0)
                    await write(piece)
            finally:
                rendered.writings.remove(writing)
                if not rendered.writings:
                    self._written.remove(rendered)

    async def _render(self, accept: str, is_open: bool) -> _Rendered:
        """Render in slices, between which the event loop runs."""
        rendered, piece = _Rendered(), bytearray()
        seconds, began = 0.0, self._clock()
        try:
            for part in self._metrics(accept):
                piece += part
                if len(piece) >= _PIECE:
                    rendered.pieces.append(bytes(piece))
                    piece.clear()
                seconds += self._clock() - began
                await asyncio.sleep(0)
                began = self._clock()
            rendered.pieces.append(bytes(piece))
        except BaseException:
            del self._current[is_open]
            raise
        fresh_seconds = _FRESH * seconds if seconds >= _CHEAP_SECONDS else 0.0
        asyncio.get_running_loop().call_later(fresh_seconds, self._current.pop, is_open)
        return rendered

    def _cut_slow(self) -> None:
        """End the writings of what is older than the newest MOST_UNREAD bytes."""
        unread = 0
        for rendered in reversed(self._written):
            if unread >= MOST_UNREAD:
                for writing in rendered.writings:
                    if not writing.expired():
                        writing.reschedule(asyncio.get_running_loop().time())
            unread += rendered.size

# SPDX-License-Identifier: Apache-2.0
"""What `weir status` says of sidecars: their troubles, what is hidden of their throttles, what they have unlike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from weir.cli.sidecars import Reply

LAYER_WORDS: Final = {"file": "the file's throttle", "kafka": "Kafka's own throttle"}
"""The layers below what was set over HTTP, as sentences name them."""

_WHERE: Final = "docs/operations.md"
_MOST_NAMED: Final = 3
_SECTIONS: Final = {"samples_lost": "weirsamplesdropped", "saturated": "weirsidecarsaturated"}  # others: weirtrouble


def sentences(replies: Sequence[Reply]) -> Iterator[str]:
    """Yield a sentence for each trouble that a sidecar tells of itself, and for what sidecars have unlike.

    A sidecar of an earlier version tells of neither.
    """
    answered = [reply.value for reply in replies if reply.error is None]
    if len(replies) > 1 and not answered:
        yield f"No sidecar tells of itself: none runs, or none is reached from here ({_WHERE}#weirsidecardown)."
    for status in answered:
        for kind, sentence in status.get("troubles", {}).items():
            section = _SECTIONS.get(kind, "weirtrouble")
            who = "A sidecar" if status["broker_id"] is None else f"Broker {status['broker_id']}"
            yield f"{who}: {sentence} ({_WHERE}#{section})."
        hidden = status.get("hidden_by_http", {})
        hidden_words = [f"{_some(hidden[layer])} of {words}" for layer, words in LAYER_WORDS.items() if layer in hidden]
        if hidden_words:
            yield (
                f"Broker {status['broker_id']}: what was set over HTTP hides {' and '.join(hidden_words)};"
                " `weir throttle clear` ends this."
            )
    for what in ("limits", "quotas"):
        alike = defaultdict(list)
        for status in answered:
            if "digests" in status:
                alike[status["digests"][what]].append(str(status["broker_id"]))
        if len(alike) > 1:
            groups = "; ".join(sorted(", ".join(sorted(brokers, key=int)) for brokers in alike.values()))
            yield f"The {what} of these brokers' sidecars differ: {groups} ({_WHERE}#weirunlikesettings)."


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more settings" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more

"""What `weir status` says of sidecars that are in trouble, or unlike each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from weir.cli.sidecars import Reply

_WHERE: Final = "docs/operations.md"


def sentences(replies: Sequence[Reply]) -> Iterator[str]:
    """Yield a sentence for each trouble that a sidecar tells of itself, and for what sidecars have unlike.

    A sidecar of an earlier version tells of neither.
    """
    answered = [reply.value for reply in replies if reply.error is None]
    if len(replies) > 1 and not answered:
        yield f"No sidecar tells of itself: none runs, or none is reached from here ({_WHERE}#weirsidecardown)."
    for status in answered:
        for sentence in status.get("troubles", {}).values():
            yield f"Broker {status['broker_id']}: {sentence} ({_WHERE}#weirtrouble)."
    for what in ("limits", "quotas"):
        alike = defaultdict(list)
        for status in answered:
            if "digests" in status:
                alike[status["digests"][what]].append(str(status["broker_id"]))
        if len(alike) > 1:
            groups = "; ".join(sorted(", ".join(sorted(brokers, key=int)) for brokers in alike.values()))
            yield f"The {what} of these brokers' sidecars differ: {groups} ({_WHERE}#weirunlikesettings)."

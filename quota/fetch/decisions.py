"""What a throttle decides about one replica fetch. A decision is a value; the proxy carries it out."""

from __future__ import annotations

from collections.abc import Callable, Container

from msgspec import Struct

from weir.protocol.fetch_request import FetchRequest
from weir.protocol.response_scanner import ResponseHead
from weir.protocol.take_out import Admit


class Forward(Struct, frozen=True):
    """Send `request` to the leader.

    - `appended` holds `appended_topics` encoded topics for the end of the response: the empty entries of what was left
      out.
    - `walk` names the topics in whose records whole batches are told from cut ones (UTF-8 names; from v13 on ids).
    - `head_patch` turns the head of the leader's response into the follower's, where there are sessions.
    - `most_partitions` is how many partitions a true answer may have (in a session: all that are in it). None is no
      bound.
    - `admit` says what passes of each partition's records in the answer; None lets all pass. `holds_all`: a small
      answer is held whole, so that batches which are cut at the end do not pass.
    """

    request: FetchRequest
    appended: bytes = b""
    appended_topics: int = 0
    walk: Container[bytes] = ()
    head_patch: Callable[[ResponseHead], ResponseHead] | None = None
    most_partitions: int | None = None
    admit: Admit | None = None
    holds_all: bool = False


class Hold(Struct, frozen=True):
    """Keep the request, and plan it again at `until` (clock seconds) or earlier, when the budget changes."""

    until: float


class Answer(Struct, frozen=True):
    """Send `frame` to the follower (size prefix included); the leader never sees the request."""

    frame: bytes


Decision = Forward | Hold | Answer

# SPDX-License-Identifier: Apache-2.0
"""What a throttle decides about one replica fetch. A decision is a value; the proxy carries it out."""

from __future__ import annotations

from msgspec import Struct

from weir.protocol.fetch_request import FetchRequest
from weir.protocol.response_scanner import Expected


class Forward(Struct, frozen=True):
    """Send `request` to the leader. Its answer is to be as `expected`, and is changed as that says.

    - Appended are the empty entries of what was left out.
    - Walked are the topics in whose records whole batches are told from cut ones (UTF-8 names; from v13 on ids).
    - The head of the leader's response becomes the follower's, where there are sessions.
    - A true answer may have so many partitions (in a session: all that are in it). None is no bound.

    `is_granted`: on the leader's side, bytes of a quota may come with the answer.
    """

    request: FetchRequest
    expected: Expected = Expected()
    is_granted: bool = False


class Hold(Struct, frozen=True):
    """Keep the request, and plan it again at `until` (clock seconds) or earlier, when the budget changes."""

    until: float


class Answer(Struct, frozen=True):
    """Send `frame` to the follower (size prefix included); the leader never sees the request."""

    frame: bytes


Decision = Forward | Hold | Answer

"""What other packages use of Fetch v0 to v18: requests, made-up responses, and what was seen of a response."""

from weir.protocol.fetch_request import (
    CONSUMER,
    FetchRequest,
    ForgottenTopic,
    check_replica_fetch,
    decode_fetch_request,
    encode_fetch_request,
    replica_state_tags,
)
from weir.protocol.fetch_response import ResponseTopic, encode_fetch_response, encode_response_topics, made_up_entries
from weir.protocol.fetch_versions import (
    DECODED_VERSIONS,
    FETCH_VERSIONS,
    MAX_INT32,
    NO_LEADER_EPOCH,
    FetchVersion,
    fetch_version,
)
from weir.protocol.request_topics import RequestTopic
from weir.protocol.response_body import RESPONSE_ENTRY

__all__ = [
    "CONSUMER",
    "DECODED_VERSIONS",
    "FETCH_VERSIONS",
    "MAX_INT32",
    "NO_LEADER_EPOCH",
    "RESPONSE_ENTRY",
    "FetchRequest",
    "FetchVersion",
    "ForgottenTopic",
    "RequestTopic",
    "ResponseTopic",
    "check_replica_fetch",
    "decode_fetch_request",
    "encode_fetch_request",
    "encode_fetch_response",
    "encode_response_topics",
    "fetch_version",
    "made_up_entries",
    "replica_state_tags",
]

# SPDX-License-Identifier: Apache-2.0
"""Every combination of what `[capture]` can say with the tables of TLS: which are refused, and what the others use."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from tests.fakes.pki import Authority
from weir.proxy.config.keys import RouteKeys
from weir.proxy.config.load import parse_config
from weir.proxy.config.reader import ConfigError

pytestmark = pytest.mark.long

SIDES = ((), ("leader",), ("follower",), ("leader", "follower"))
FROM = ("brokers", "anyone")
WHEN = ("always", "throttled")
TLS = ("none", "server", "server, upstream", "mutual", "mutual, upstream", "mutual without names, upstream", "upstream")
BETWEEN_SIDECARS = ("none", "prefer", "require")
CLUSTER = (True, False)

Combination = tuple[tuple[str, ...], str, str, str, str, bool]


def text_of(combination: Combination, pem: str) -> str:
    sides, from_, when, tls, sidecars, cluster = combination
    lines = ["broker_id = 1"]
    if cluster:
        lines += ["[cluster]", 'bootstrap_servers = "127.0.0.1:9092"']
    lines += ["[capture]", "port = 9092", f"sides = {list(sides)}", f'from = "{from_}"', f'when = "{when}"']
    if tls.startswith(("server", "mutual")):
        lines += ["[capture.tls]", pem]
    if tls.startswith("mutual"):
        lines += ['client_auth = "required"']
        lines += [] if "without names" in tls else ['allowed_names = ["broker-*"]']
    if "upstream" in tls:
        lines += ["[capture.upstream_tls]"]
    if sidecars != "none":
        lines += ["[tls]", pem, 'allowed_names = ["broker-*"]', f'mode = "{sidecars}"']
    return "\n".join(lines)


def refused(combination: Combination) -> Iterator[str]:
    """Yield the fields for each of which a combination has to be refused."""
    sides, _, when, tls, sidecars, cluster = combination
    if not cluster:
        yield "capture"
    if not sides:
        yield "capture.sides"
    if tls == "upstream":  # whoever connects without TLS would be a broker
        yield "capture.upstream_tls"
    if tls in ("server", "mutual"):  # the broker's own TLS is behind the port
        yield "capture.upstream_tls"
    if "without names" in tls:
        yield "capture.tls.allowed_names"
    if tls not in ("none", "upstream") and "leader" not in sides:
        yield "capture.tls"
    if sidecars == "require" and when == "throttled":  # one is there, another one is not
        yield "tls.mode"


@pytest.mark.parametrize("tls", TLS)
def test_each_combination_is_refused_or_used_as_it_says(tls: str, tmp_path: Path) -> None:
    """A refusal names the key that is the reason."""
    authority = Authority(tmp_path)
    issued = authority.issue("broker-1")
    pem = f'certificate = "{issued.together}"\nca = "{authority.ca}"'
    accepted = 0
    for combination in product(SIDES, FROM, WHEN, (tls,), BETWEEN_SIDECARS, CLUSTER):
        expected = set(refused(combination))
        try:
            config = parse_config(text_of(combination, pem))
        except ConfigError as error:
            assert error.field in expected, combination
            continue
        assert not expected, combination
        accepted += 1
        keys = RouteKeys(config)
        (server, client), (nobody, onwards) = keys.captured_ingress, keys.captured_egress
        sidecars = combination[4]
        assert nobody is None, "no certificate has the names of peers"
        assert (onwards is not None) == (sidecars != "none"), combination
        if tls == "none":
            assert client is None
            assert (server is not None) == (sidecars != "none")
            assert server is None or server.takes_plaintext == (sidecars == "prefer")
        else:
            assert server is not None and client is not None
            assert (server.takes_plaintext, client.falls_back) == (False, False)
            assert client.keys.files.has_certificate == tls.startswith("mutual")
    assert (accepted > 0) == (tls in ("none", "server, upstream", "mutual, upstream"))

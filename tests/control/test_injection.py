# SPDX-License-Identifier: Apache-2.0
"""The admission webhook: what it answers, as Kubernetes asks."""

from __future__ import annotations

import base64
import json
import ssl
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from tests.fakes.pki import Authority
from weir.control.injection import InjectionError, Sidecar, application, load_keys, read_sidecar, reviewed, serve

SIDECAR = Sidecar(
    container={"name": "weir", "args": ["/etc/weir/{pod}.toml"]},
    volumes=[{"name": "keys", "secret": {"secretName": "keys-of-{pod}"}}],
    annotations={"weir/status": "injected weir:1"},
    imagePullSecrets=[{"name": "registry"}],
)


def review(spec: Any, **metadata: Any) -> bytes:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    request = {"uid": "7", "operation": "CREATE", "object": pod}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


def patch_of(answer: dict[str, Any]) -> Any:
    assert answer["response"]["patchType"] == "JSONPatch"
    return json.loads(base64.b64decode(answer["response"]["patch"]))


def test_a_pod_gets_the_sidecar_under_its_own_names() -> None:
    answer = reviewed(review({"containers": []}, name="kafka-0"), SIDECAR)
    assert (answer["kind"], answer["response"]["uid"], answer["response"]["allowed"]) == ("AdmissionReview", "7", True)
    container = {"name": "weir", "args": ["/etc/weir/kafka-0.toml"]}
    assert patch_of(answer) == [
        {"op": "add", "path": "/spec/volumes", "value": []},
        {"op": "add", "path": "/spec/initContainers", "value": []},
        {"op": "add", "path": "/spec/imagePullSecrets", "value": []},
        {"op": "add", "path": "/metadata/annotations", "value": {}},
        {"op": "add", "path": "/metadata/annotations/weir~1status", "value": "injected weir:1"},
        {
            "op": "add",
            "path": "/spec/volumes/-",
            "value": {"name": "keys", "secret": {"secretName": "keys-of-kafka-0"}},
        },
        {"op": "add", "path": "/spec/initContainers/-", "value": container},
        {"op": "add", "path": "/spec/imagePullSecrets/-", "value": {"name": "registry"}},
    ]


def test_a_review_that_is_nested_too_deeply_is_none() -> None:
    deep = b'{"request":{"uid":"7","object":{"metadata":{},"spec":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}}}"
    with pytest.raises(ValueError, match="too deeply"):
        reviewed(deep, SIDECAR)


def test_what_a_pod_has_stays() -> None:
    secrets = {"imagePullSecrets": [{"name": "registry"}]}
    spec = {"volumes": [{"name": "data"}], "initContainers": [{"name": "init"}], **secrets}
    answer = reviewed(review(spec, name="kafka-0", annotations={"a": "b"}), SIDECAR)
    paths = [each["path"] for each in patch_of(answer)]
    assert paths == ["/metadata/annotations/weir~1status", "/spec/volumes/-", "/spec/initContainers/-"]


async def test_server_answers_reviews_and_says_what_is_none() -> None:
    async with TestClient(TestServer(application(SIDECAR))) as client:
        answer = await client.post("/pods", data=review({}, name="kafka-0"))
        assert answer.status == 200
        assert (await answer.json())["response"]["allowed"] is True
        assert (await client.get("/healthz")).status == 200
        for body in (b"", b"{}", b'{"request": {"uid": 7}}', b"[" * 10_000):
            answer = await client.post("/pods", data=body)
            assert (answer.status, "no review" in (await answer.json())["error"]) == (400, True)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "cannot be read"),
        ("{", "has no sidecar"),
        ('{"container": {}}', "missing required field `volumes`"),
        ('{"container": {}, "volumes": [], "volume": []}', "unknown field `volume`"),
        ('{"container": {}, "volumes": []}', "the container has no name"),
    ],
)
def test_a_file_without_a_sidecar_is_told(tmp_path: Path, text: str | None, sentence: str) -> None:
    path = tmp_path / "sidecar.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InjectionError, match=sentence):
        read_sidecar(path)


def test_keys_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    with pytest.raises(InjectionError, match=r"tls\.crt.*No such file"):
        serve("127.0.0.1", 0, tmp_path / "tls.crt", tmp_path / "tls.key", SIDECAR)


def test_certificate_without_its_key_leaves_the_old_one_in_use(tmp_path: Path) -> None:
    """A key may be written a moment after its certificate."""
    authority = Authority(tmp_path)
    old, new = authority.issue("weir"), authority.issue("other")
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_keys(server, Path(old.certificate), Path(old.key))
    with pytest.raises(ssl.SSLError):
        load_keys(server, Path(new.certificate), Path(old.key))
    sent, received = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=authority.ca).wrap_bio(received, sent, server_hostname="weir")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    with pytest.raises(ssl.SSLWantReadError):  # it has taken the client's hello, and waits for more
        server.wrap_bio(sent, received, server_side=True).do_handshake()
    client.do_handshake()

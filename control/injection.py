# SPDX-License-Identifier: Apache-2.0
"""Gives pods a sidecar when they are created: an admission webhook of Kubernetes, for versions before 1.36.

It allows every pod. A pod that it refused, or a review that it did not answer, could keep a broker from starting. The
MutatingWebhookConfiguration of deploy/helm says which pods are brought to it. None of them has a sidecar already, lacks
a name, or has the node's network, which would be captured.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import web

from weir.access.tls_contexts import server_context

_KEYS_SECONDS: Final = 60
_LARGEST_REVIEW: Final = 4 << 20  # Kubernetes stores no object above 1.5 MiB


class InjectionError(Exception):
    """The webhook cannot serve; the text says what to change."""


class Sidecar(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a pod gets. In texts `{pod}` stands for its name."""

    container: dict[str, Any]
    volumes: list[dict[str, Any]]
    annotations: dict[str, str] = {}
    imagePullSecrets: list[dict[str, str]] = []


class _Metadata(msgspec.Struct):
    name: str = ""
    annotations: dict[str, str] | None = None


class _Pod(msgspec.Struct):
    metadata: _Metadata
    spec: dict[str, Any]


class _Request(msgspec.Struct):
    uid: str
    object: _Pod


class _Review(msgspec.Struct):
    request: _Request


def read_sidecar(path: Path) -> Sidecar:
    """Read what pods get from a JSON file. Raises InjectionError."""
    try:
        sidecar = msgspec.json.decode(path.read_bytes(), type=Sidecar)
    except OSError as error:
        raise InjectionError(f"{path}: cannot be read: {error.strerror}.") from error
    except msgspec.DecodeError as error:
        raise InjectionError(f"{path}: has no sidecar: {error}.") from error
    if not isinstance(sidecar.container.get("name"), str):
        raise InjectionError(f"{path}: the container has no name.")
    return sidecar


def reviewed(body: bytes, sidecar: Sidecar) -> dict[str, Any]:
    """Return the answer to an AdmissionReview: the pod may be created, with its sidecar.

    Raises ValueError where the body is no review of a pod.
    """
    try:
        request = msgspec.json.decode(body, type=_Review).request
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    patch = base64.b64encode(msgspec.json.encode(_patch(request.object, sidecar))).decode()
    answer = {"uid": request.uid, "allowed": True, "patchType": "JSONPatch", "patch": patch}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}


def application(sidecar: Sidecar) -> web.Application:
    """Return the server: POST /pods takes reviews, and GET /healthz tells that it runs."""

    async def review(request: web.Request) -> web.Response:
        try:
            return web.json_response(reviewed(await request.read(), sidecar))
        except ValueError as error:
            return web.json_response({"error": f"This is no review of a pod: {error}."}, status=400)

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    server = web.Application(client_max_size=_LARGEST_REVIEW)
    server.add_routes([web.post("/pods", review), web.get("/healthz", healthz)])
    return server


def serve(host: str, port: int, certificate: Path, key: Path, sidecar: Sidecar) -> None:
    """Serve until SIGTERM. Raises InjectionError where the keys cannot be used, and OSError where the port is taken."""
    keys = server_context()
    try:
        keys.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise InjectionError(f"{certificate}, {key}: cannot be used: {error.strerror or error}.") from error

    async def renew() -> None:
        while True:
            await asyncio.sleep(_KEYS_SECONDS)
            with contextlib.suppress(OSError):  # half written: the old ones stay in use
                load_keys(keys, certificate, key)

    async def renewing(_: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(renew())
        yield
        task.cancel()

    server = application(sidecar)
    server.cleanup_ctx.append(renewing)
    web.run_app(server, host=host, port=port, ssl_context=keys, print=None)


def load_keys(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Have a context use a certificate and its key. OSError: it goes on with what it had."""
    # Another context tries them first. This one would take a certificate that does not fit the key, and lose its own.
    server_context().load_cert_chain(certificate, key)
    context.load_cert_chain(certificate, key)


def _patch(pod: _Pod, sidecar: Sidecar) -> list[dict[str, Any]]:
    secrets = [one for one in sidecar.imagePullSecrets if one not in (pod.spec.get("imagePullSecrets") or [])]
    added = {"volumes": sidecar.volumes, "initContainers": [sidecar.container], "imagePullSecrets": secrets}
    patch = [_add(f"/spec/{field}", []) for field, values in added.items() if values and not pod.spec.get(field)]
    patch += [_add("/metadata/annotations", {})] if pod.metadata.annotations is None else []
    patch += [
        _add(f"/metadata/annotations/{name.replace('/', '~1')}", text) for name, text in sidecar.annotations.items()
    ]
    for field, values in added.items():
        patch += [_add(f"/spec/{field}/-", _named(value, pod.metadata.name)) for value in values]
    return patch


def _add(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}


def _named(node: Any, name: str) -> Any:
    """Put a pod's name in the place of what stands for it, in every text below a node."""
    if isinstance(node, dict):
        return {key: _named(value, name) for key, value in node.items()}
    if isinstance(node, list):
        return [_named(value, name) for value in node]
    return node.replace("{pod}", name) if isinstance(node, str) else node

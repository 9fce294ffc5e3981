# SPDX-License-Identifier: Apache-2.0
"""A made-up S3 on loopback: buckets of objects in memory, as much of its protocol as Hadoop's s3a uses.

It takes every key and signature, and knows no versions, rights or uploads in parts.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

_HEAD: Final = '<?xml version="1.0" encoding="UTF-8"?>'
_MADE: Final = datetime(2026, 11, 2, tzinfo=UTC)


class MadeS3:
    """Its `objects` are by `bucket/key`; `address` is its endpoint. `asked` are the methods and paths of requests."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.address = f"http://127.0.0.1:{server.server_address[1]}"
        self.objects: dict[str, bytes] = {}
        self.asked: list[str] = []

    def listing(self, bucket: str, asked: dict[str, list[str]]) -> str:
        """The answer to ListObjectsV2: all at once, whatever `max-keys` says."""
        prefix, delimiter = (asked.get(name, [""])[0] for name in ("prefix", "delimiter"))
        keys, folders = [], dict[str, None]()
        for name in sorted(self.objects):
            if not name.startswith(f"{bucket}/{prefix}"):
                continue
            key = name.removeprefix(f"{bucket}/")
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                folders[prefix + rest.split(delimiter)[0] + delimiter] = None
            else:
                keys.append(key)
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{_MADE:%Y-%m-%dT%H:%M:%S.000Z}</LastModified>"
            f'<ETag>"{_tag(self.objects[f"{bucket}/{key}"])}"</ETag><Size>{len(self.objects[f"{bucket}/{key}"])}</Size>'
            "<StorageClass>STANDARD</StorageClass></Contents>"
            for key in keys
        )
        common = "".join(f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in folders)
        return (
            f"{_HEAD}<ListBucketResult><Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix>"
            f"<KeyCount>{len(keys) + len(folders)}</KeyCount><MaxKeys>100000</MaxKeys><IsTruncated>false</IsTruncated>"
            f"{contents}{common}</ListBucketResult>"
        )


@contextlib.contextmanager
def made_s3() -> Iterator[MadeS3]:
    """Run one until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.s3 = made = MadeS3(server)  # type: ignore[attr-defined]
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _tag(contents: bytes) -> str:
    return hashlib.md5(contents, usedforsecurity=False).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def _s3(self) -> MadeS3:
        return self.server.s3  # type: ignore[attr-defined, no-any-return]

    def _asked(self) -> tuple[str, dict[str, list[str]]]:
        parts = urlsplit(self.path)
        self._s3.asked.append(f"{self.command} {self.path}")
        # a folder is an object whose key ends with a slash
        return unquote(parts.path).removeprefix("/"), parse_qs(parts.query, keep_blank_values=True)

    def do_GET(self) -> None:
        name, asked = self._asked()
        if "list-type" in asked:
            self._answer(200, self._s3.listing(name.strip("/"), asked).encode())
            return
        self._object(name)

    do_HEAD = do_GET

    def _object(self, name: str) -> None:
        contents = self._s3.objects.get(name)
        if contents is None:
            self._answer(
                404, f"{_HEAD}<Error><Code>NoSuchKey</Code><Message>no {escape(name)}</Message></Error>".encode()
            )
            return
        headers = {"ETag": f'"{_tag(contents)}"', "Accept-Ranges": "bytes"}
        status, part = 200, contents
        if (asked := self.headers.get("Range", "")).startswith("bytes="):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            end = min(len(contents), int(last) + 1) if last else len(contents)
            status, part = 206, contents[int(first) : end]
            headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(contents)}"
        self._answer(status, part, headers)

    def do_PUT(self) -> None:
        name, _ = self._asked()
        if (source := self.headers.get("x-amz-copy-source")) is not None:
            contents = self._s3.objects[unquote(source).removeprefix("/")]
            self._body()
            told = f'<CopyObjectResult><ETag>"{_tag(contents)}"</ETag></CopyObjectResult>'
        else:
            contents, told = self._body(), ""
        self._s3.objects[name] = contents
        self._answer(200, f"{_HEAD}{told}".encode() if told else b"", {"ETag": f'"{_tag(contents)}"'})

    def do_DELETE(self) -> None:
        name, _ = self._asked()
        self._s3.objects.pop(name, None)
        self._answer(204, b"")

    def do_POST(self) -> None:
        bucket, asked = self._asked()
        assert "delete" in asked, self.path
        for found in ElementTree.fromstring(self._body()).iter():  # noqa: S314 - of s3a
            if found.tag.endswith("Key"):
                self._s3.objects.pop(f"{bucket.strip('/')}/{found.text}", None)
        self._answer(200, f"{_HEAD}<DeleteResult></DeleteResult>".encode())

    def _body(self) -> bytes:
        if "aws-chunked" not in self.headers.get("Content-Encoding", "") and not self.headers.get(
            "x-amz-content-sha256", ""
        ).startswith("STREAMING-"):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        found = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            found.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():  # checksums
            pass
        return b"".join(found)

    def _answer(self, status: int, contents: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Last-Modified", f"{_MADE:%a, %d %b %Y %H:%M:%S GMT}")
        self.send_header("Content-Type", "application/xml")
        if status != 204:
            self.send_header("Content-Length", str(len(contents)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(contents)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

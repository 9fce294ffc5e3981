"""Which files a sidecar that captures cannot read: it gives up what root may do before it reads them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from weir.proxy.checkup.findings import Finding
from weir.proxy.checkup.machine import Process
from weir.proxy.config.tables import Config
from weir.proxy.tls.live_keys import LiveKeys


def readable_findings(
    config: Config, all_keys: Iterable[LiveKeys], process: Process, proc: Path = Path("/proc")
) -> Iterator[Finding]:
    """Yield the files with keys that `process`, or a sidecar like it, may not read by its user and groups alone."""
    if config.capture is None:
        return
    wanted = {path: keys.name for keys in all_keys for path in keys.files.paths}
    exported = None if config.export is None else config.export.kafka
    for table, about in ((config.cluster, "cluster.properties"), (exported, "export.kafka.properties")):
        if table is not None and table.properties is not None:
            wanted[table.properties] = about
    groups = _groups(proc / str(process.pid) / "status")
    for path, about in wanted.items():
        if not _may_read(Path(path), process.user, groups):
            sentence = (
                f"{path} can be read by other users alone, and a sidecar that captures gives up root's right to read"
                f" them: give it to user {process.user}, or to a group of that user that may read it"
            )
            yield Finding("fail", about, sentence)


def _may_read(path: Path, user: int, groups: Collection[int]) -> bool:
    """Return whether the file's mode lets this user read it, and each folder on the way lets it pass."""
    real = path.resolve()
    return all(_lets(one, 0o4 if one == real else 0o1, user, groups) for one in (real, *real.parents))


def _lets(path: Path, wanted: int, user: int, groups: Collection[int]) -> bool:
    try:
        found = path.stat()
    except OSError:
        return True  # that it is not there is told elsewhere
    if found.st_uid == user:
        return bool(found.st_mode >> 6 & wanted)
    return bool((found.st_mode >> 3 if found.st_gid in groups else found.st_mode) & wanted)


def _groups(status: Path) -> frozenset[int]:
    try:
        text = status.read_text()
    except OSError:
        return frozenset()
    lines = re.findall(r"^(?:Gid|Groups):(.*)$", text, re.MULTILINE)
    return frozenset(int(number) for line in lines for number in line.split())

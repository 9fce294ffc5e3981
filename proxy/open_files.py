# SPDX-License-Identifier: Apache-2.0
"""Files of the configuration that more users may read or change than should: keys, passwords, tokens, authorities."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from weir.proxy.config.tables import Config
from weir.proxy.tls.live_keys import LiveKeys

_WORDS: Final = {
    stat.S_IROTH: "read",
    stat.S_IWOTH: "change",
    stat.S_IROTH | stat.S_IWOTH: "read and change",
}


def files_of(config: Config, all_keys: Iterable[LiveKeys]) -> dict[str, str]:
    """Return the paths of files with keys, certificates and properties, each with the setting that names it."""
    found = {path: keys.name for keys in all_keys for path in keys.files.paths}
    exported = None if config.export is None else config.export.kafka
    for table, about in ((config.cluster, "cluster.properties"), (exported, "export.kafka.properties")):
        if table is not None and table.properties is not None:
            found[table.properties] = about
    return found


def open_files(config: Config, all_keys: Iterable[LiveKeys]) -> Iterator[tuple[str, str]]:
    """Yield the settings whose files every user of the machine may read or change, each with a sentence.

    Certificates may be read by all. A file that holds a secret may not, and no file may be changed by all.
    """
    all_keys = list(all_keys)
    found = files_of(config, all_keys)
    tokens = {"admin.read_token_file": config.admin.read_token_file}
    tokens["admin.write_token_file"] = config.admin.write_token_file
    found |= {path: about for about, path in tokens.items() if path is not None}
    public = {path for keys in all_keys for path in keys.files.public_paths}
    for path, about in found.items():
        may = _mode_of_others(path) & (stat.S_IWOTH if path in public else stat.S_IROTH | stat.S_IWOTH)
        if may:
            yield about, f"every user of this machine may {_WORDS[may]} {path}: chmod o-rw {path}"


def _mode_of_others(path: str) -> int:
    try:
        return Path(path).stat().st_mode
    except OSError:
        return 0  # that it is not there is told elsewhere

"""Who lets the kernel track connections in this network namespace: rules of others, or a capture alone.

To redirect, the kernel tracks every connection, unless a rule says `notrack` of it. That rule holds for all tables:
what is not tracked has no state that another's rule could ask for, and is not translated. So a capture may say it only
where nobody else needs the state.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_TABLE: Final = re.compile(r"^table (\w+ \S+) \{(.*?)^\}", re.MULTILINE | re.DOTALL)
_NEEDS_STATE: Final = re.compile(
    r"\b(?:ct|type nat|masquerade|snat|dnat|redirect|synproxy|flow (?:add|offload)|conntrack|xt (?:match|target))\b"
)
_LEGACY: Final = ("ip_tables_names", "ip6_tables_names")


def tracked_by(ruleset: str, own_table: str, proc: Path = Path("/proc/net")) -> list[str]:
    """Return the tables of others that may need the state of connections, from what `list ruleset` prints.

    `own_table` is as commands name it. Tables of iptables' older kind count whatever is in them: nft does not show it.
    """
    others = [
        name for name, rules in _TABLE.findall(ruleset) if name != own_table and _NEEDS_STATE.search(rules) is not None
    ]
    for file in _LEGACY:
        try:
            others += [f"{file.partition('_')[0]}tables {name}" for name in (proc / file).read_text().split()]
        except FileNotFoundError:
            continue
        except OSError:
            others.append(f"{file.partition('_')[0]}tables")  # nobody but root may read it
    return others

# SPDX-License-Identifier: Apache-2.0
"""How a command ends when it cannot do what was asked."""

from __future__ import annotations

DONE = 0
FAILED = 1
WRONG_USAGE = 2
INTERRUPTED = 130  # the exit status after Ctrl-C, as in shells: 128 + SIGINT


class CommandError(Exception):
    """Ends a command with one sentence on stderr and an exit status."""

    def __init__(self, sentence: str, status: int = FAILED) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.status = status

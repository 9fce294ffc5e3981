# SPDX-License-Identifier: Apache-2.0
"""Options of Java for a Spark that lives for one test, or for a few."""

from typing import Final

QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""To compile well does not pay for few lines, nor does it to check each class of Spark's 300 archives."""

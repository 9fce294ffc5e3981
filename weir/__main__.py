# SPDX-License-Identifier: Apache-2.0
"""`python -m weir` is the command `weir`."""

import sys

from weir.cli.main import main

sys.exit(main())

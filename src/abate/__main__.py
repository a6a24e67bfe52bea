"""``python -m abate`` is the ``abate`` command."""

import sys

from abate.cli import main

sys.exit(main())

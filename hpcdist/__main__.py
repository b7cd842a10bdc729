"""``python -m hpcdist`` is ``hpcdist``."""

import sys

from hpcdist.cli import main

code = main()
sys.exit(code)  # looked up now: a job that runs in this process may have put its own there

"""`python -m tests.services.postal.judged_cli WORDS`: runs the command line in this process.

Plain Python evaluates its gates, as loading Great Expectations takes 4 s of CPU.
"""

import sys

from mailslice.checks import gate
from mailslice.cli.main import run
from tests.services.duties.running import judged_plainly

if __name__ == "__main__":
    gate.evaluate = judged_plainly
    sys.exit(run(sys.argv[1:]))

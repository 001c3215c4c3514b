"""Opening the stores connects to nothing and imports no driver."""

import subprocess
import sys


def test_open_stores_imports_no_driver():
    code = (
        "import sys; from mailslice.model.settings import Settings\n"
        "from mailslice.stores import open_stores\n"
        "with open_stores(Settings()): pass\n"
        "print([name for name in ('cassandra', 'pika', 'boto3', 'obstore') if name in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )

"""moto's S3 server (PyPI), in a virtual environment of its own. It keeps everything in memory and
accepts any credentials, so it proves nothing about keys.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from stack.bootstrap import locked, network_of_pip
from stack.program import CannotStart

VERSION = "5.2.5"


def moto_command(cache: Path, port: int) -> tuple[str, ...]:
    """The command line of a server; it is installed below `cache` when it is not there (320 MB).

    Raises CannotStart with the remedy.
    """
    python = _installed(cache) / "bin" / "python"
    return (str(python), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port))


def _installed(cache: Path) -> Path:
    folder = cache / f"moto-{VERSION}"
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / "moto.lock"):
        if not folder.is_dir():
            scratch = cache / "moto.partial"
            shutil.rmtree(scratch, ignore_errors=True)
            uv = str(Path(sys.executable).with_name("uv"))
            environ = {**os.environ, **network_of_pip(sys.executable), "VIRTUAL_ENV": str(scratch)}
            try:
                for words in (
                    ("venv", str(scratch)),
                    ("pip", "install", f"moto[server]=={VERSION}"),
                ):
                    subprocess.run(
                        [uv, "-q", *words], env=environ, check=True, capture_output=True, text=True
                    )
            except (OSError, subprocess.CalledProcessError) as error:
                why = str(getattr(error, "stderr", None) or error).strip()[-200:]
                raise CannotStart(
                    f"moto {VERSION} could not be installed ({why}). Remedy: look at the network "
                    "or the proxy settings, then try again"
                ) from None
            scratch.rename(folder)
    return folder

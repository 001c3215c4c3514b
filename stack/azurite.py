"""Azurite, Microsoft's emulator of Azure Blob Storage, for the tests of that provider."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

VERSION = "3.35.0"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The well-known key of the emulator: no secret."""


def installed(cache: Path) -> Path | None:
    """The command `azurite-blob` below `cache`; None without npm, which installs it (190 MB).

    Raises CalledProcessError.
    """
    folder = cache / f"azurite-{VERSION}"
    if not folder.exists():
        npm = shutil.which("npm")
        if npm is None:
            return None
        scratch = cache / f"azurite.{os.getpid()}"
        options = ["--no-audit", "--no-fund", "--prefix", str(scratch)]
        subprocess.run([npm, "install", *options, f"azurite@{VERSION}"], check=True)
        try:
            scratch.rename(folder)
        except OSError:  # another process was first
            shutil.rmtree(scratch)
    return folder / "node_modules" / ".bin" / "azurite-blob"


def azurite(command: Path, port: int, folder: Path) -> list[str]:
    """The command line of a server of `folder`."""
    options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)]
    return [str(command), *options, "--silent", "--skipApiVersionCheck", "--disableTelemetry"]

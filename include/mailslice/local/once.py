"""Small files that a state folder keeps for good: names and secrets that its data depend on."""

from __future__ import annotations

from pathlib import Path


def write_once(path: Path, text: str) -> str:
    """What the file holds; `text` is written first when it holds nothing. Readable by its owner alone; whole or not there, however full the disk is."""
    if path.is_file() and (kept := path.read_text(encoding="utf-8")):
        return kept
    coming = path.with_name(f"{path.name}.coming")
    coming.unlink(missing_ok=True)
    coming.touch(mode=0o600)
    coming.write_text(text, encoding="utf-8")
    coming.replace(path)
    return text

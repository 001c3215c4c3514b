"""Files of Data Docs: pages that a gate wrote, served from the artifacts location."""

import re
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from mailslice.maintenance.artifacts import artifacts
from mailslice.model.settings import Settings

DOCS = "data_docs"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".gif": "image/gif",
    ".ico": "image/x-icon",
    ".json": "application/json",
    ".otf": "font/otf",
    ".ttf": "font/ttf",
    ".woff": "font/woff",
    ".woff2": "font/woff2",
}


def data_docs(settings: Settings, path: str) -> tuple[bytes, str] | None:
    """A file and its media type; None if there is none of that path."""
    if not safe_path(path):
        return None
    location = artifacts(settings)
    name = f"{DOCS}/{path}"
    if location.bucket is None and not Path(location.path(name)).resolve().is_relative_to(
        Path(location.path(DOCS)).resolve()
    ):
        return None
    kind = KINDS.get(PurePosixPath(path).suffix.lower())
    data = location.read(name) if kind else None
    if data is None or kind is None:
        return None
    return (with_cockpit_links(data, path), kind) if kind.startswith("text/html") else (data, kind)


def with_cockpit_links(page: bytes, path: str) -> bytes:
    """The page with links to the cockpit, whose address a stored page cannot know."""
    home = "../" * (path.count("/") + 1)
    links = f'<a href="{home}">Mail queues</a> · <a href="{home}maintenance">Maintenance</a>'
    icon = f'<link rel="icon" href="{home}static/icon.svg" type="image/svg+xml">'
    nav = f'<nav class="cockpit" aria-label="Cockpit">{links}</nav>'
    for tag, more in ((b"head", icon), (b"body", nav)):  # browsers look for icons in the head alone
        if at := re.search(rb"<%b(?: [^>]*)?>" % tag, page):
            page = page[: at.end()] + more.encode() + page[at.end() :]
    return page


def safe_path(path: str) -> bool:
    """Whether a path stays below its folder: no `.`, `..`, backslash or control character."""
    parts = path.split("/")
    return (
        bool(path)
        and all(part not in {"", ".", ".."} for part in parts)
        and not re.search(r"[\x00-\x1f\x7f\\]", path)
    )


def docs_path(link: str | None) -> str | None:
    """The path below `docs/` of a link to a gate's page, which may be file:// or s3a://."""
    _, separator, path = (link or "").rpartition(f"/{DOCS}/")
    path = unquote(path) if (link or "").startswith("file:") else path
    return path if separator and safe_path(path) else None

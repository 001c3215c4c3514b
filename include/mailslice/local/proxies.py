"""What runs on loopback is asked directly, whatever proxy the environment names for the rest of the world."""

from __future__ import annotations

from collections.abc import Mapping

_OURS = ("127.0.0.1", "localhost")


def past_proxies(environ: Mapping[str, str]) -> dict[str, str]:
    """NO_PROXY and no_proxy with what `environ` has in them, and loopback: some clients read the one, some the other."""
    given = [
        host.strip()
        for name in ("no_proxy", "NO_PROXY")
        for host in environ.get(name, "").split(",")
        if host.strip()
    ]
    hosts = (
        "*" if "*" in given else ",".join(dict.fromkeys((*given, *_OURS)))
    )  # a star is all hosts only where it stands alone
    return {"NO_PROXY": hosts, "no_proxy": hosts}

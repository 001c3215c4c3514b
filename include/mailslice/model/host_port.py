"""Addresses of servers as text."""


def host_port(host: str, port: int) -> str:
    """`host:port`, with an IPv6 address in brackets (RFC 3986 3.2.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

"""Stores of obstore, which is the object_store crate (Rust)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from obstore.exceptions import BaseError
from obstore.store import S3Store

from mailslice.model.settings import S3Settings

CRATE_ERRORS = (BaseError, OSError, TimeoutError)
"""obstore raises FileNotFoundError for a missing object, its own classes for the rest."""


def s3_store(
    settings: S3Settings,
    bucket: str,
    *,
    timeout: timedelta,
    retries: int,
    bucket_url: str | None = None,
) -> S3Store:
    """The bucket, by path, or at `bucket_url`. `timeout` of a request; retries are short."""
    config: dict[str, Any] = {
        "endpoint": bucket_url or settings.endpoint,
        "region": settings.region,
        "virtual_hosted_style_request": bucket_url is not None,
    }
    if settings.access_key is not None and settings.secret_key is not None:
        config["access_key_id"] = settings.access_key
        config["secret_access_key"] = settings.secret_key.get_secret_value()
    client: dict[str, Any] = {
        "allow_http": settings.endpoint.startswith("http://"),
        "connect_timeout": min(settings.timeout, timedelta(seconds=5)),
        "read_timeout": settings.timeout,
        "timeout": timeout,
        "pool_idle_timeout": timedelta(seconds=20),
    }
    if settings.ca:
        client["root_certificate"] = settings.ca.read_bytes()
    pauses = {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=1)}
    retry: Any = {"max_retries": retries, "backoff": {**pauses, "base": 2}}
    retry["retry_timeout"] = settings.timeout / 2
    return S3Store(bucket, config=config, client_options=client, retry_config=retry)  # type: ignore[arg-type]

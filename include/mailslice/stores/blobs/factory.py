"""Opens buckets at the provider that the settings name."""

from mailslice.model.settings import BlobProvider, S3Settings
from mailslice.stores.blobs.store import BlobStore, Turns

PATIENCE_S = 300.0
"""How long maintenance repeats a request while the store answers that it is too busy."""


def open_blob_store(
    settings: S3Settings, bucket: str, *, turns: Turns | None = None, patience_s: float = 0.0
) -> BlobStore:
    """The bucket at the provider of the settings. Nothing is connected yet."""
    if settings.provider is BlobProvider.S3:
        from mailslice.stores.blobs.s3_store import S3BlobStore

        return S3BlobStore(settings, bucket, turns=turns, patience_s=patience_s)
    from mailslice.stores.blobs.object_store import ObjectBlobStore

    return ObjectBlobStore(settings, bucket, turns=turns, patience_s=patience_s)


def open_patient_store(settings: S3Settings, bucket: str, turns: Turns | None = None) -> BlobStore:
    """As `open_blob_store`, for maintenance: patient with a store that is too busy."""
    return open_blob_store(settings, bucket, turns=turns, patience_s=PATIENCE_S)

"""The content store: `store.BlobStore`, and `async_store.AsyncBlobStore` for the hot path."""

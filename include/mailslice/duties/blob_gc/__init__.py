"""Deletes blobs that nothing refers to: candidates first, deleted when a later full scan still finds no reference, kept aside for a week."""

NEEDS_QUEUE = False

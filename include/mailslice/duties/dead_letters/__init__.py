"""Lists the dead letters of a queue by cause.

Drops those of deleted mails, exports those that are no mail, redrives others on request.
"""

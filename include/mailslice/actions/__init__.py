"""Actions that people ask for on mails of a queue: shared by page, DAG and James' routes.

A preview selects mails by a filter and stores their ids under a digest. The action then covers
these ids (ADR 90).
"""

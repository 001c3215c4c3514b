"""What people have done with mails of a queue: the same for the page, the DAG and James' routes.

A preview selects mails by a filter and keeps their ids under a digest. The act is about these ids
(ADR 90).
"""

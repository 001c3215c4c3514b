"""Mails that are set aside: content in mailslice's own bucket, a row, and their way back or out.

`keeping`: into quarantine, and out again when the mail is the queue's after all. `release`:
enqueued anew, once. `copies`: the content, and the sweep of what no row names.
"""

from mailslice.admin.quarantine.keeping import OVER, Decided, Holder, Quarantine, in_quarantine

__all__ = ["OVER", "Decided", "Holder", "Quarantine", "in_quarantine"]

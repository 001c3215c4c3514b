"""The quarantine: content in mailslice's own bucket, and a row, of mails that were set aside.

`keeping` puts a mail in, and takes it out when it stays in its queue. `release` enqueues it anew,
once. `copies` has the content, and removes objects that no row names.
"""

from mailslice.admin.quarantine.keeping import OVER, Decided, Holder, Quarantine, in_quarantine
from mailslice.admin.quarantine.release import MayBeDelivered

__all__ = ["OVER", "Decided", "Holder", "MayBeDelivered", "Quarantine", "in_quarantine"]

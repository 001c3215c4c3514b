"""The quarantine: a row, and content in mailslice's own bucket, of each mail that was set aside.

`quarantine` sets a mail aside, and withdraws it when it stays in its queue. `release` enqueues it
anew, once. `copies` keeps the content and removes objects that no row names.
"""

from mailslice.admin.quarantine.quarantine import OVER, Decided, Holder, Quarantine, in_quarantine
from mailslice.admin.quarantine.release import MayBeDelivered, without

__all__ = ["OVER", "Decided", "Holder", "MayBeDelivered", "Quarantine", "in_quarantine", "without"]

"""Why the stack cannot be installed or started: one line with the cause and the remedy."""

from mailslice.model.errors import MailsliceError


class CannotStart(MailsliceError):
    """The local stack cannot be installed or started; the message ends with the remedy."""

    exit_code = 1

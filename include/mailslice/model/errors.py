"""What can go wrong, classed by what the caller does about it.

A message is one or two lines that name the value, its place and what is allowed.
"""


class MailsliceError(Exception):
    """Root of all errors raised on purpose. `exit_code` is what the command line ends with."""

    exit_code = 1


class SomeFailed(MailsliceError):
    """Some inputs failed and were listed; everything else was done."""


class BadInput(MailsliceError):
    """What was given cannot be used; the message names the value, its place and what is allowed."""

    exit_code = 2


class BadSetting(BadInput):
    """A setting is unknown, malformed or weaker than what keeps mail safe."""


class UnknownQueue(BadInput):
    """RabbitMQ has no exchange and work queue of this name."""


class Refused(MailsliceError):
    """A guard or a gate refused; what it refused was not done."""

    exit_code = 3


class ConfigurationDiffers(Refused):
    """What is stored, as the view's configuration is, differs from the settings; the store wins."""


class TopologyDiffers(Refused):
    """A RabbitMQ queue or exchange exists with other arguments than wanted (406)."""


class GateFailed(Refused):
    """An expectation of a duty's gate does not hold; the run stops here."""


class PlanRefused(Refused):
    """A plan cannot be applied: its digest differs, it is another queue's, or it is too old."""


class ClockSkew(Refused):
    """The clock of this machine and Cassandra's differ by more than a quarter of the grace."""


class TryAgain(MailsliceError):
    """Nothing is wrong with the mail: a later attempt may succeed."""

    exit_code = 4


STORE_ERRORS = (TryAgain, BadSetting)
"""A store does not answer, or refuses what the settings have: another attempt reads them anew."""


class StoreUnavailable(TryAgain):
    """Cassandra, RabbitMQ or S3 does not answer; the message names the address."""


class Unconfirmed(StoreUnavailable):
    """A message was written to RabbitMQ and not confirmed: nobody knows whether it is delivered."""


class TakenOver(MailsliceError):
    """Another worker, or a duty, has the mail: whoever held it leaves it. Handlers let it pass."""


class QueueMissing(StoreUnavailable):
    """A queue or exchange of RabbitMQ was deleted, or its binding: it takes nothing."""


class SlowDown(StoreUnavailable):
    """S3 asks to be asked less often (503)."""


class DeadLetter(MailsliceError):
    """A message that can never be handled: to the dead letter queue, with the reason logged."""


class Undecodable(DeadLetter):
    """The bytes are not a mail of James' format."""


class ContentMissing(DeadLetter):
    """The header or body blob of the mail is gone."""


def line_of(error: BaseException) -> str:
    """An error in a line for a record or a terminal; of one that is not ours its type, too.

    Of many lines the first and the last, which is what a traceback comes to, without Java's stack.
    """
    if isinstance(error, MailsliceError):
        return str(error)
    lines = [one.strip() for one in str(error).splitlines() if one.strip() and one[0] != "\t"]
    return f"{type(error).__name__}: " + " ... ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))

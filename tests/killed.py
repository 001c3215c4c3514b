"""The end of a process, for tests that let it die within their own."""


class Killed(BaseException):
    """In place of SIGKILL: nothing of mailslice catches it, and nothing before it is undone."""

"""Context managers of resources that have a `close`."""

from typing import Self


class Closing:
    """Calls `close` at the end of its `with` statement."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> object:
        raise NotImplementedError

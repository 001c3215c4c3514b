"""Deleted checks of one turn of the event loop, sent as one request.

A check alone costs as much as ten in one request (reference/hot-path.md: 9,400 against 93,000/s).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from mailslice.model.mail import EnqueueId
from mailslice.worker.bridge import Rows

MOST = 20
"""Ids a request: operators bound how many partitions one may name (Cassandra's guardrail partition_keys_in_select)."""
_Asked = list[tuple[EnqueueId, asyncio.Future[bool]]]


class DeletedChecks:
    """Of one queue, for one event loop. `ask_one` and `ask_some` send requests whose rows begin with the ids that are marked."""

    def __init__(
        self,
        ask_one: Callable[[EnqueueId], asyncio.Future[Rows]],
        ask_some: Callable[[Sequence[EnqueueId]], asyncio.Future[Rows]],
    ) -> None:
        self._ask_one = ask_one
        self._ask_some = ask_some
        self._asked: _Asked = []

    async def is_marked(self, enqueue_id: EnqueueId) -> bool:
        """Whether the mail has a deleted mark, by a request that is sent after this call. Raises as the requests do."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bool] = loop.create_future()
        self._asked.append((enqueue_id, answer))
        if len(self._asked) == 1:
            loop.call_soon(self._send)
        return await answer

    def _send(self) -> None:
        asked, self._asked = self._asked, []
        for at in range(0, len(asked), MOST):
            some = [one for one in asked[at : at + MOST] if not one[1].done()]
            if len(some) > 1:
                self._request(some, partial(self._ask_some, [enqueue_id for enqueue_id, _ in some]))
            else:
                self._apart(some)

    def _apart(self, asked: _Asked) -> None:
        for one in asked:
            if not one[1].done():
                self._request([one], partial(self._ask_one, one[0]))

    def _request(self, asked: _Asked, send: Callable[[], asyncio.Future[Rows]]) -> None:
        try:
            send().add_done_callback(partial(self._answered, asked))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is for those who wait
            _fail(asked, error)

    def _answered(self, asked: _Asked, answered: asyncio.Future[Rows]) -> None:
        if (error := answered.exception()) is None:
            marked = {row[0] for row in answered.result()}
            for enqueue_id, answer in asked:
                if not answer.done():
                    answer.set_result(enqueue_id in marked)
        elif len(asked) > 1:
            self._apart(asked)  # one mail's replicas, or a guardrail, must not hold up the others
        else:
            _fail(asked, error)


def _fail(asked: _Asked, error: BaseException) -> None:
    for _, answer in asked:
        if not answer.done():
            answer.set_exception(error)

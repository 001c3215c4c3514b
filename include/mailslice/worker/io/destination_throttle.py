"""Throttling by destination: the workers of a queue share one book a domain (`model.throttling`).

A handler asks before it connects: `with throttle.entering(domains) as waits:`. Recipients at
domains in `waits` get nothing now: `Retry(after=..., throttled=True)`. Unlimited domains are free.
"""

import asyncio
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import uuid4

from mailslice.model.errors import MailsliceError, StoreUnavailable
from mailslice.model.throttling import LEASE, Claim, Freed, Limit, Limits, Load, decide, destination
from mailslice.stores.cassandra.own import Destinations
from mailslice.stores.loop_thread import call_from_thread
from mailslice.worker.io.context import QueueContext

log = logging.getLogger(__name__)
_MAX_DOMAINS = 1000
_MAX_WRITES = 100
"""Conditional writes that others may win before such a busy store counts as unavailable."""
_DOMAINS_AT_ONCE = 64
_NO_ANSWER_US = 30_000_000
"""Microseconds until a domain whose row did not answer is asked again."""


class DestinationThrottle:
    """The destinations of one queue, for one worker on one event loop."""

    def __init__(self, context: QueueContext, limits: Limits) -> None:
        self._context = context
        self._limits = limits
        self._table: Destinations | None = None
        self._opening = asyncio.Lock()
        self._domains: OrderedDict[str, _Domain] = OrderedDict()
        self._renewing: asyncio.Task[None] | None = None

    async def enter(
        self, connection: str, domains: Collection[str], *, waited: bool
    ) -> dict[str, timedelta]:
        """Asks for one mail to each domain (`destination`). Returns the wait of each domain that
        takes none now, or whose row does not answer. `leave` always follows.
        """
        limited = {domain: limit for domain in domains if (limit := self._limits.of(domain))}
        permits = asyncio.Semaphore(_DOMAINS_AT_ONCE)

        async def ask_one(domain: str, limit: Limit) -> int | None:
            async with permits:
                return await (await self._domain(domain, limit)).ask(Claim(connection, waited))

        asking = (ask_one(domain, limit) for domain, limit in limited.items())
        answers = await asyncio.gather(*asking, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, StoreUnavailable):
                self.leave(connection, domains)
                raise answer
        waits: dict[str, timedelta] = {}
        for (domain, limit), answer in zip(limited.items(), answers, strict=True):
            wait_us, verdict = answer, "granted" if answer is None else "throttled"
            if isinstance(wait_us, BaseException):
                wait_us, verdict = _NO_ANSWER_US, "unavailable"
            self._context.statistics.destinations[limit.rule, verdict] += 1
            if wait_us is not None:
                waits[domain] = timedelta(microseconds=wait_us)
        if self._renewing is None and any(limit.connections for limit in limited.values()):
            self._renewing = asyncio.create_task(self._renew(), name="throttle-renew")
        return waits

    def leave(self, connection: str, domains: Collection[str]) -> None:
        """The connection is closed. Others see it within a minute: a background task writes it."""
        for domain in domains:
            if (entry := self._domains.get(domain)) is not None:
                entry.free(connection)

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait({self._renewing})
        await asyncio.gather(*(entry.close() for entry in self._domains.values()))

    async def _domain(self, name: str, limit: Limit) -> "_Domain":
        async with self._opening:
            if self._table is None:
                self._table = await self._context.open_table(Destinations.created)
        entry = self._domains.pop(name, None) or _Domain(self._context, self._table, name, limit)
        self._domains[name] = entry
        if len(self._domains) > _MAX_DOMAINS:
            others = (key for key, other in self._domains.items() if other.idle and key != name)
            if (idle := next(others, None)) is not None:
                del self._domains[idle]
        return entry

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE.total_seconds() / 3)
            for entry in list(self._domains.values()):
                entry.renew()


@dataclass(slots=True, eq=False)
class _Domain:
    """One destination. Requests and releases that come during a write go into the next one."""

    _context: QueueContext
    _table: Destinations
    _domain: str
    _limit: Limit
    _book: Load | None = None
    _asks: list[tuple[Claim, asyncio.Future[int | None]]] = field(default_factory=list)
    _freed: list[Freed] = field(default_factory=list)
    _since: dict[str, float] = field(default_factory=dict)
    _keeping: bool = False
    _serving: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        return self._serving is None and not self._since

    async def ask(self, ask: Claim) -> int | None:
        """None (granted), or the microseconds until the next attempt. Raises StoreUnavailable."""
        answer: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._asks.append((ask, answer))
        self._serve()
        waits = await answer
        if waits is None and self._limit.connections:
            self._since[ask.connection] = time.monotonic()
        return waits

    def free(self, connection: str) -> None:
        """Releases what a granted request has taken, if there was one."""
        if (since := self._since.pop(connection, None)) is not None:
            self._freed.append(Freed(connection, int((time.monotonic() - since) * 1e6)))
            self._serve()

    def renew(self) -> None:
        """Extends the leases of connections in use."""
        if self._since:
            self._keeping = True
            self._serve()

    async def close(self) -> None:
        if self._serving is not None:
            await asyncio.wait({self._serving}, timeout=2)

    def _serve(self) -> None:
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve_claims(), name="throttle-desk")

    async def _serve_claims(self) -> None:
        while self._asks or self._freed or self._keeping:
            asks, self._asks = self._asks, []
            freed, self._freed = self._freed, []
            self._keeping = False
            try:
                answers = await self._write_claims([ask for ask, _ in asks], freed)
            except Exception as error:
                self._book = None
                if not isinstance(error, MailsliceError):
                    extra = {"action": "throttle_fault"}
                    log.exception("a throttle could not be asked", extra=extra)
                    error = StoreUnavailable(f"a throttle could not be asked: {error}")
                for _, answer in asks:
                    if not answer.done():
                        answer.set_exception(error)
            else:
                for (_, answer), waits in zip(asks, answers, strict=True):
                    if not answer.done():
                        answer.set_result(waits)
        self._serving = None

    async def _write_claims(self, claims: list[Claim], freed: list[Freed]) -> list[int | None]:
        bridge, queue = self._context.bridge, self._context.queue
        for lost in range(_MAX_WRITES):
            if (before := self._book) is None:
                rows = await bridge.rows(self._table.read_future(queue, self._domain))
                before = self._table.book(rows)
            now_us = int(self._context.clock().timestamp() * 1e6)
            kept, chance = tuple(self._since), random.random()
            after, answers = decide(
                before, self._limit, now_us, claims, freed=freed, kept=kept, chance=chance
            )
            writing = self._table.advance_future(queue, self._domain, before, after)
            if self._table.applied(await bridge.rows(writing)):
                self._book = after
                return answers
            self._book = None
            await asyncio.sleep(random.uniform(0, 0.002 * min(lost + 1, 20)))
        raise StoreUnavailable(
            f"a destination of queue {queue!r} changes faster than it can be asked: "
            f"{_MAX_WRITES} conditional writes were lost to others"
        )


@dataclass(eq=False, repr=False)
class BlockingThrottle:
    """The keyword `throttle` of a plain handler, for its thread. Without limits no domain waits."""

    throttle: DestinationThrottle | None = None
    waited: bool = False
    loop: asyncio.AbstractEventLoop | None = None

    @contextmanager
    def entering(self, domains: Collection[str]) -> Iterator[Mapping[str, timedelta]]:
        """While a connection carries a mail for `domains`: the wait of those that take none now."""
        throttle, loop = self.throttle, self.loop
        if throttle is None or loop is None:
            yield {}
            return
        connection = str(uuid4())
        books = {domain: destination(domain) for domain in domains}
        asked = set(books.values())
        waits = call_from_thread(loop, throttle.enter(connection, asked, waited=self.waited))
        try:
            yield {domain: waits[book] for domain, book in books.items() if book in waits}
        finally:
            # Without a loop the worker is gone, and the lease of its connection runs out.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(throttle.leave, connection, asked)


UNTHROTTLED = BlockingThrottle()
"""The throttle of a handler that is called without a delivery."""

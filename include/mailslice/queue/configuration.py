"""The configuration guard: James' rule that all who work on a queue view agree on its slices and buckets.

The stored configuration is the last event of James' aggregate. It wins: a setting that was given and differs is refused, one that was not given follows it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from mailslice.codec import events
from mailslice.model.configuration import ViewConfiguration, why_refused
from mailslice.model.errors import ConfigurationDiffers, Refused
from mailslice.model.names import CONFIGURATION_AGGREGATE, EVENT_STORE
from mailslice.model.settings import BlobStrategy, Settings
from mailslice.stores.cassandra.tables import QueueTables

if TYPE_CHECKING:
    from mailslice.stores import Stores

_MOST_RACES = 10


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the guard sees. `why_refused` says why `wanted` could not be applied; None when it could, or need not.

    `recorded_strategy` is the storage strategy that James wrote down, None when it did not; `strategy` is the settings'.
    """

    stored: ViewConfiguration | None
    wanted: ViewConfiguration
    why_refused: str | None
    recorded_strategy: BlobStrategy | None
    strategy: BlobStrategy

    @property
    def same_configuration(self) -> bool:
        """Whether there is nothing to apply."""
        return self.stored == self.wanted

    @property
    def same_strategy(self) -> bool:
        """Whether James recorded no other strategy than the settings'."""
        return self.recorded_strategy in {None, self.strategy}


class ConfigurationGuard:
    """Reads and appends the events of the configuration."""

    def __init__(self, tables: QueueTables, settings: Settings) -> None:
        self._tables = tables
        self._settings = settings

    def stored(self) -> ViewConfiguration | None:
        """The current configuration; None before the first start. Raises Refused when the last event cannot be read."""
        found = self._events()
        return events.decode(found[-1][1]) if found else None

    def history(self) -> list[ViewConfiguration]:
        """Every configuration that ever was, oldest first."""
        return [events.decode(text) for _, text in self._events()]

    def wanted(self) -> ViewConfiguration:
        """The stored configuration with the settings that were given in its place; before the first start, the settings with their defaults."""
        return self._over(self.stored())

    def recorded_strategy(self) -> BlobStrategy | None:
        """James' own record of its storage strategy."""
        if EVENT_STORE in self._tables.missing():
            return None
        found = self._tables.event_store.events(events.STORAGE_STRATEGY_AGGREGATE)
        return events.decode_strategy(found[-1][1]) if found else None

    def check(self) -> Verdict:
        """Stored and wanted side by side. Changes nothing."""
        stored = self.stored()
        wanted = self._over(stored)
        why = why_refused(stored, wanted) if stored is not None and stored != wanted else None
        return Verdict(stored, wanted, why, self.recorded_strategy(), self._settings.blob.strategy)

    def ensure(self) -> ViewConfiguration:
        """The configuration to work by. As James does, the first start creates missing tables and stores the settings' configuration.

        Raises ConfigurationDiffers showing both when a given setting differs from what is stored, BadSetting when there is no keyspace.
        """
        if self._tables.missing():
            self._tables.require_keyspace()
            self._tables.create()
        self._refuse_shared_blobs()
        found = self._events()
        if not found:
            wanted = self._settings.queue.configuration
            if self._append(0, wanted):
                return wanted
            found = self._events()  # another process was first: its word counts
        stored = events.decode(found[-1][1])
        wanted = self._over(stored)
        if stored != wanted:
            why = why_refused(stored, wanted)
            remedy = (
                f"`mailslice config apply` would refuse it: {why}"
                if why
                else "`mailslice config apply` stores the wanted one"
            )
            raise ConfigurationDiffers(
                f"the stored configuration of the queue view is {stored}; the settings ({self._settings.source}) want {wanted}; {remedy}"
            )
        return stored

    def apply(self, wanted: ViewConfiguration | None = None) -> bool:
        """Store `wanted`, by default what the settings want; whether an event was appended. Raises Refused where James would refuse.

        Another writer's event between reading and appending makes the append fail; then all is decided anew.
        """
        if self._tables.missing():
            self._tables.require_keyspace()
            self._tables.create()
        for _ in range(_MOST_RACES):
            found = self._events()
            stored = events.decode(found[-1][1]) if found else None
            target = wanted if wanted is not None else self._over(stored)
            if stored == target:
                return False
            why = why_refused(stored, target) if stored is not None else None
            if why:
                raise Refused(
                    f"config apply: {why}. Rows stay where they were written; James would refuse it too"
                )
            if self._append(found[-1][0] + 1 if found else 0, target):
                return True
        raise Refused(
            f"config apply: others changed the stored configuration {_MOST_RACES} times meanwhile; try again"
        )

    def _refuse_shared_blobs(self) -> None:
        """A James that recorded passthrough really deletes the blobs of a mail that is done: where mails share one, that is the others' content.

        The other way round is safe: our ids are random then, and James deletes none.
        """
        if (
            self._settings.blob.strategy is BlobStrategy.DEDUPLICATION
            and self.recorded_strategy() is BlobStrategy.PASSTHROUGH
        ):
            raise ConfigurationDiffers(
                f"MAILSLICE_BLOB_STRATEGY=deduplication (in the {self._settings.source}), and James recorded PASSTHROUGH in its event store: at completion it "
                "deletes blobs that other mails would share; allowed is passthrough, until a James that deduplicates was started "
                "(`mailslice config apply` stores slices and buckets, not this)"
            )

    def _events(self) -> list[tuple[int, str]]:
        if EVENT_STORE in self._tables.missing():
            return []
        return self._tables.event_store.events(CONFIGURATION_AGGREGATE)

    def _append(self, event_id: int, configuration: ViewConfiguration) -> bool:
        return self._tables.event_store.append(
            CONFIGURATION_AGGREGATE, event_id, events.encode(configuration, event_id)
        )

    def _over(self, stored: ViewConfiguration | None) -> ViewConfiguration:
        settings = self._settings.queue
        if stored is None:
            return settings.configuration
        given = {
            field: getattr(settings, field)
            for field in ("slice_window", "bucket_count", "browse_start_pace")
            if field in settings.model_fields_set
        }
        return replace(stored, **given)


@dataclass(frozen=True, slots=True)
class Shape:
    """What reading needs of the configuration and its history.

    `window` is today's, the smallest, whose starts hold those of all earlier ones.
    """

    window: timedelta
    largest_window: timedelta
    bucket_counts: tuple[int, ...]
    """Every one there ever was, the smallest first."""

    @property
    def buckets(self) -> int:
        """How many buckets a slice has had at most."""
        return max(self.bucket_counts)


def view_shape(stores: Stores, *, checked: bool = False) -> Shape:
    """The shape of the view by its history; by the settings before the first start.

    With `checked`, raises ConfigurationDiffers when a given setting contradicts what is stored.
    """
    guard = ConfigurationGuard(stores.tables, stores.settings)
    history = guard.history()
    if checked and history:
        guard.ensure()
    history = history or [stores.settings.queue.configuration]
    windows = [configuration.slice_window for configuration in history]
    counts = {configuration.bucket_count for configuration in history}
    return Shape(windows[-1], max(windows), tuple(sorted(counts)))

"""The configuration guard: James' rule that all programs on a queue view agree on its slices and
buckets.

The stored configuration is the last event of James' aggregate. It wins over the settings: a setting
that is given and differs is refused; a setting that is not given follows it.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from mailslice.codec import events
from mailslice.model.configuration import ViewConfiguration, why_refused
from mailslice.model.errors import ConfigurationDiffers, Refused
from mailslice.model.mail import Partition
from mailslice.model.names import CONFIGURATION_AGGREGATE, EVENT_STORE
from mailslice.model.settings import BlobStrategy, Settings
from mailslice.model.slices import bucket_of, slice_start
from mailslice.stores import Stores
from mailslice.stores.cassandra.tables import QueueTables

_MAX_RACES = 10


@dataclass(frozen=True, slots=True)
class ConfigurationCheck:
    """Stored and requested configuration. `why_refused`: why `requested` cannot be applied; None
    when it can, or when it is stored already.

    `recorded_strategy`: the storage strategy that James recorded, or None. `strategy`: the one of
    the settings.
    """

    stored: ViewConfiguration | None
    requested: ViewConfiguration
    why_refused: str | None
    recorded_strategy: BlobStrategy | None
    strategy: BlobStrategy

    @property
    def same_strategy(self) -> bool:
        """Whether James recorded the strategy of the settings, or none."""
        return self.recorded_strategy in {None, self.strategy}


class ConfigurationGuard:
    """Reads and appends the events of the configuration."""

    def __init__(self, tables: QueueTables, settings: Settings) -> None:
        self._tables = tables
        self._settings = settings

    def stored(self) -> ViewConfiguration | None:
        """The current configuration; None before the first start. Raises Refused if unreadable."""
        return self._last()[1]

    def history(self) -> list[ViewConfiguration]:
        """Every configuration that was ever stored, oldest first."""
        return [events.decode(text) for _, text in self.events()]

    def recorded_strategy(self) -> BlobStrategy | None:
        """The storage strategy that James recorded; None without a record."""
        if EVENT_STORE in self._tables.missing():
            return None
        recorded = self._tables.event_store.events(events.STORAGE_STRATEGY_AGGREGATE)
        return events.decode_strategy(recorded[-1][1]) if recorded else None

    def check(self) -> ConfigurationCheck:
        """Compares the stored and the requested configuration. Changes nothing."""
        stored = self.stored()
        target = self._requested(stored)
        why = why_refused(stored, target) if stored is not None and stored != target else None
        recorded = self.recorded_strategy()
        return ConfigurationCheck(stored, target, why, recorded, self._settings.blob.strategy)

    def ensure(self) -> ViewConfiguration:
        """The configuration to use. As in James, the first start creates missing tables and stores
        the configuration of the settings.

        Raises ConfigurationDiffers, which shows both, when a given setting differs from the stored
        one; BadSetting when there is no keyspace.
        """
        self._create_missing()
        self._refuse_shared_blobs()
        if self.stored() is None:
            self._append(0, self._settings.queue.configuration)
            # If another process was first, its configuration counts.
        return self._agreed()

    def agreed(self) -> ViewConfiguration:
        """As `ensure`, for readers: creates nothing, and uses the settings before the first start.

        Raises BadSetting for missing tables, ConfigurationDiffers.
        """
        _ = self._tables.existing  # names a keyspace or tables that are missing
        self._refuse_shared_blobs()
        return self._agreed()

    def _agreed(self) -> ViewConfiguration:
        stored = self.stored()
        target = self._requested(stored)
        if stored is not None and stored != target:
            why = why_refused(stored, target)
            remedy = f"would refuse it: {why}" if why else "stores the wanted one"
            raise ConfigurationDiffers(
                f"the stored configuration of the queue view is {stored}; "
                f"the settings ({self._settings.source}) want {target}; "
                f"`mailslice config apply` {remedy}"
            )
        return target

    def apply(self, requested: ViewConfiguration | None = None) -> bool:
        """Store `requested`, by default the settings' configuration. Returns whether it appended an
        event. Raises Refused where James would refuse.

        An append fails if another writer appended since the read; `apply` then decides anew.
        """
        self._create_missing()
        for _ in range(_MAX_RACES):
            event_id, stored = self._last()
            target = requested if requested is not None else self._requested(stored)
            if stored == target:
                return False
            why = why_refused(stored, target) if stored is not None else None
            if why:
                why += ". Rows stay where they were written; James would refuse it too"
                raise Refused(f"config apply: {why}")
            if self._append(event_id + 1, target):
                return True
        why = f"others changed the stored configuration {_MAX_RACES} times meanwhile; try again"
        raise Refused(f"config apply: {why}")

    def _create_missing(self) -> None:
        if self._tables.missing():
            self._tables.require_keyspace()
            self._tables.create()

    def _refuse_shared_blobs(self) -> None:
        """Raises ConfigurationDiffers for deduplication beside a James that recorded passthrough:
        that James deletes the blobs of each finished mail, also those that other mails share.

        The reverse is safe: mailslice's ids are random then, and James deletes no blob.
        """
        if self._settings.blob.strategy is not BlobStrategy.DEDUPLICATION:
            return
        if self.recorded_strategy() is BlobStrategy.PASSTHROUGH:
            raise ConfigurationDiffers(
                "MAILSLICE_BLOB_STRATEGY=deduplication "
                f"({self._settings.where('MAILSLICE_BLOB_STRATEGY')}), and James recorded "
                "PASSTHROUGH in its event store: at completion it deletes blobs that other mails "
                "would share; allowed is passthrough, until a James that deduplicates was started "
                "(`mailslice config apply` stores slices and buckets, not this)"
            )

    def events(self) -> list[tuple[int, str]]:
        """The stored events: (id, JSON), oldest first."""
        if EVENT_STORE in self._tables.missing():
            return []
        return self._tables.event_store.events(CONFIGURATION_AGGREGATE)

    def _last(self) -> tuple[int, ViewConfiguration | None]:
        """Id and configuration of the last event; (-1, None) before the first."""
        stored = self.events()
        return (stored[-1][0], events.decode(stored[-1][1])) if stored else (-1, None)

    def _append(self, event_id: int, configuration: ViewConfiguration) -> bool:
        event = events.encode(configuration, event_id)
        return self._tables.event_store.append(CONFIGURATION_AGGREGATE, event_id, event)

    def _requested(self, stored: ViewConfiguration | None) -> ViewConfiguration:
        """The stored configuration with the given settings over it; without it, the settings."""
        settings = self._settings.queue
        if stored is None:
            return settings.configuration
        overrides = {
            field: getattr(settings, field)
            for field in ("slice_window", "bucket_count", "browse_start_pace")
            if field in settings.model_fields_set
        }
        return replace(stored, **overrides)


@dataclass(frozen=True, slots=True)
class Shape:
    """Windows and buckets of the view. All slice starts are multiples of `window`, today's."""

    window: timedelta
    largest_window: timedelta
    bucket_counts: tuple[int, ...]
    """All that were ever configured, smallest first."""

    @property
    def buckets(self) -> int:
        """The largest number of buckets that a slice may have."""
        return max(self.bucket_counts)

    def partition(self, name: str, at: datetime) -> Partition:
        """The partition for a mail called `name` that is enqueued at `at`."""
        return Partition(slice_start(at, self.window), bucket_of(name, self.bucket_counts[-1]))


def view_shape(stores: Stores, *, checked: bool = False) -> Shape:
    """The shape, by the view's history. `checked`: raises ConfigurationDiffers as `agreed` does."""
    guard = ConfigurationGuard(stores.tables, stores.settings)
    history = guard.history()
    if checked and history:
        guard.agreed()
    history = history or [stores.settings.queue.configuration]
    windows = [configuration.slice_window for configuration in history]
    counts = {configuration.bucket_count for configuration in history}
    return Shape(windows[-1], max(windows), tuple(sorted(counts)))

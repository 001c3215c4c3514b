"""Events of James' event store: the configuration of the queue view, and the storage strategy of
the blobs.

James 3.8 writes `sliceWindow` as seconds with nine decimals. James 3.5 writes ISO 8601 text, and
another order of fields. `decode` reads both.
"""

import json
from datetime import timedelta
from decimal import Decimal
from typing import Any

from mailslice.model.configuration import ViewConfiguration
from mailslice.model.durations import parse_duration
from mailslice.model.errors import BadInput, Refused
from mailslice.model.names import CONFIGURATION_AGGREGATE, CONFIGURATION_EVENT_TYPE
from mailslice.model.settings import BlobStrategy
from mailslice.model.slices import whole_seconds

STORAGE_STRATEGY_AGGREGATE = "BlobStoreStorageStrategyConfiguration"
"""The aggregate in which James records its strategy (modules.blobstore.validation)."""
_MICROSECOND = Decimal("0.000001")


def encode(configuration: ViewConfiguration, event_id: int) -> str:
    """The event as James 3.8 writes it, to the byte."""
    return (
        f'{{"eventId":{event_id},"aggregateKey":"{CONFIGURATION_AGGREGATE}",'
        f'"type":"{CONFIGURATION_EVENT_TYPE}","bucketCount":{configuration.bucket_count},'
        f'"updateBrowseStartPace":{configuration.browse_start_pace},'
        f'"sliceWindow":{whole_seconds(configuration.slice_window)}.000000000}}'
    )


def decode(text: str) -> ViewConfiguration:
    """The configuration in an event. Raises Refused: an unreadable event must not be superseded."""
    event = _event(text, CONFIGURATION_AGGREGATE)
    if event.get("type") != CONFIGURATION_EVENT_TYPE:
        why = f"its type is {event.get('type')!r}, not {CONFIGURATION_EVENT_TYPE}"
        raise _unreadable(CONFIGURATION_AGGREGATE, why)
    try:
        window, buckets = _window(event["sliceWindow"]), _count(event["bucketCount"])
        return ViewConfiguration(window, buckets, _count(event["updateBrowseStartPace"]))
    except KeyError as error:
        raise _unreadable(CONFIGURATION_AGGREGATE, f"field {error.args[0]} is missing") from None
    except (ValueError, BadInput) as error:
        raise _unreadable(CONFIGURATION_AGGREGATE, str(error)) from None


def decode_strategy(text: str) -> BlobStrategy:
    """The storage strategy in an event. Raises Refused if the event has none."""
    strategy = _event(text, STORAGE_STRATEGY_AGGREGATE).get("storageStrategy")
    try:
        return BlobStrategy(str(strategy).lower())
    except ValueError:
        why = f"storageStrategy is {strategy!r}; allowed: PASSTHROUGH, DEDUPLICATION"
        raise _unreadable(STORAGE_STRATEGY_AGGREGATE, why) from None


def _event(text: str, aggregate: str) -> dict[str, Any]:
    try:
        event = json.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError):
        raise _unreadable(aggregate, "it is not JSON") from None
    if not isinstance(event, dict):
        raise _unreadable(aggregate, "it is not a JSON object")
    return event


def _window(value: object) -> timedelta:
    if isinstance(value, str):
        return parse_duration(value, "sliceWindow")
    if isinstance(value, bool) or not isinstance(value, int | Decimal) or not 0 < value < 10**10:
        raise ValueError(
            f"sliceWindow {value} is not a positive number of seconds nor an ISO 8601 duration"
        )
    micros, rest = divmod(Decimal(value), _MICROSECOND)
    if rest:
        raise ValueError(f"sliceWindow {value} is not a whole number of seconds")
    return timedelta(microseconds=int(micros))


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        # ValueError: the value was read, it is no argument.
        raise ValueError(f"{value!r} is not a whole number")  # noqa: TRY004
    return value


def _unreadable(aggregate: str, why: str) -> Refused:
    return Refused(f"eventStore: the last event of {aggregate} cannot be read: {why}")

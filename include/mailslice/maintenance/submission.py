"""The settings file of a step under spark-submit, and the outcome that the step writes.

Settings go in a file that only its owner may read: a driver on a cluster has no environment of
mailslice, and every user can see a command line. The outcome goes to the run's folder:
spark-submit exits with 1 for any driver that failed on a cluster.
"""

import json
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from pydantic import SecretStr, ValidationError

from mailslice.maintenance.artifacts import RunFolder
from mailslice.model.errors import BadSetting, MailsliceError, line_of
from mailslice.model.settings import Settings, artifacts_of

SETTINGS_FILE = "mailslice-settings.json"
OUTCOME = "submit.json"
"""The file of the run's folder with the outcome of a submitted step that raised."""


class Outcome(NamedTuple):
    """The end of a step that raised: the command line's exit code, and the error's text."""

    exit_code: int
    message: str


def write_settings(settings: Settings, folder: Path) -> Path:
    """Write the settings that are set, and the artifacts location, to a file for the driver."""
    artifacts = {"artifacts": artifacts_of(settings)}
    settings = settings.model_copy(update={"duty": settings.duty.model_copy(update=artifacts)})
    file = folder / SETTINGS_FILE
    file.touch(mode=0o600)
    values = settings.model_dump(exclude_unset=True)  # the driver takes unset ones from the stores
    file.write_text(json.dumps(values, default=_plain), encoding="utf-8")
    return file


def read_settings(file: Path) -> Settings:
    """Settings that `write_settings` wrote. Raises BadSetting, which shows no values."""
    try:
        return Settings.model_validate(json.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise BadSetting(f"--settings {file}: {error.strerror}") from None
    except ValidationError as error:
        names = sorted({".".join(map(str, problem["loc"])) for problem in error.errors()})
        raise BadSetting(
            f"--settings {file}: another version of mailslice wrote it ({', '.join(names)})"
        ) from None
    except ValueError:
        raise BadSetting(f"--settings {file}: no settings that mailslice wrote") from None


def write_outcome(folder: RunFolder, attempt: str, error: Exception) -> None:
    """Write how the step ended, for `read_outcome` with the same `attempt`."""
    code = error.exit_code if isinstance(error, MailsliceError) else 1
    folder.write_json(OUTCOME, {"attempt": attempt, "exitCode": code, "message": line_of(error)})


def read_outcome(folder: RunFolder, attempt: str) -> Outcome | None:
    """How this attempt ended. None when it wrote no outcome, or that cannot be read."""
    with suppress(Exception):
        outcome = folder.read_json(OUTCOME)
        if outcome and outcome["attempt"] == attempt:
            return Outcome(int(outcome["exitCode"]), str(outcome["message"]))
    return None


def _plain(value: object) -> object:
    """The JSON value from which the settings parse `value`."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return value.total_seconds() if isinstance(value, timedelta) else str(value)

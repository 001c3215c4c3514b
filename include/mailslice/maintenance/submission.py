"""What a step under spark-submit is handed, and what it leaves for whoever submitted it.

Settings go in a file that its owner alone may read: a cluster's driver has no environment of ours,
and a command line is read by everybody. The outcome goes to the run's folder: spark-submit ends
with 1 for any driver that failed on a cluster.
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
"""In the run's folder, when a submitted step has raised."""


class Outcome(NamedTuple):
    """How a step ended that raised: exit code of the command line, and the error's text."""

    exit_code: int
    message: str


def write_settings(settings: Settings, folder: Path) -> Path:
    """What is set, as a file for the driver. The default of the artifacts becomes a path in it."""
    artifacts = {"artifacts": artifacts_of(settings)}
    settings = settings.model_copy(update={"duty": settings.duty.model_copy(update=artifacts)})
    file = folder / SETTINGS_FILE
    file.touch(mode=0o600)
    values = settings.model_dump(exclude_unset=True)  # what is unset follows the stores
    file.write_text(json.dumps(values, default=_plain), encoding="utf-8")
    return file


def read_settings(file: Path) -> Settings:
    """Settings that `write_settings` wrote. Raises BadSetting, without values."""
    try:
        return Settings.model_validate(json.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise BadSetting(f"--settings {file}: {error.strerror}") from None
    except ValidationError as error:
        names = sorted({".".join(map(str, one["loc"])) for one in error.errors()})
        raise BadSetting(
            f"--settings {file}: another version of mailslice wrote it ({', '.join(names)})"
        ) from None
    except ValueError:
        raise BadSetting(f"--settings {file}: no settings that mailslice wrote") from None


def write_outcome(folder: RunFolder, attempt: str, error: Exception) -> None:
    """Leaves how the step ended."""
    code = error.exit_code if isinstance(error, MailsliceError) else 1
    folder.write_json(OUTCOME, {"attempt": attempt, "exitCode": code, "message": line_of(error)})


def read_outcome(folder: RunFolder, attempt: str) -> Outcome | None:
    """How this attempt ended; None: it left no word, or it cannot be read."""
    with suppress(Exception):
        left = folder.read_json(OUTCOME)
        if left and left["attempt"] == attempt:
            return Outcome(int(left["exitCode"]), str(left["message"]))
    return None


def _plain(value: object) -> object:
    """Values as the settings take them."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return value.total_seconds() if isinstance(value, timedelta) else str(value)

"""Spark options that a setting or an Airflow connection gives: `spark.KEY` -> text.

Refuses an option that would show a secret to everybody on the machine, or would let a step end
before its driver. No error repeats a value.
"""

import json
import re
from collections.abc import Mapping
from typing import Annotated, TypeAlias

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

MASKED = "masked"
"""Type of the validation errors whose input may be a secret."""
Pairs: TypeAlias = tuple[tuple[str, str], ...]
_KEY = re.compile(r"spark\.[\w.\-/]+", re.ASCII)
_SEPARATOR = re.compile(r"[,\n]\s*(?=spark\.)")
_SECRET = re.compile(r"secret|password|token|access[.]?key|env\.mailslice_", re.IGNORECASE)
"""Spark's own spark.redaction.regex, and mailslice's settings."""
_NAMES_A_SECRET = re.compile(
    r"\.secretKeyRef\.|^spark\.kubernetes\.(driver|executor)\.secrets\.|[.]?file$", re.IGNORECASE
)
"""Options whose value only names a Kubernetes secret, or a path."""
_SET_ELSEWHERE = {
    "spark.master": "MAILSLICE_DUTY_SPARK_MASTER, or the host of Airflow's connection",
    "spark.submit.deployMode": "the extra deploy-mode of Airflow's connection",
}
_FORCED = ("spark.yarn.submit.waitAppCompletion", "spark.kubernetes.submission.waitAppCompletion")


def spark_conf(value: object) -> object:
    """Pairs from a JSON object, `spark.a=b,spark.c=d` or a mapping. Errors are of type MASKED."""
    if isinstance(value, str):
        value = _of_json(value) if value.lstrip().startswith("{") else _of_pairs(value)
    if not isinstance(value, Mapping):
        return value
    return tuple((_allowed(key), _text(key, option)) for key, option in value.items())


SparkConf = Annotated[Pairs, BeforeValidator(spark_conf)]


def _of_json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise _error(f"no JSON object ({error})") from None


def _of_pairs(text: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for word in filter(None, (part.strip() for part in _SEPARATOR.split(text))):
        key, equals, option = word.partition("=")
        if not equals:
            raise _error("a part has no =; allowed: spark.a=b,spark.c=d, or a JSON object")
        options[key.strip()] = option.strip()
    return options


def _allowed(key: object) -> str:
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise _error(f"{str(key)[:60]!r} is no option of Spark; allowed: spark.NAME")
    if key in _SET_ELSEWHERE:
        raise _error(f"{key} is not set here; it is {_SET_ELSEWHERE[key]}")
    if key in _FORCED:
        raise _error(f"{key} is always true: a step ends when its driver does")
    if _SECRET.search(key) and not _NAMES_A_SECRET.search(key):
        raise _error(
            f"{key} would stand in command lines, which everybody on the machine can read. Put it "
            "into spark-defaults.conf; settings of mailslice reach the driver by themselves"
        )
    return key


def _text(key: object, option: object) -> str:
    if isinstance(option, bool):
        return str(option).lower()
    if isinstance(option, (str, int, float)):
        return str(option)
    raise _error(f"{key} is no text, number, true or false")


def _error(text: str) -> PydanticCustomError:
    return PydanticCustomError(MASKED, "{text}", {"text": text})

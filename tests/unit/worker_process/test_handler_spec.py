from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mailslice.model.errors import BadInput, BadSetting
from mailslice.model.mail import Mail
from mailslice.model.settings import Settings
from mailslice.worker.process.handler_spec import SHIPPED, load_handler

MAIL = Mail("m", "a@b", ("c@d",))


@pytest.fixture
def handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of handlers in the working folder, which is not on the path."""
    name = f"handlers_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(
        """
def plain(mail, content): return (mail.name, content)
async def slow(mail, content): return None
def with_id(mail, content, enqueue_id): return enqueue_id
def many(mail, content, *, stage, redelivered, arrived, stopping, throttle): return None
async def slow_many(mail, content, *, redelivered, stopping): return None
async def slow_throttled(mail, content, *, throttle): return None
async def slow_maybe(mail, content, *, throttle=None): return None
def any(mail, content, **keywords): return None
def too_few(mail): return None
VALUE = 3
class Built:
    def __init__(self, settings): self.port = settings.relay.port
    def __call__(self, mail, content): return self.port
class Async:
    def __init__(self, settings): pass
    async def __call__(self, mail, content): return None
class Unbuildable:
    def __init__(self): pass
class Exits:
    def __init__(self, settings): raise SystemExit(0)
"""
    )
    (tmp_path / f"{name}_script.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / f"{name}_broken.py").write_text("import nothing_of_this_name\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


def test_a_function_of_a_module_in_the_working_folder_is_called_with_mail_and_content(
    handlers: str,
) -> None:
    loaded = load_handler(f"{handlers}:plain", Settings())
    assert not loaded.is_async
    assert loaded.call(MAIL, b"x") == ("m", b"x")


@pytest.mark.parametrize(
    ("name", "takes"),
    [
        ("plain", set()),
        ("with_id", {"enqueue_id"}),
        ("many", {"stage", "redelivered", "arrived", "stopping", "throttle"}),
        ("slow_many", {"redelivered", "stopping"}),
        ("any", {"enqueue_id", "stage"}),
    ],
)
def test_a_handler_gets_the_keywords_that_it_names(
    handlers: str, name: str, takes: set[str]
) -> None:
    assert load_handler(f"{handlers}:{name}", Settings()).takes == takes


def test_the_working_folder_is_searched_last_and_only_for_handlers_of_ones_own(
    handlers: str, tmp_path: Path
) -> None:
    before = list(sys.path)
    load_handler("relay", Settings())
    assert sys.path == before
    load_handler(f"{handlers}:plain", Settings())
    assert sys.path == [*before, str(tmp_path)], "a file here named like a module is not that one"


def test_async_functions_and_async_classes_are_known_as_such(handlers: str) -> None:
    assert load_handler(f"{handlers}:slow", Settings()).is_async
    assert load_handler(f"{handlers}:Async", Settings()).is_async


def test_a_class_is_built_with_the_settings(handlers: str) -> None:
    assert load_handler(f"{handlers}:Built", Settings()).call(MAIL, b"") == 25


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("nothing", "names no function"),
        ("module:", "names no function"),
        (":function", "names no function"),
        ("no_such_module_here:f", "module 'no_such_module_here' cannot be imported"),
        ("{}:absent", "has no 'absent'"),
        ("{}:VALUE", "is a int, which cannot be called"),
        ("{}:too_few", "cannot be called as (mail, content)"),
        ("{}:slow_throttled", "throttle, which is for plain functions"),
        ("{}:slow_maybe", "throttle, which is for plain functions"),
        ("{}:Unbuildable", "cannot be built with the settings"),
        ("{}_broken:f", "nothing_of_this_name"),
        ("{}_script:f", "cannot be imported: SystemExit: 0"),
        ("{}:Exits", "cannot be built with the settings: SystemExit: 0"),
    ],
)
def test_a_bad_spec_is_bad_input_that_names_it(handlers: str, spec: str, says: str) -> None:
    spec = spec.format(handlers)
    with pytest.raises(BadInput) as caught:
        load_handler(spec, Settings())
    assert says in str(caught.value)
    assert repr(spec) in str(caught.value)
    assert caught.value.exit_code == 2


def test_both_shipped_handlers_load_by_their_short_names(tmp_path: Path) -> None:
    settings = Settings.model_validate({"worker": {"maildir": tmp_path / "box"}})
    assert {name for name in SHIPPED if callable(load_handler(name, settings).call)} == {
        "relay",
        "maildir",
    }
    assert load_handler("maildir", settings).takes == {"enqueue_id", "redelivered"}


def test_the_maildir_handler_without_a_folder_names_the_setting() -> None:
    with pytest.raises(BadSetting, match="MAILSLICE_WORKER_MAILDIR is not set"):
        load_handler("maildir", Settings())


def test_a_working_folder_that_is_gone_has_no_handler_and_the_shipped_ones_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    with pytest.raises(BadInput, match="--handler 'nowhere:handle': module 'nowhere' cannot be"):
        load_handler("nowhere:handle", Settings())
    with pytest.raises(BadSetting, match="MAILSLICE_WORKER_MAILDIR"):
        load_handler("maildir", Settings())

"""Which requests there are, and what a digest stands for."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from mailslice.actions.preview import Selection, keep, previewed
from mailslice.actions.request import MAX_GIVEN, ActionRequest, literal, of_literal
from mailslice.codec.wildcards import Wildcard
from mailslice.maintenance.artifacts import Artifacts
from mailslice.model.errors import BadInput, Refused
from mailslice.model.mail import EnqueueId
from mailslice.model.settings import S3Settings

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
ONE, TWO = (EnqueueId(UUID(int=number)) for number in (1, 2))
DELETE = {"queue": "spool", "action": "delete", "sender": "spam@*"}


@pytest.fixture
def location(tmp_path):
    return Artifacts(str(tmp_path), S3Settings())


def selection(ids=(ONE, TWO), at=NOW, **changes):
    return Selection(ActionRequest.of({**DELETE, **changes}), at, ids)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"action": "drop"},
            "action 'drop'; allowed: delete, clear, flush, retry, delay, move, republish, undelete",
        ),
        ({"action": None}, "action 'None'"),
        ({"queue": ""}, "queue"),
        ({"sender": ""}, "delete: give at least one of sender"),
        ({"sender": None, "older_than": "1h"}, "older_than only narrows them"),
        ({"action": "clear"}, "clear takes no filter: sender is not allowed"),
        ({"action": "flush", "sender": "", "older_than": "1h"}, "flush takes no filter"),
        ({"action": "move"}, "a move needs `to`, others have none"),
        ({"to": "other"}, "a move needs `to`, others have none"),
        ({"action": "move", "to": "spool"}, "queue and to are one queue"),
        ({"action": "undelete", "sender": None}, "only an undelete needs `run`"),
        ({"run": "r"}, "only an undelete needs `run`"),
        ({"lasts": "1h"}, "only hold and delay take it"),
        ({"action": "delay"}, "lasts"),
        ({"action": "release_stuck"}, "give the ids of mails in quarantine, and no other"),
        ({"action": "discard_stuck", "sender": None}, "give the ids of mails in quarantine"),
        (
            {"action": "release_stuck", "sender": None, "ids": [f"{ONE}/x"]},
            f"ids: '{ONE}/x' names no mail in quarantine; allowed: a UUID, as stuck list",
        ),
        ({"ids": [f"{ONE}/1"]}, f"ids: '{ONE}/1' is not an enqueue id"),
        (
            {
                "action": "discard_stuck",
                "sender": None,
                "ids": [f"{ONE}/{number}" for number in range(MAX_GIVEN + 1)],
            },
            "at most 10000",
        ),
        ({"action": "delay", "lasts": "59s"}, "from 1m to 30d"),
        ({"action": "delay", "lasts": "31d"}, "from 1m to 30d"),
        ({"action": "hold"}, "hold: the only filter allowed is domain"),
        ({"action": "hold", "sender": "", "lasts": "soon"}, "soon"),
        ({"action": "hold", "sender": "", "lasts": "0s"}, "from 1s to 36500d"),
        ({"action": "hold", "sender": "", "lasts": "99999999d"}, "from 1s to 36500d"),
        ({"action": "release", "sender": "", "domain": "a b"}, "a b"),
        ({"older_than": "soon"}, "older_than"),
        ({"recipient": "nobody"}, "recipient"),
        ({"domain": "a@example.net"}, "domain: 'a@example.net' is not a domain"),
        ({"ids": ["x"]}, "ids: 'x' is not an enqueue id"),
        ({"ids": "x"}, "ids: allowed is a list"),
        ({"ids": []}, "ids: allowed is a list of enqueue ids, not empty"),
        ({"ids": ""}, "ids: allowed is a list"),
        ({"ids": {}}, "ids: allowed is a list"),
        (
            {"action": "move", "to": "other", "sender": None, "ids": []},
            "ids: allowed is a list of enqueue ids, not empty",
        ),
        (
            {"action": "clear", "sender": None, "ids": []},
            "ids: allowed is a list of enqueue ids, not empty",
        ),
        ({"sender": []}, "sender: allowed is a text"),
        ({"ids": [str(UUID(int=one)) for one in range(MAX_GIVEN + 1)]}, "at most 10000"),
        ({"sender": "  "}, "sender: '  ' is not a sender; allowed: local@domain, a pattern"),
        ({"sender": "a" * 1001}, "sender: allowed is a text of at most 1000"),
        ({"sender": ["a"]}, "sender: allowed is a text"),
        ({"name": "\ud800"}, "name: allowed is a text"),
        ({"reason": "\ud800"}, "reason: allowed is a text of at most 1000 characters, in UTF-8"),
        ({"reason": "x" * 1001}, "reason: allowed is a text of at most 1000 characters"),
        ({"action": "undelete", "sender": None, "run": "\ud800"}, "run: allowed is a text"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_name(changes, says):
    with pytest.raises(BadInput, match=says.replace("*", r"\*")):
        ActionRequest.of({**DELETE, **changes})


def test_empty_fields_say_nothing_and_ids_are_one_set_however_they_are_written():
    request = ActionRequest.of(
        {**DELETE, "sender": "", "name": None, "ids": [ONE.hex, str(TWO).upper(), str(ONE)]}
    )
    assert request.as_json() == {
        "queue": "spool",
        "action": "delete",
        "to": None,
        "run": None,
        "lasts": None,
        "filter": {"ids": [str(ONE), str(TWO)]},
    }
    assert request.texts.parsed().ids == {ONE, TWO}


@pytest.mark.parametrize("absent", [{}, {"ids": None}])
def test_only_absent_ids_are_no_filter(absent):
    asked = {"queue": "spool", "action": "move", "to": "other", "older_than": "", **absent}
    request = ActionRequest.of(asked)
    assert request.texts.parsed().is_empty


def test_mails_in_quarantine_are_named_by_id_and_attempt_or_by_id():
    request = ActionRequest.of(
        {"queue": "spool", "action": "discard_stuck", "ids": [f"{TWO.hex}/02", str(ONE), ONE.hex]}
    )
    assert request.as_json()["filter"] == {"ids": [str(ONE), f"{TWO}/2"]}
    assert request.rows == [(ONE, None), (TWO, 2)]
    assert request.parsed().ids == {ONE, TWO}


def test_a_digest_is_over_queue_action_target_filter_and_ids_and_not_over_the_time():
    others = [
        selection(queue="other"),
        selection(action="retry"),
        selection(action="move", to="other"),
        selection(action="move", to="third"),
        selection(sender="spam?*"),
        selection(recipient="spam@*"),
        selection(older_than="1h"),
        selection(ids=(ONE,)),
        selection(ids=()),
        selection(ids=None),
    ]
    digests = {one.digest for one in [selection(), *others]}
    assert len(digests) == len(others) + 1
    assert selection(at=NOW + timedelta(days=1)).digest == selection().digest


def test_a_preview_is_there_for_its_own_request_alone(location):
    digest = keep(location, selection())
    found = previewed(location, selection().request, digest, NOW + timedelta(minutes=59))
    assert (found, found.mail_filter(NOW).ids) == (selection(), {ONE, TWO})
    for changes, says in (
        ({"queue": "other"}, "queue is 'other', previewed was 'spool'"),
        ({"action": "retry"}, "action is 'retry', previewed was 'delete'"),
        ({"sender": "*"}, r"filter is \{'sender': '\*'\}, previewed was \{'sender': 'spam@\*'\}"),
    ):
        with pytest.raises(Refused, match=f"is of another request: {says}"):
            previewed(location, selection(**changes).request, digest, NOW)


def test_an_old_an_edited_and_an_unknown_preview_are_refused(location, tmp_path):
    digest, request = keep(location, selection()), selection().request
    with pytest.raises(Refused, match="is 61m old; allowed: 1h; preview again"):
        previewed(location, request, digest, NOW + timedelta(minutes=61))
    file = tmp_path / "previews" / f"{digest}.json"
    for text in (
        file.read_text().replace(TWO.hex, UUID(int=3).hex),
        "no JSON",
        "[]",
        '{"ids": 1}',
        "null",
    ):
        file.write_text(text)
        with pytest.raises(Refused, match="is not as it was written"):
            previewed(location, request, digest, NOW)
    (tmp_path / "secret.json").write_text("{}")
    for unknown in ("0" * 64, "../secret", "", "A" * 64, digest + "\n"):
        with pytest.raises(Refused, match="no preview has the digest"):
            previewed(location, request, unknown, NOW)


def test_of_previews_200_are_kept(location, monkeypatch):
    monkeypatch.setattr("mailslice.actions.preview.MAX_KEPT", 3)
    digests = [keep(location, selection(queue=f"q{number}")) for number in range(5)]
    files = location.files("previews")
    assert len(files) == 3
    assert f"previews/{digests[-1]}.json" in files


def test_without_a_preview_only_what_was_there_when_the_run_began_is_meant():
    request = ActionRequest.of({**DELETE, "older_than": "1h"})
    began = NOW - timedelta(minutes=5)
    selected = Selection(request, began, before=began)
    for now in (
        began,
        NOW,
        NOW + timedelta(hours=2),
    ):  # a run that is repeated later means them, too
        assert selected.mail_filter(now).latest(now) == began - timedelta(hours=1)
    request = ActionRequest.of({"queue": "spool", "action": "clear"})
    asked = Selection(request, began, before=began).mail_filter(NOW)
    assert asked.older_than == timedelta(minutes=5)
    early = began - timedelta(seconds=3)  # by the clock of the machine that acts
    asked = Selection(request, began, before=began).mail_filter(early)
    assert asked.latest(early) == early


@pytest.mark.parametrize("text", ["plain", "a*b", "a?", "a\\", "a\\*", "*", "[x]*"])
def test_a_literal_text_matches_itself_alone(text):
    name = ActionRequest.of({**DELETE, "sender": "", "name": literal(text)}).texts.parsed().name
    matches = name.matches if isinstance(name, Wildcard) else name.__eq__
    assert matches(text)
    assert not any(map(matches, ("", "other", f"{text}x", text.replace("*", "xx") + "x")))
    assert of_literal(literal(text)) == text


def test_a_republish_takes_an_age_and_has_no_preview():
    asked = {"queue": "spool", "action": "republish", "older_than": "1d"}
    assert ActionRequest.of(asked).as_json()["filter"] == {"older_than": "1d"}
    with pytest.raises(BadInput, match="the only filter allowed is older_than"):
        ActionRequest.of({**asked, "sender": "a@b.example"})


def test_a_selection_is_read_as_it_was_written():
    for one in (selection(), selection(ids=()), Selection(selection().request, NOW, before=NOW)):
        assert Selection.of(one.as_json()) == one

"""What `make clean` removes, and what it must not."""

import pytest

from stack import settings, stack
from stack.__main__ import clean
from stack.program import CannotStart
from stack.stack import Stack
from stack.steps import Steps


@pytest.fixture
def clone(tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "clone_root", lambda: tmp_path)
    for name in ("STATE", "TEST_STATE"):
        monkeypatch.delenv(f"MAILSLICE_STACK_{name}", raising=False)
    for folder in (".state/run", ".state/test", ".state/artifacts"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def test_all_state_of_the_clone_goes(clone):
    for name in ("run.lock", "test.lock", "setup.log", "setup.lock", "uv.txt"):
        (clone / ".state" / name).write_text("", encoding="utf-8")
    clean([])
    assert not (clone / ".state").exists()


def test_artifacts_of_deployments_that_the_clone_was_pointed_at_stay_and_are_named(clone, capsys):
    """The default place of the command line's artifacts: the only copy of exported dead letters,
    plans whose marks wait.
    """
    kept = clone / ".state" / "artifacts" / "runs" / "dead_letters" / "spool" / "r1" / "1.eml"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"Subject: the only copy")
    (clone / ".state" / "setup.log").write_text("", encoding="utf-8")
    clean([])
    assert kept.read_bytes() == b"Subject: the only copy"
    assert [path.name for path in (clone / ".state").iterdir()] == ["artifacts"]
    assert (
        f"left alone: {clone}/.state/artifacts: plans, reports and exports of deployments"
        in " ".join(capsys.readouterr().out.split())
    )


def test_what_was_written_meanwhile_goes_with_the_next_try(clone, monkeypatch):
    whole, late = stack.shutil.rmtree, []

    def rmtree(path, **how):
        whole(path, **how)
        if len(late) < 2:
            late.append(path)
            (path / "log").mkdir(parents=True)

    monkeypatch.setattr(stack.shutil, "rmtree", rmtree)
    clean([])
    assert len(late) == 2
    assert not (clone / ".state").exists()


def test_what_cannot_be_removed_is_said_and_is_no_success(clone, monkeypatch):
    def rmtree(path, onerror):
        onerror(
            None,
            str(path / "s3"),
            (PermissionError, PermissionError(13, "Permission denied"), None),
        )

    monkeypatch.setattr(stack.shutil, "rmtree", rmtree)
    monkeypatch.setattr(stack.time, "sleep", lambda _: None)
    said = (
        rf"{clone}/\.state/run, which belongs to \S+, could not be removed "
        rf"\({clone}/\.state/run/s3: Permission denied\)\. Remedy: "
    )
    with pytest.raises(CannotStart, match=said):
        clean([])


def test_a_link_to_a_state_folder_stays_and_what_it_leads_to_is_empty(clone):
    elsewhere = clone / "disk"
    (clone / ".state" / "run").rename(elsewhere)
    (clone / ".state" / "run").symlink_to(elsewhere)
    clean([])
    assert (clone / ".state" / "run").is_symlink()
    assert list(elsewhere.iterdir()) == []


def test_a_clean_of_stacks_elsewhere_leaves_the_usual_folder_to_whoever_works_there(
    clone, monkeypatch
):
    (clone / "elsewhere").mkdir()
    monkeypatch.setenv("MAILSLICE_STACK_STATE", str(clone / "elsewhere"))
    monkeypatch.setenv("MAILSLICE_STACK_TEST_STATE", str(clone / "elsewhere-test"))
    clean([])
    assert not (clone / "elsewhere").exists()
    assert (clone / ".state" / "test").is_dir()


def test_what_a_make_test_at_work_holds_stays(clone):
    with settings_lock(clone):
        clean([])
    assert (clone / ".state" / "test").is_dir()
    assert not (clone / ".state" / "run").exists()


def test_a_folder_with_other_peoples_files_is_neither_removed_nor_started_in(clone, monkeypatch):
    home = clone / "home"
    home.mkdir()
    (home / "letter.txt").write_text("dear", encoding="utf-8")
    monkeypatch.setenv("MAILSLICE_STACK_STATE", str(home))
    with pytest.raises(
        CannotStart,
        match=(
            r"MAILSLICE_STACK_STATE='.*/home' holds 'letter.txt'.* Remedy: name an empty or a "
            r"new folder"
        ),
    ):
        clean([])
    run = settings.stack_settings(settings.Profile.RUN, root=clone)
    with pytest.raises(CannotStart, match=r"letter\.txt"):
        Stack(run, Steps(), {}, with_airflow=False)
    assert [path.name for path in home.iterdir()] == ["letter.txt"]


def settings_lock(clone):
    from stack.settings import Profile, stack_settings
    from stack.stack import one_at_a_time

    return one_at_a_time(stack_settings(Profile.TEST, root=clone))

"""The privacy class of a folder is remembered when the folder is missing, because its rows remain."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from hypaware.errors import Retryable
from hypaware.home import Home
from hypaware.model.privacy_class import PrivacyClass
from hypaware.privacy import folder_memory, ignored_sessions, policy
from hypaware.privacy.folder_memory import FolderMemory, folder_identity
from hypaware.privacy.policy import PrivacyPolicy
from tests.support import processes

FULL, LOCAL, IGNORE = PrivacyClass


@pytest.fixture
def home(home: Home) -> Home:
    home.root.mkdir()
    return home


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def make_private(folder: Path, word: str = "local-only") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".hypignore").write_text(word)
    return folder


def class_of(home: Home, cwd: Path | str, *, remember: bool = True) -> PrivacyClass:
    return PrivacyPolicy(home, remember=remember).class_of(str(cwd), None)


@pytest.mark.parametrize("word", ["local-only", "ignore"])
def test_a_private_folder_that_is_removed_stays_private(home: Home, work: Path, word: str) -> None:
    clone = make_private(work / "clone", word)
    expected = class_of(home, clone / "src/deep")
    shutil.rmtree(clone)
    for cwd in (clone, clone / "src", clone / "src/deep"):
        assert class_of(home, cwd) is expected is PrivacyClass.parse(word)
    assert class_of(home, work) is class_of(home, work / "clone-2") is FULL
    reason = PrivacyPolicy(home).decide(str(clone / "src"), None).reason
    assert reason == f"{clone}/.hypignore (last known content; its folder is missing)"
    assert [(each.folder, each.privacy_class) for each in folder_memory.list_missing_folders(home)] == [
        (str(clone), expected)
    ]


def test_a_private_folder_stays_private_if_its_parents_are_removed_or_moved(home: Home, work: Path) -> None:
    first, second = make_private(work / "a/b"), make_private(work / "c")
    assert [class_of(home, first), class_of(home, second)] == [LOCAL] * 2
    shutil.rmtree(work / "a")
    second.rename(work / "d")
    assert [class_of(home, first), class_of(home, second), class_of(home, work / "d")] == [LOCAL] * 3


def test_removing_the_hypignore_makes_the_folder_public_again(home: Home, work: Path) -> None:
    clone = make_private(work / "clone")
    assert class_of(home, clone) is LOCAL
    (clone / ".hypignore").unlink()
    # A policy without memory decides the same and forgets nothing.
    assert class_of(home, clone, remember=False) is FULL
    assert folder_memory.read_folders(home)
    assert class_of(home, clone) is FULL
    assert not folder_memory.read_folders(home)
    shutil.rmtree(clone)
    assert class_of(home, clone) is FULL


def test_the_last_known_content_counts(home: Home, work: Path) -> None:
    clone = make_private(work / "clone", "ignore")
    assert class_of(home, clone) is IGNORE
    make_private(clone, "full")
    assert class_of(home, clone) is FULL
    make_private(work, "ignore")
    shutil.rmtree(clone)
    assert [class_of(home, clone), class_of(home, work)] == [FULL, IGNORE]
    assert folder_memory.list_missing_folders(home) == []


def test_another_folder_at_the_same_path_does_not_lift_the_rule(home: Home, work: Path) -> None:
    """A fresh clone or an unmounted disk: the user did not remove the file."""
    clone = make_private(work / "clone")
    assert class_of(home, clone) is LOCAL
    # Both exist at the same time, so that they cannot share an inode.
    (work / "new").mkdir()
    clone.rename(work / "old")
    (work / "new").rename(clone)
    assert class_of(home, clone / "x") is LOCAL
    make_private(clone, "full")
    assert class_of(home, clone / "x") is FULL
    (clone / ".hypignore").unlink()
    assert class_of(home, clone / "x") is FULL
    assert not folder_memory.read_folders(home)


def test_a_removed_and_recreated_folder_has_another_identity(home: Home, work: Path) -> None:
    """Even if it gets the inode of the previous one, as on many file systems."""
    clone = make_private(work / "clone")
    assert class_of(home, clone) is LOCAL
    before = folder_identity(clone)

    def has_new_identity() -> bool:
        """Within one tick of the system clock it would have the birth time of the previous one."""
        shutil.rmtree(clone)
        clone.mkdir()
        return "@" not in before or before != folder_identity(clone)

    processes.eventually(has_new_identity)
    if before == folder_identity(clone):
        pytest.skip("the file system reports no birth times")
    assert class_of(home, clone) is LOCAL


def test_a_folder_keeps_its_identity_when_its_content_changes(work: Path) -> None:
    before = folder_identity(work)
    (work / "new").touch()
    (work / "new").unlink()
    os.utime(work, (1, 1))
    work.rename(work.parent / "moved")
    assert folder_identity(work.parent / "moved") == before
    with pytest.raises(FileNotFoundError):
        folder_identity(work)


def test_a_nested_folder_is_opened_only_by_its_own_file(home: Home, work: Path) -> None:
    outer, inner = make_private(work / "outer"), make_private(work / "outer/inner", "full")
    assert [class_of(home, outer), class_of(home, inner / "x")] == [LOCAL, FULL]
    shutil.rmtree(inner)
    assert class_of(home, inner / "x") is FULL
    inner.mkdir()
    (inner / ".hypignore").touch()
    assert class_of(home, inner) is IGNORE
    (inner / ".hypignore").unlink()
    assert class_of(home, inner) is LOCAL


def test_a_rule_reached_through_a_link_survives_both_the_link_and_its_target(home: Home, work: Path) -> None:
    make_private(work / "real")
    (work / "real/acme").mkdir()
    way = work / "way"
    way.symlink_to(work / "real/acme")
    assert class_of(home, way / "src") is LOCAL
    way.unlink()
    assert class_of(home, way / "src") is LOCAL
    shutil.rmtree(work / "real")
    assert [class_of(home, way / "src"), class_of(home, work / "real/acme")] == [LOCAL, LOCAL]
    # The link leads elsewhere now: the path was private, and only a file in it makes it public.
    (work / "open/src").mkdir(parents=True)
    way.symlink_to(work / "open")
    assert [class_of(home, way / "src"), class_of(home, way)] == [LOCAL, FULL]
    make_private(way / "src", "full")
    assert class_of(home, way / "src/new") is FULL


def test_a_policy_without_memory_writes_nothing(home: Home, work: Path) -> None:
    make_private(work)
    assert class_of(home, work, remember=False) is LOCAL
    assert not folder_memory.folder_memory_path(home).exists()


def test_a_known_rule_is_not_written_again(home: Home, work: Path) -> None:
    make_private(work)
    class_of(home, work)
    before = folder_memory.folder_memory_path(home).stat()
    for cwd in ("a", "b/c", ""):
        assert class_of(home, work / cwd) is LOCAL
    after = folder_memory.folder_memory_path(home).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert after.st_mode & 0o777 == 0o600


def test_a_removed_home_is_not_recreated(home: Home, work: Path) -> None:
    home.root.rmdir()
    make_private(work)
    assert class_of(home, work) is LOCAL
    assert not home.root.exists()


def test_a_folder_that_was_unreadable_once_is_not_private_forever(home: Home, work: Path) -> None:
    loop = work / "loop"
    loop.symlink_to(loop)
    assert class_of(home, loop / "x") is IGNORE
    loop.unlink()
    loop.mkdir()
    assert class_of(home, loop / "x") is FULL


@pytest.mark.parametrize("content", ["", "[]", '{"v": 2, "folders": {}}', '{"v": 1, "folders": {"/a": 1}}', "\udc80"])
def test_with_an_unreadable_memory_only_existing_folders_count(home: Home, work: Path, content: str) -> None:
    make_private(work / "shut", "local-only")
    folder_memory.folder_memory_path(home).write_text(content, errors="surrogateescape")
    assert [class_of(home, work / each) for each in ("shut", "", "gone")] == [LOCAL, FULL, IGNORE]
    with pytest.raises(ignored_sessions.PrivacyFileUnreadable, match="privacy-folders"):
        policy.check_privacy_files(home)
    folder_memory.folder_memory_path(home).unlink()
    policy.check_privacy_files(home)
    assert class_of(home, work / "gone") is FULL


def test_an_unwritable_memory_is_a_retryable_error(home: Home, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_private(work)

    def full(*_args: object) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patched:
        patched.setattr("hypaware.home.durable_files.write_atomic", full)
        with pytest.raises(Retryable, match="No space"):
            class_of(home, work)
    assert class_of(home, work) is LOCAL
    assert folder_memory.read_folders(home)


def test_concurrent_changes_are_all_kept(home: Home, work: Path) -> None:
    folders = [[make_private(work / f"{each}-{turn}") for turn in range(8)] for each in range(4)]
    works = [lambda some=some: [class_of(home, folder) for folder in some] for some in folders]
    assert processes.together(works) == [0] * 4
    assert len(folder_memory.read_folders(home)) == 32


@pytest.mark.parametrize(
    ("point", "known"), [("privacy.seen-folder.before-write", False), ("privacy.seen-folder.after-write", True)]
)
def test_after_a_kill_the_folder_memory_is_the_old_or_the_new_one(
    home: Home, work: Path, point: str, known: bool
) -> None:
    first, second = make_private(work / "first"), make_private(work / "second")
    class_of(home, first)
    code = "from hypaware.privacy.folder_memory import FolderMemory\nfrom hypaware.home import Home\n"
    code += f"FolderMemory(Home.from_environment(), remember=True).find_rule({str(second)!r})"
    assert processes.was_killed(processes.run(code, home, crash_at=point))
    assert (str(second) in folder_memory.read_folders(home)) is known
    assert class_of(home, second) is LOCAL
    assert set(folder_memory.read_folders(home)) == {str(first), str(second)}


def test_a_purged_path_is_not_stored_but_its_rule_counts(home: Home, work: Path) -> None:
    clone, other = make_private(work / "clone/inner", "ignore"), make_private(work / "clone-2")
    (work / "way").symlink_to(clone)
    for cwd in (clone, other, work / "way"):
        class_of(home, cwd)
    folder_memory.forget_names(home, [str(work / "clone")])
    folder_memory.forget_names(home, [str(work / "clone")])
    assert class_of(home, clone) is IGNORE
    shutil.rmtree(work / "clone")
    assert [class_of(home, clone / "x"), class_of(home, other)] == [IGNORE, LOCAL]
    text = folder_memory.folder_memory_path(home).read_text()
    assert "inner" not in text
    assert str(other) in text
    assert {each.folder for each in folder_memory.list_missing_folders(home)} == {None, str(work / "way")}
    make_private(clone, "full")
    assert class_of(home, clone) is FULL
    assert "inner" not in folder_memory.folder_memory_path(home).read_text()


def test_a_change_by_another_process_is_noticed(home: Home, work: Path) -> None:
    clone = make_private(work / "clone")
    ours = FolderMemory(home)
    assert ours.find_rule(str(work)) is None
    class_of(home, clone)
    shutil.rmtree(clone)
    rule = ours.find_rule(str(clone))
    assert rule is not None
    assert (rule.privacy_class, rule.evidence) == (LOCAL, "remembered")
    assert json.loads(folder_memory.folder_memory_path(home).read_text())["v"] == 1

"""What a folder was stays known when the folder is gone: its rows are still here."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from hypaware.capture import opt_outs, privacy, seen_folders
from hypaware.capture.privacy import Privacy
from hypaware.capture.privacy_class import PrivacyClass
from hypaware.capture.same_folder import identity
from hypaware.capture.seen_folders import SeenFolders
from hypaware.errors import Retryable
from hypaware.home import Home
from tests import processes

FULL, LOCAL, IGNORE = PrivacyClass


@pytest.fixture
def home(home: Home) -> Home:
    home.root.mkdir()
    return home


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def closed(folder: Path, word: str = "local-only") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".hypignore").write_text(word)
    return folder


def class_of(home: Home, cwd: Path | str, *, remembers: bool = True) -> PrivacyClass:
    return Privacy(home, remembers=remembers).class_of(str(cwd), None)


@pytest.mark.parametrize("word", ["local-only", "ignore"])
def test_a_closed_folder_that_is_removed_stays_closed(home: Home, work: Path, word: str) -> None:
    clone = closed(work / "clone", word)
    expected = class_of(home, clone / "src/deep")
    shutil.rmtree(clone)
    for cwd in (clone, clone / "src", clone / "src/deep"):
        assert class_of(home, cwd) is expected is PrivacyClass.named(word)
    assert class_of(home, work) is class_of(home, work / "clone-2") is FULL
    why = Privacy(home).verdict(str(clone / "src"), None).why
    assert why == f"{clone}/.hypignore, as it was when its folder was last there"
    assert [(each.folder, each.privacy) for each in seen_folders.gone(home)] == [(str(clone), expected)]


def test_so_does_one_whose_folders_above_went_too_or_that_was_moved(home: Home, work: Path) -> None:
    first, second = closed(work / "a/b"), closed(work / "c")
    assert [class_of(home, first), class_of(home, second)] == [LOCAL] * 2
    shutil.rmtree(work / "a")
    second.rename(work / "d")
    assert [class_of(home, first), class_of(home, second), class_of(home, work / "d")] == [LOCAL] * 3


def test_a_file_that_its_user_removed_opens_the_folder_for_good(home: Home, work: Path) -> None:
    clone = closed(work / "clone")
    assert class_of(home, clone) is LOCAL
    (clone / ".hypignore").unlink()
    # Who only looks says the same, and forgets nothing.
    assert class_of(home, clone, remembers=False) is FULL
    assert seen_folders.read(home)
    assert class_of(home, clone) is FULL
    assert not seen_folders.read(home)
    shutil.rmtree(clone)
    assert class_of(home, clone) is FULL


def test_what_a_file_said_last_counts(home: Home, work: Path) -> None:
    clone = closed(work / "clone", "ignore")
    assert class_of(home, clone) is IGNORE
    closed(clone, "full")
    assert class_of(home, clone) is FULL
    closed(work, "ignore")
    shutil.rmtree(clone)
    assert [class_of(home, clone), class_of(home, work)] == [FULL, IGNORE]
    assert seen_folders.gone(home) == []


def test_another_folder_in_its_place_is_not_the_one_that_was_opened(home: Home, work: Path) -> None:
    """A clone made anew, a disk that is not mounted: nobody removed the file."""
    clone = closed(work / "clone")
    assert class_of(home, clone) is LOCAL
    # Both at once, so that they cannot have one inode.
    (work / "new").mkdir()
    clone.rename(work / "old")
    (work / "new").rename(clone)
    assert class_of(home, clone / "x") is LOCAL
    closed(clone, "full")
    assert class_of(home, clone / "x") is FULL
    (clone / ".hypignore").unlink()
    assert class_of(home, clone / "x") is FULL
    assert not seen_folders.read(home)


def test_a_folder_that_was_removed_and_made_anew_is_another_one(home: Home, work: Path) -> None:
    """Also with the inode of the one that was there, which many file systems give it."""
    clone = closed(work / "clone")
    assert class_of(home, clone) is LOCAL
    before = identity(clone)

    def is_made_anew() -> bool:
        """Within one tick of the system's clock it would have the birth of the one before."""
        shutil.rmtree(clone)
        clone.mkdir()
        return "@" not in before or before != identity(clone)

    processes.eventually(is_made_anew)
    if before == identity(clone):
        pytest.skip("nobody tells here when a folder was made")
    assert class_of(home, clone) is LOCAL


def test_a_folder_stays_the_same_whatever_is_done_in_it(work: Path) -> None:
    before = identity(work)
    (work / "new").touch()
    (work / "new").unlink()
    os.utime(work, (1, 1))
    work.rename(work.parent / "moved")
    assert identity(work.parent / "moved") == before
    with pytest.raises(FileNotFoundError):
        identity(work)


def test_a_folder_within_is_opened_by_its_own_file_only(home: Home, work: Path) -> None:
    outer, inner = closed(work / "outer"), closed(work / "outer/inner", "full")
    assert [class_of(home, outer), class_of(home, inner / "x")] == [LOCAL, FULL]
    shutil.rmtree(inner)
    assert class_of(home, inner / "x") is FULL
    inner.mkdir()
    (inner / ".hypignore").touch()
    assert class_of(home, inner) is IGNORE
    (inner / ".hypignore").unlink()
    assert class_of(home, inner) is LOCAL


def test_neither_the_link_nor_what_it_led_to_need_be_there(home: Home, work: Path) -> None:
    closed(work / "real")
    (work / "real/acme").mkdir()
    way = work / "way"
    way.symlink_to(work / "real/acme")
    assert class_of(home, way / "src") is LOCAL
    way.unlink()
    assert class_of(home, way / "src") is LOCAL
    shutil.rmtree(work / "real")
    assert [class_of(home, way / "src"), class_of(home, work / "real/acme")] == [LOCAL, LOCAL]
    # It leads elsewhere now: the place was closed, and only a file in it opens it.
    (work / "open/src").mkdir(parents=True)
    way.symlink_to(work / "open")
    assert [class_of(home, way / "src"), class_of(home, way)] == [LOCAL, FULL]
    closed(way / "src", "full")
    assert class_of(home, way / "src/new") is FULL


def test_who_only_looks_writes_nothing(home: Home, work: Path) -> None:
    closed(work)
    assert class_of(home, work, remembers=False) is LOCAL
    assert not seen_folders.path_of(home).exists()


def test_what_is_known_is_not_written_again(home: Home, work: Path) -> None:
    closed(work)
    class_of(home, work)
    before = seen_folders.path_of(home).stat()
    for cwd in ("a", "b/c", ""):
        assert class_of(home, work / cwd) is LOCAL
    after = seen_folders.path_of(home).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert after.st_mode & 0o777 == 0o600


def test_a_home_that_was_removed_does_not_come_back(home: Home, work: Path) -> None:
    home.root.rmdir()
    closed(work)
    assert class_of(home, work) is LOCAL
    assert not home.root.exists()


def test_a_folder_that_could_not_be_looked_into_is_not_closed_for_ever(home: Home, work: Path) -> None:
    loop = work / "loop"
    loop.symlink_to(loop)
    assert class_of(home, loop / "x") is IGNORE
    loop.unlink()
    loop.mkdir()
    assert class_of(home, loop / "x") is FULL


@pytest.mark.parametrize("content", ["", "[]", '{"v": 2, "folders": {}}', '{"v": 1, "folders": {"/a": 1}}', "\udc80"])
def test_where_the_memory_is_broken_only_what_is_there_speaks(home: Home, work: Path, content: str) -> None:
    closed(work / "shut", "local-only")
    seen_folders.path_of(home).write_text(content, errors="surrogateescape")
    assert [class_of(home, work / each) for each in ("shut", "", "gone")] == [LOCAL, FULL, IGNORE]
    with pytest.raises(opt_outs.Unreadable, match="privacy-folders"):
        privacy.check(home)
    seen_folders.path_of(home).unlink()
    privacy.check(home)
    assert class_of(home, work / "gone") is FULL


def test_where_it_cannot_be_written_nothing_goes_on(home: Home, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed(work)

    def full(*_args: object) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patched:
        patched.setattr("hypaware.durable.write_file", full)
        with pytest.raises(Retryable, match="No space"):
            class_of(home, work)
    assert class_of(home, work) is LOCAL
    assert seen_folders.read(home)


def test_many_at_once_are_all_kept(home: Home, work: Path) -> None:
    folders = [[closed(work / f"{each}-{turn}") for turn in range(8)] for each in range(4)]
    works = [lambda some=some: [class_of(home, folder) for folder in some] for some in folders]
    assert processes.together(works) == [0] * 4
    assert len(seen_folders.read(home)) == 32


@pytest.mark.parametrize(
    ("point", "known"), [("capture.seen-folder.before-write", False), ("capture.seen-folder.after-write", True)]
)
def test_killed_while_writing_it_is_the_old_one_or_the_new_one(home: Home, work: Path, point: str, known: bool) -> None:
    first, second = closed(work / "first"), closed(work / "second")
    class_of(home, first)
    code = "from hypaware.capture.seen_folders import SeenFolders\nfrom hypaware.home import Home\n"
    code += f"SeenFolders(Home.from_environment(), remembers=True).said_of({str(second)!r})"
    assert processes.was_killed(processes.run(code, home, crash_at=point))
    assert (str(second) in seen_folders.read(home)) is known
    assert class_of(home, second) is LOCAL
    assert set(seen_folders.read(home)) == {str(first), str(second)}


def test_a_name_that_was_purged_is_nowhere_and_counts(home: Home, work: Path) -> None:
    clone, other = closed(work / "clone/inner", "ignore"), closed(work / "clone-2")
    (work / "way").symlink_to(clone)
    for cwd in (clone, other, work / "way"):
        class_of(home, cwd)
    seen_folders.make_nameless(home, [str(work / "clone")])
    seen_folders.make_nameless(home, [str(work / "clone")])
    assert class_of(home, clone) is IGNORE
    shutil.rmtree(work / "clone")
    assert [class_of(home, clone / "x"), class_of(home, other)] == [IGNORE, LOCAL]
    text = seen_folders.path_of(home).read_text()
    assert "inner" not in text
    assert str(other) in text
    assert {each.folder for each in seen_folders.gone(home)} == {None, str(work / "way")}
    closed(clone, "full")
    assert class_of(home, clone) is FULL
    assert "inner" not in seen_folders.path_of(home).read_text()


def test_a_change_by_somebody_else_is_seen(home: Home, work: Path) -> None:
    clone = closed(work / "clone")
    ours = SeenFolders(home)
    assert ours.said_of(str(work)) is None
    class_of(home, clone)
    shutil.rmtree(clone)
    said = ours.said_of(str(clone))
    assert said is not None
    assert (said.privacy, said.evidence) == (LOCAL, "past")
    assert json.loads(seen_folders.path_of(home).read_text())["v"] == 1

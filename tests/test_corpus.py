"""Documents: found once, byte for byte, kept under a name made of their contents, and split by content."""

import contextlib
import os
import pickle
import sysconfig
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc_train.config import UserError
from posenc_train.tasks import corpus


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(folder))
    return folder / "posenc_train"


def put(folder: Path, contents: dict[str, bytes]) -> str:
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return str(folder)


def bytes_of(documents: corpus.Documents) -> list[bytes]:
    return [document.tobytes() for document in documents]


AWKWARD = [b"", b"\r\n\r", b"\0\0", b"\xff\xfe\x80", "é𝄞".encode(), b"x" * 70_000, b"\n", bytes(range(256))]


# ------------------------------------------------------------------------------------------------ reading


@settings(max_examples=15, deadline=None)
@given(contents=st.lists(st.binary(max_size=300) | st.sampled_from(AWKWARD), min_size=1, max_size=12))
def test_documents_are_exactly_the_bytes_of_their_files(tmp_path_factory, contents):
    folder = put(tmp_path_factory.mktemp("texts"), {f"{i:02}.txt": c for i, c in enumerate(contents)})
    documents = corpus.read(corpus.local(folder))
    assert bytes_of(documents) == contents
    assert documents.lengths.tolist() == [len(content) for content in contents]


def test_one_file_is_one_document_and_names_are_relative(tmp_path):
    put(tmp_path, {"b/c.txt": b"two", "a.txt": b"one\r\nline", "b/.hidden": b"no", ".git/config": b"no"})
    assert bytes_of(corpus.read(corpus.local(str(tmp_path / "a.txt")))) == [b"one\r\nline"]
    assert [file.name for file in corpus.local(str(tmp_path))] == ["a.txt", "b/c.txt"]


def test_standard_library_is_source_without_tests():
    files = corpus.standard_library()
    root = Path(sysconfig.get_paths()["stdlib"])
    assert {"argparse.py", "json/decoder.py"} <= {file.name for file in files}
    assert not {"test", "tests", "site-packages", "__pycache__"} & {p for f in files for p in f.name.split("/")}
    documents = corpus.read(files)
    for index in range(0, len(files), 97):
        assert documents[index].tobytes() == (root / files[index].name).read_bytes()
    assert corpus.fingerprint(files) == corpus.fingerprint(corpus.standard_library())


def test_fingerprint_is_of_names_and_contents_not_of_the_place(tmp_path):
    def name(where: str, contents: dict[str, bytes]) -> str:
        return corpus.fingerprint(corpus.local(put(tmp_path / where, contents)))

    first = name("one", {"a": b"1", "b": b"2"})
    assert first == name("two", {"a": b"1", "b": b"2"})
    changed = [
        {"a": b"1", "b": b"3"},
        {"a": b"1", "c": b"2"},
        {"a": b"2", "b": b"1"},
        {"a": b"1"},
        {"a": b"12"},
    ]
    assert len({first, *(name(f"other{i}", contents) for i, contents in enumerate(changed))}) == 6
    assert len(first) == 16 and int(first, 16) >= 0


# ----------------------------------------------------------------------------------------- finding


def test_loops_of_links_end_and_nothing_is_read_twice(tmp_path):
    put(tmp_path, {"top/a/x": b"x", "top/b/y": b"y", "other/z": b"z"})
    top = tmp_path / "top"
    (top / "self").symlink_to(top)
    (top / "a" / "up").symlink_to(tmp_path)
    (top / "a" / "root").symlink_to("/")
    (top / "a" / "b").symlink_to(top / "b")
    (top / "b" / "a").symlink_to(top / "a")
    (top / "again").symlink_to(top / "a" / "x")
    (top / "outside").symlink_to(tmp_path / "other")
    files = corpus.local(str(top))
    assert sorted(Path(file.path).read_bytes() for file in files) == [b"x", b"y", b"z"]


def test_a_link_to_itself_or_to_nothing_is_named(tmp_path):
    put(tmp_path, {"a": b"a"})
    (tmp_path / "gone").symlink_to(tmp_path / "missing")
    with pytest.raises(UserError, match="gone is a link to nothing; remove it"):
        corpus.local(str(tmp_path))
    (tmp_path / "gone").unlink()
    (tmp_path / "round").symlink_to(tmp_path / "round")
    with pytest.raises(UserError, match="round is a link to nothing"):
        corpus.local(str(tmp_path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes on this system")
@pytest.mark.timeout(20)
def test_a_pipe_does_not_block(tmp_path):
    put(tmp_path, {"a": b"a"})
    os.mkfifo(tmp_path / "pipe")
    assert [file.name for file in corpus.local(str(tmp_path))] == ["a"]
    with pytest.raises(UserError, match=r"pipe: no such file or folder"):
        corpus.local(str(tmp_path / "pipe"))


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="no file that root cannot read")
def test_an_unreadable_file_is_named(tmp_path):
    put(tmp_path, {"a": b"a"})
    (tmp_path / "locked").symlink_to("/proc/self/mem")  # an ordinary file whose first byte cannot be read
    with pytest.raises(UserError, match=r"cannot read .*locked: .*; make it readable or remove it"):
        corpus.local(str(tmp_path))


def test_a_path_with_nothing_in_it_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"task.path=nowhere: no such file or folder; give a text file"):
        corpus.local("nowhere")
    put(tmp_path, {".hidden": b"no"})
    with pytest.raises(UserError, match="holds no files"):
        corpus.local(str(tmp_path))


# ----------------------------------------------------------------------------------------- keeping


def test_a_changed_file_is_never_served_from_the_cache(tmp_path):
    """Not even one of the same size and time of change."""
    folder = put(tmp_path, {"a": b"old", "b": b"same"})
    assert bytes_of(corpus.read(corpus.local(folder))) == [b"old", b"same"]
    stat = os.stat(tmp_path / "a")
    put(tmp_path, {"a": b"new"})
    os.utime(tmp_path / "a", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert bytes_of(corpus.read(corpus.local(folder))) == [b"new", b"same"]


def test_a_file_that_changes_while_it_is_read_is_refused_and_nothing_is_kept(tmp_path, cache):
    files = corpus.local(put(tmp_path, {"a": b"old"}))
    put(tmp_path, {"a": b"new"})
    with pytest.raises(UserError, match="changed while it was read; try again"):
        corpus.read(files)
    assert not [path for path in cache.iterdir() if path.is_dir()]
    put(tmp_path, {"a": b"old"})
    assert bytes_of(corpus.read(files)) == [b"old"]


@pytest.mark.parametrize("damage", ["shorten", "remove", "{", "[]", '{"sizes": 3}', "remove the record"])
def test_a_damaged_cache_is_built_again(tmp_path, cache, damage):
    files = corpus.local(put(tmp_path, {"a": b"abc" * 1000, "b": b"d"}))
    corpus.read(files)
    (arrow,), (record,) = cache.rglob("*.arrow"), cache.rglob("ready.json")
    if damage == "shorten":
        os.truncate(arrow, arrow.stat().st_size // 2)
    elif damage.startswith("remove"):
        (record if "record" in damage else arrow).unlink()
    else:
        record.write_text(damage)
    assert bytes_of(corpus.read(files)) == [b"abc" * 1000, b"d"]


def test_what_is_prepared_is_prepared_once(cache):
    """Four at once, as the cells of a sweep are."""
    calls, found, two = [], [], threading.Barrier(2)

    def build(folder: str) -> dict[str, list[str]]:
        calls.append(folder)
        with contextlib.suppress(threading.BrokenBarrierError):
            two.wait(0.3)  # for a second one that builds at the same time
        put(Path(folder), {"made": b"x" * len(calls)})
        return {"made": [str(Path(folder, "made"))]}

    threads = [threading.Thread(target=lambda: found.append(corpus.prepare("key", build))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1 and found == [{"made": [str(cache / "key" / "made")]}] * 4
    assert corpus.prepared("other") is None


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    files = corpus.local(put(tmp_path, {"a": b"a"}))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "a"))
    with pytest.raises(UserError, match="set HF_DATASETS_CACHE to a folder that can be written"):
        corpus.read(files)


def test_the_cache_lies_where_the_variables_of_datasets_say(monkeypatch):
    monkeypatch.delenv("HF_DATASETS_CACHE")
    monkeypatch.setenv("HF_HOME", "/hf")
    assert corpus.cache() == "/hf/datasets/posenc_train"
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert corpus.cache() == "/xdg/huggingface/datasets/posenc_train"


def test_documents_travel_to_other_processes_as_names_not_as_contents(tmp_path):
    documents = corpus.read(corpus.local(put(tmp_path, {"a": b"a" * 100_000, "b": b"b"})))
    sent = pickle.dumps(documents.take(np.array([0])))
    assert len(sent) < 2000
    assert bytes_of(pickle.loads(sent)) == [b"a" * 100_000]


# ----------------------------------------------------------------------------------------- splitting


def documents_of(tmp_path: Path, contents: list[bytes]) -> tuple[corpus.Documents, np.ndarray]:
    files = corpus.local(put(tmp_path, {f"{i:04}": content for i, content in enumerate(contents)}))
    return corpus.read(files), np.array([int(file.digest[:16], 16) for file in files], np.uint64)


@settings(max_examples=200, deadline=None)
@given(digests=st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 8), min_size=2), data=st.data())
def test_split_keeps_equal_documents_together_and_neither_side_is_empty(digests, data):
    lengths = np.ones(len(digests), np.int64)
    documents = corpus.Documents(corpus.Mapped([], "ids"), lengths, lengths, lengths, np.arange(len(digests)))
    if len(set(digests)) < 2:
        return
    train, validation = corpus.split(documents, np.array(digests, np.uint64))
    assert sorted([*train.rows, *validation.rows]) == list(range(len(digests)))
    held = {digests[row] for row in validation.rows}
    assert not held & {digests[row] for row in train.rows}
    assert held == set(sorted(set(digests))[: max(1, round(len(set(digests)) / 10))])
    order = data.draw(st.permutations(range(len(digests))))
    shuffled = corpus.split(documents, np.array([digests[i] for i in order], np.uint64))[1]
    assert {digests[order[row]] for row in shuffled.rows} == held


def test_split_takes_about_a_tenth_and_copies_of_a_file_stay_together(tmp_path):
    contents = [f"document {i}".encode() for i in range(200)] * 2
    train, validation = corpus.split(*documents_of(tmp_path, contents))
    assert len(validation) == 40 and len(train) == 360
    assert not set(bytes_of(train)) & set(bytes_of(validation))


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("content", [b"x" * 1000, ("é" * 505).encode(), ("𝄞" * 251).encode(), b"ab", b"\x80" * 50])
def test_a_single_document_is_cut_between_characters(tmp_path, content, copies):
    train, validation = corpus.split(*documents_of(tmp_path, [content] * copies))
    assert [a + b for a, b in zip(bytes_of(train), bytes_of(validation), strict=True)] == [content] * copies
    assert abs(len(validation[0]) - len(content) / 10) <= 4
    if content.isascii() or content[0] > 0xC0:
        train[0].tobytes().decode()  # raises if a character was cut


# ----------------------------------------------------------------------------------------- large


@pytest.mark.long
def test_a_line_of_100_mb(tmp_path):
    line = np.random.default_rng(0).integers(32, 127, 100_000_000, np.uint8)
    line.tofile(tmp_path / "line.txt")
    documents = corpus.read(corpus.local(str(tmp_path / "line.txt")))
    assert len(documents) == 1 and np.array_equal(documents[0], line)


@pytest.mark.long
def test_ten_thousand_small_files(tmp_path):
    contents = {f"{i % 100}/{i}.txt": str(i).encode() for i in range(10_000)}
    files = corpus.local(put(tmp_path, contents))
    assert dict(zip((f.name for f in files), bytes_of(corpus.read(files)), strict=True)) == contents

"""Tests that every format gives the same documents for any division into parts."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow_datasets as tfds
from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]
from etils import epath
from tensorflow_datasets.core.example_serializer import ExampleSerializer

from bert_jax.pipelines.section import SourcesSection
from bert_jax.pipelines.sources.documents import Document, document_id
from bert_jax.pipelines.sources.sources import cut_sources, find_sources, iter_text, read_documents
from bert_jax.pipelines.tally import Tally
from tests.project import refuses
from tests.tensorflow_alone import tf

TEXTS = [f"Document {n} begins.\n\nIt is «{n}»." for n in range(20)]
IDS = [f"q{n}" for n in range(20)]


def sources(*paths: Path | str, **settings: Any) -> SourcesSection:
    return SourcesSection(input=tuple(map(str, paths)), **settings)


def read(
    section: SourcesSection, *, part_bytes: int = 1 << 20, tally: Tally | None = None
) -> list[tuple[str, Document]]:
    """Returns the ids and documents of all sources."""
    tally = tally or Tally()
    found = find_sources(section, root=None, tally=tally)
    return [
        (document_id(part.name, document.offset, document.id), document)
        for part in cut_sources(found, section, part_bytes, tally)
        for document in read_documents(part, section, tally)
    ]


def lines_of(section: SourcesSection, **options: Any) -> list[list[str]]:
    return [document.lines for _, document in read(section, **options)]


EXPECTED = [[f"Document {n} begins.", f"It is «{n}»."] for n in range(20)]


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda content: pa.compress(content, "zstd", asbytes=True),
}


@pytest.mark.parametrize("suffix", PACKERS)
def test_compressed_text_is_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt.{suffix}"
    content = "één\ntwee\n\ndrie\n".encode() * 5000
    # Parallel compressors write several consecutive frames.
    path.write_bytes(PACKERS[suffix](content) + PACKERS[suffix](content))
    assert list(iter_text(sources(path))) == content.decode().splitlines() * 2


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_damaged_compressed_file_is_one_line(tmp_path: Path, suffix: str, damage: str) -> None:
    path = tmp_path / f"a.txt.{suffix}"
    content = np.random.default_rng(0).integers(97, 123, 300_000, np.uint8)
    content[::50] = 10
    packed = bytearray(PACKERS[suffix](content.tobytes()))
    if damage == "cut":
        del packed[-2000:]
    else:
        # Arrow writes Zstandard without checksums, so only a damaged structure is detected.
        place = 4 if suffix == "zst" else len(packed) // 2
        packed[place : place + 500] = bytes(500)
    path.write_bytes(packed)
    with refuses("text.damaged", place=path):
        list(iter_text(sources(path)))


@pytest.mark.parametrize("part_bytes", [1, 100, 1 << 20])
def test_json_lines(tmp_path: Path, part_bytes: int) -> None:
    path = tmp_path / "a.jsonl"
    records = [{"id": i, "body": t} for i, t in zip(IDS, TEXTS, strict=True)]
    path.write_text("".join(f"{json.dumps(r)}\n" for r in records))
    section = sources(path, text_field="body", id_field="id")
    found = read(section, part_bytes=part_bytes)
    assert [document.lines for _, document in found] == EXPECTED
    assert [identity for identity, _ in found] == [f"a.jsonl#{i}" for i in IDS]
    assert [i for i, _ in read(sources(path, text_field="body"))][:2] == [
        "a.jsonl:0",
        f"a.jsonl:{len(json.dumps(records[0])) + 1}",
    ]


@pytest.mark.parametrize(
    ("line", "key", "place", "values"),
    [
        ('{"txt": "x"}', "record.no_field", "line 2", {"missing": "text", "found": "txt"}),
        ('{"text": 3}', "record.text", 'line 2: "text"', {"found": "3"}),
        ('{"text": "x"', "json.invalid", "line 2", {}),
        (
            *('{"text": "' + "x" * 60 + '"}', "text.too_long", "line 2"),
            {"unit": "paragraph", "found": 60, "limit": 50, "setting": "max_line_length"},
        ),
    ],
)
def test_a_bad_json_line_is_named_or_skipped(
    tmp_path: Path, line: str, key: str, place: str, values: dict[str, Any]
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "one"}}\n{line}\n\n{{"text": "three"}}\n{{"text": null}}\n')
    with refuses(key, place=f"{path}: {place}", **values):
        read(sources(path, max_line_length=50))
    tally = Tally()
    section = sources(path, max_line_length=50, on_error="skip")
    assert lines_of(section, tally=tally) == [["one"], ["three"]]
    assert tally.problems == len(tally.listed_problems) == 1


def test_parquet_is_read_by_row_group_and_column(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table(
        {
            "nested": [{"a": 1, "b": 2}] * 20,
            "text": TEXTS,
            "id": list(range(100, 120)),
            "other": [b"x" * 1000] * 20,
        }
    )
    pq.write_table(table, path, row_group_size=7)
    section = sources(path)
    found = find_sources(section, root=None, tally=Tally())
    parts = cut_sources(found, section, 1, Tally())
    assert [(p.start, p.stop) for p in parts] == [(0, 1), (1, 2), (2, 3)]
    metadata = pq.ParquetFile(path).metadata
    assert parts[1].size == metadata.row_group(1).column(2).total_compressed_size
    assert lines_of(section) == EXPECTED
    assert [i for i, _ in read(section)] == [f"a.parquet:{n}" for n in range(20)]
    given = read(sources(path, id_field="id"))
    assert [i for i, _ in given] == [f"a.parquet#{n}" for n in range(100, 120)]


def test_a_wrong_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"content": ["x"], "number": [1]}), path)
    missing: dict[str, Any] = {"place": path, "field": "column", "allowed": ["content", "number"]}
    hint = '; did you mean "content"?'
    with refuses("input.no_field", missing="contents", setting="text_field", hint=hint, **missing):
        read(sources(path, text_field="contents"))
    with refuses("parquet.column_type", place=path, column="number", found="int64"):
        read(sources(path, text_field="number"))
    with refuses("input.no_field", missing="key", setting="id_field", **missing):
        read(sources(path, text_field="content", id_field="key"))
    path.write_bytes(b"PAR1 and no more")
    with refuses("parquet.unreadable", place=path):
        read(sources(path))


def wikiextractor_text() -> str:
    return "".join(
        f'<doc id="{n}" url="https://x.org/?curid={n}" title="The "{n}" &amp; co">\n'
        f'The "{n}" & co\n\n{text}\nA &lt;b&gt; line.\n\n</doc>\n'
        for n, text in enumerate(TEXTS)
    )


@pytest.mark.parametrize("part_bytes", [1, 300, 1 << 20])
def test_wikiextractor_output(tmp_path: Path, part_bytes: int) -> None:
    path = tmp_path / "wiki_00"
    path.write_text(wikiextractor_text())
    found = read(sources(path), part_bytes=part_bytes)
    assert [d.lines for _, d in found] == [[*lines, "A <b> line."] for lines in EXPECTED]
    assert found[3][0] == "wiki_00#3"


PAGE = """<page><title>{title}</title><ns>{ns}</ns><id>{n}</id>{redirect}
<revision><id>9</id><text xml:space="preserve">{text}</text></revision></page>"""


def dump(pages: list[str]) -> bytes:
    names = '<namespace key="0" /><namespace key="6">Datei</namespace>'
    head = (
        '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/">'
        f"<siteinfo><namespaces>{names}</namespaces></siteinfo>"
    )
    return (head + "".join(pages) + "</mediawiki>").encode()


@pytest.mark.parametrize("name", ["dump.xml", "dump.xml.bz2"])
def test_wikipedia_dumps(tmp_path: Path, name: str) -> None:
    pages = [
        PAGE.format(title=f"P{n}", ns=0, n=n, redirect="", text=f"'''P{n}''' is [[a|b]].")
        for n in range(1, 4)
    ]
    pages.insert(1, PAGE.format(title="R", ns=0, n=8, redirect='<redirect title="x" />', text="x"))
    pages.insert(1, PAGE.format(title="Talk:P", ns=1, n=9, redirect="", text="chat"))
    pages.append(PAGE.format(title="F", ns=0, n=10, redirect="", text="[[Datei:x.png|mini|B]]"))
    path = tmp_path / name
    content = dump(pages)
    path.write_bytes(bz2.compress(content) if name.endswith("bz2") else content)
    found = read(sources(path))
    assert [(i, d.lines) for i, d in found] == [(f"{name}#{n}", [f"P{n} is b."]) for n in (1, 2, 3)]
    cut = content[:-60]
    path.write_bytes(bz2.compress(cut) if name.endswith("bz2") else cut)
    with refuses("wikipedia.xml", place=path):
        read(sources(path))
    tally = Tally()
    assert len(read(sources(path, on_error="skip"), tally=tally)) == 3
    assert tally.problems == 1


def write_tfds(directory: Path, *, suffix: str) -> Path:
    """Writes a dataset of two shards in TFDS's format and returns its directory."""
    features = tfds.features.FeaturesDict({"text": tfds.features.Text(), "n": np.int64})
    serializer = ExampleSerializer(cast(Any, features.get_serialized_info()))
    directory = directory / "mini" / "1.0.0"
    directory.mkdir(parents=True)
    records = [
        serializer.serialize_example(features.encode_example({"text": t, "n": n}))
        for n, t in enumerate(TEXTS)
    ]
    for shard, some in enumerate((records[:12], records[12:])):
        path = str(directory / f"mini-train.{suffix}-0000{shard}-of-00002")
        if suffix == "tfrecord":
            writer: Any = tf.io.TFRecordWriter(path)
        else:
            writer = array_record_module.ArrayRecordWriter(path, "group_size:1")
        for record in some:
            writer.write(record)
        writer.close()
    template = tfds.core.ShardedFileTemplate(
        data_dir=epath.Path(directory),
        template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        dataset_name="mini",
        filetype_suffix=suffix,
    )
    split = tfds.core.SplitInfo(
        name="train",
        shard_lengths=[12, 8],
        num_bytes=sum(map(len, records)),
        filename_template=template,
    )
    tfds.folder_dataset.write_metadata(
        data_dir=directory,
        features=features,
        split_infos=[split],
        filename_template=template,
        version="1.0.0",
        check_data=False,
    )
    return directory


@pytest.mark.parametrize("suffix", ["array_record", "tfrecord"])
def test_tfds_datasets(tmp_path: Path, suffix: str) -> None:
    directory = write_tfds(tmp_path, suffix=suffix)
    found = read(sources(directory), part_bytes=200)
    assert [d.lines for _, d in found] == EXPECTED
    assert [i for i, _ in found] == [f"mini/1.0.0/train:{n}" for n in range(20)]
    given = read(sources(directory, format="tfds", id_field="n"))
    assert given[13][0] == "mini/1.0.0/train#13"


def test_wrong_names_in_tfds_datasets_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_tfds(tmp_path, suffix="array_record")
    hint = '; did you mean "train"?'
    with refuses("tfds.no_split", missing="trian", allowed=["train"], hint=hint):
        read(sources(directory, tfds_split="trian"))
    hint = '; did you mean "text"?'
    with refuses("input.no_field", field="feature", missing="txt", hint=hint):
        read(sources(directory, text_field="txt"))
    with refuses("tfds.not_found", place="input", found="no_such_set"):
        read(sources("no_such_set", format="tfds"))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    with refuses("tfds.not_prepared", place="input", found="ag_news_subset"):
        read(sources("ag_news_subset", format="tfds"))


def test_the_format_follows_the_suffix_then_the_first_bytes(tmp_path: Path) -> None:
    contents = {
        "a.txt": ("{x} begins a line", "text"),
        "b.txt": ('<doc id="1" url="u" title="t">\n</doc>', "wikiextractor"),
        "c.jsonl": ("", "jsonl"),
        "d": ('{"text": "x"}', "jsonl"),
        "e": ('{"id": "1", "title": "x"}', "wikiextractor"),
        "f.ndjson": ("", "jsonl"),
        "g.parquet": ("", "parquet"),
        "h": ("<mediawiki>", "wikipedia_xml"),
        "i.md": ("# x", "text"),
    }
    for name, (content, _) in contents.items():
        (tmp_path / name).write_text(content)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content.encode()))
    section = sources(f"{tmp_path}/*")
    found = {s.name: s.format for s in find_sources(section, root=None, tally=Tally())}
    assert found == {
        packed: form for name, (_, form) in contents.items() for packed in (name, f"{name}.gz")
    }

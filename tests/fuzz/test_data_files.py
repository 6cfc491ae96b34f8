"""Files with data: tables, questions, columns, datasets, TFRecords and Wikipedia's dumps."""

import bz2
import gzip
import json
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from etils import epath
from hypothesis import strategies as st

from bert_jax.data.dataset.reader import open_dataset
from bert_jax.data.google_bert import tf_example
from bert_jax.data.google_bert.reader import open_google_bert
from bert_jax.data.google_bert.tfrecord import frame
from bert_jax.data.tables import RowErrors, read_table
from bert_jax.pipelines.cleaning.contamination import evaluation_texts
from bert_jax.pipelines.section import SourcesSection
from bert_jax.pipelines.sources.readers.wikipedia_xml import wikitext_paragraphs
from bert_jax.pipelines.sources.sources import iter_text
from bert_jax.tasks.choice import MultipleChoiceSection
from bert_jax.tasks.choice_table import read_choices
from bert_jax.tasks.glue.files import read_glue
from bert_jax.tasks.labels import Labelling, number_of
from bert_jax.tasks.squad.file import read_squad
from bert_jax.tasks.table import TableSection, text_rows
from bert_jax.tasks.tokens.conll import read_conll
from tests.corpus import make_dataset
from tests.fuzz.harness import both_forms, damaged, flipped, json_of, survives
from tests.project import refuses

TSV = "sentence\tlabel\tid\na good one\t1\t0\nbäd\t0\t1\n"
CSV = 'sentence,label,id\n"a ""good"", one",1,0\nbäd,0,1\n'
JSONL = """{"sentence": "a good one", "label": 1, "id": 0}
{"sentence": "bäd", "label": 0.5, "id": "x"}
"""
CHOICES = "startphrase,e0,e1,label\nhe sat,down,up,0\nshe ran,off,on,1\n"
CONLL = "-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n\nPeter NNP B-PER\n"
ANSWERED = {
    "id": "1", "question": "Who sat?", "is_impossible": False,
    "answers": [{"text": "The cat", "answer_start": 0}],
}  # fmt: skip
UNANSWERED = {"id": "2", "question": "Why?", "answers": [], "is_impossible": True}
PARAGRAPH = {"context": "The cat sat.", "qas": [ANSWERED, UNANSWERED]}
SQUAD = {"version": "2.0", "data": [{"title": "A", "paragraphs": [PARAGRAPH]}]}


def row() -> bytes:
    """Returns [CLS] a [SEP] b [SEP] with one mask, as `create_pretraining_data.py` stores it."""
    found = tf_example.Example()
    feature = found.features.feature
    feature["input_ids"].int64_list.value.extend([2, 4, 3, 300, 3, 0, 0, 0])
    feature["input_mask"].int64_list.value.extend([1] * 5 + [0] * 3)
    feature["segment_ids"].int64_list.value.extend([0] * 3 + [1] * 2 + [0] * 3)
    feature["masked_lm_positions"].int64_list.value.extend([1, 0])
    feature["masked_lm_ids"].int64_list.value.extend([7, 0])
    feature["masked_lm_weights"].float_list.value.extend([1.0, 0.0])
    feature["next_sentence_labels"].int64_list.value.append(1)
    return found.SerializeToString(deterministic=True)


ROW = row()
WIKITEXT = (
    "'''A''' is [[b|B]] &amp; {{c|d=e}}<ref name=\"x\">f</ref>.\n== G ==\n* h\n{| class=i\n|-\n| j"
    "\n|}\n"
    "[[File:k.png|thumb|l [[m]]]] (, ) [http://n o] <b>p</b><!-- q --> {{{r|s}}} &#65;&#x42;\n"
)
XML = (
    '<?xml version="1.0" encoding="utf-8"?>\n<mediawiki xmlns="http://x/"><siteinfo><namespaces>'
    '<namespace key="6">Datei</namespace></namespaces></siteinfo><page><title>A</title><ns>0</ns>'
    "<id>7</id><revision><id>9</id><text>A &lt;b&gt; [[c]].\nD.</text></revision></page>"
    "<page><title>E</title><ns>0</ns><id>8</id><redirect/></page></mediawiki>"
)


@both_forms
@pytest.mark.parametrize(("suffix", "whole"), [(".tsv", TSV), (".csv", CSV), (".jsonl", JSONL)])
def test_tables(tmp_path: Path, suffix: str, whole: str, inputs: int) -> None:
    path = tmp_path / f"table{suffix}"
    section = TableSection(text="sentence", label="label", id="id")
    labelling = Labelling("multi_label", ())

    def read(content: bytes) -> None:
        path.write_bytes(content)
        required = section.required("train")
        for found in text_rows(read_table(path), section, required, errors=RowErrors()):
            number_of(found.label)
            labelling.names_in(found)
        read_glue(path, "cola", labelled=True)

    survives(read, damaged(whole.encode()), inputs)


def read_both_choices(path: Path) -> None:
    for header in (True, False):
        names = ("startphrase", "e0", "e1", "label") if header else ("0", "1", "2", "3")
        columns = {"text": names[0], "choices": names[1:3], "label": names[3]}
        section = MultipleChoiceSection.model_validate(columns | {"header": header})
        rows, errors = section.rows(path, "test")
        read_choices(rows, section.columns, section.required("test"), labelled=False, errors=errors)


def read_questions(path: Path) -> None:
    list(evaluation_texts(str(path)))
    read_squad(path, version="auto", needs_answers=True)


@both_forms
@pytest.mark.parametrize(
    ("name", "contents", "use"),
    [
        ("choices.csv", damaged(CHOICES.encode()), read_both_choices),
        (
            "train.txt",
            damaged(CONLL.encode()),
            lambda path: read_conll(path, labelled=True).names,
        ),
        ("dev.json", json_of(SQUAD), read_questions),
    ],
    ids=["choices", "tokens", "questions"],
)
def test_files_of_tasks(
    tmp_path: Path,
    name: str,
    contents: st.SearchStrategy[bytes],
    use: Callable[[Path], object],
    inputs: int,
) -> None:
    path = tmp_path / name

    def read(content: bytes) -> None:
        path.write_bytes(content)
        use(path)

    survives(read, contents, inputs)


@both_forms
def test_tfrecords(tmp_path: Path, inputs: int) -> None:
    path = tmp_path / "train.tfrecord"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        dataset = open_google_bert(path)
        dataset.__getitems__(range(len(dataset)))

    # Damage by a disk, and by an attacker who corrects the checksums.
    framed = damaged(ROW).map(lambda row: frame(ROW) + frame(row))
    survives(read, st.one_of(damaged(frame(ROW) * 3), framed), inputs)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("fuzz")
    make_dataset(root, num_shards=1, dupe_factor=1)
    return root / "dataset"


def read_all(directory: Path) -> None:
    found = open_dataset(directory, "train")
    found.__getitems__(range(len(found)))


@both_forms
def test_shards(tmp_path: Path, dataset: Path, inputs: int) -> None:
    copy = Path(shutil.copytree(dataset, tmp_path / "copy"))
    shard = copy / open_dataset(copy, "train").provenance.splits["train"].shards[0].name
    whole = shard.read_bytes()
    expected = [each.input_ids.tolist() for each in open_dataset(copy, "train")]

    def read(content: bytes) -> None:
        shard.write_bytes(content)
        found = open_dataset(copy, "train")
        examples = found.__getitems__(range(len(found)))
        assert [
            each.input_ids.tolist() for each in examples
        ] == expected  # damage has no effect or raises an error

    survives(read, st.one_of(flipped(whole), flipped(whole), damaged(whole)), inputs)


@both_forms
def test_provenance(tmp_path: Path, dataset: Path, inputs: int) -> None:
    copy = Path(shutil.copytree(dataset, tmp_path / "copy"))
    path = copy / "provenance.json"
    whole = json.loads(path.read_text())

    def read(content: bytes) -> None:
        path.write_bytes(content)
        read_all(copy)

    survives(read, json_of(whole), inputs)


@both_forms
@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_dumps_of_wikipedia(tmp_path: Path, on_error: str, inputs: int) -> None:
    path = tmp_path / "pages.xml"
    section = SourcesSection.model_validate({"input": str(path), "on_error": on_error})

    def read(content: bytes) -> None:
        path.write_bytes(content)
        for line in iter_text(section):
            line.encode()

    survives(read, damaged(XML.encode()), inputs)


@both_forms
def test_wikitext(inputs: int) -> None:
    def read(content: bytes) -> None:
        text = content.decode("utf-8", errors="replace")
        "".join(wikitext_paragraphs(text, dropped_namespaces={"file"})).encode()

    pieces = ["{{", "}}", "[[", "]]", "'''", "<b ", ">", "</b>", "|", "=", "\n", "{|", "&#x", ";"]
    made_up = st.lists(st.sampled_from([*pieces, "a", "[http://x "]), max_size=200)
    texts = made_up.map(lambda found: "".join(found).encode())
    survives(read, st.one_of(damaged(WIKITEXT.encode()), texts), inputs)


@both_forms
@pytest.mark.parametrize("suffix", [".txt.gz", ".txt.bz2", ".txt.xz", ".txt.zst", ".jsonl", ""])
def test_texts(tmp_path: Path, suffix: str, inputs: int) -> None:
    text = "One.\nTwo.\n\nThree.\n" * 20
    packers = {".txt.gz": gzip.compress, ".txt.bz2": bz2.compress, ".txt.xz": lzma.compress}
    whole = packers.get(suffix, bytes)(text.encode())
    if suffix == ".txt.zst":
        import pyarrow as pa

        whole = pa.compress(text.encode(), codec="zstd", asbytes=True)
    if suffix == ".jsonl":
        whole = b'{"text": "One.\\nTwo.", "id": "a"}\n{"text": null, "id": "b"}\n'
    if suffix == "":
        whole = b'<doc id="7" url="u" title="A">\nA\n\nOne.\n</doc>\n'
    path = tmp_path / f"text{suffix}"
    settings = {"input": str(path), "id_field": "id" if suffix == ".jsonl" else None}
    section = SourcesSection.model_validate(settings)

    def read(content: bytes) -> None:
        path.write_bytes(content)
        for line in iter_text(section):
            line.encode()

    survives(read, damaged(whole), inputs)


def test_a_page_without_an_end_uses_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "pages.xml.bz2"
    start = XML.partition("A &lt;")[0].encode()
    packed = bz2.compress(start) + bz2.compress(b"x" * (1 << 20)) * 80
    epath.Path(path).write_bytes(packed)
    section = SourcesSection(input=(str(path),), max_document_length=1000)
    with refuses("wikipedia.page_unended", place=path):
        list(iter_text(section))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("{{a|b=" * 4000, "wikipedia.brackets"),
        ("{{" * 4000 + "}}" * 4000, "wikipedia.wikitext"),
        ("<a b='" * 4000, "wikipedia.brackets"),
    ],
)
def test_unclosed_wikitext_is_refused_quickly(text: str, key: str) -> None:
    with refuses(key):
        wikitext_paragraphs(text, dropped_namespaces=())

"""Files that are not prose are refused by their content, and prose of every kind is read."""

import csv
import gzip
import io
import json
import pprint
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.orc
import pytest

from bert_jax.data.google_bert.tfrecord import frame
from bert_jax.pipelines.sources.sources import find_sources
from bert_jax.pipelines.tally import Tally
from tests.pipelines.test_readers import lines_of, read, sources
from tests.project import refuses

ROWS = [{"text": f"Row {n}, of several.", "label": n % 2} for n in range(6)]
CSV = "".join(f'"{row["text"]}",{row["label"]}\n' for row in ROWS)
TSV = "".join(f"{row['label']}\t{row['text']}\n" for row in ROWS)
LONG = "word " * 80_000  # longer than the part of a file that is looked at
TEXT = "".join(f"Row {n}, of several. It has two sentences.\n" for n in range(6))
RUSSIAN = "Это первая строка.\nЭто вторая строка.\n"
JAPANESE = "これは最初の文です。\nこれは次の文です。\n"


def quoted_tsv() -> str:
    table = io.StringIO()
    rows = [("text", "label"), *((f'She said "no"\nand {n}.', "x") for n in range(3))]
    csv.writer(table, delimiter="\t", lineterminator="\n").writerows(rows)
    return table.getvalue()


def tar() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        name = tarfile.TarInfo("a.txt")
        name.size = len(TEXT)
        archive.addfile(name, io.BytesIO(TEXT.encode()))
    return packed.getvalue()


def orc() -> bytes:
    made = io.BytesIO()
    pyarrow.orc.write_table(pa.Table.from_pylist(ROWS), made)
    return made.getvalue()


CONLL = "-DOCSTART- -X- O O\n\nEU NNP I-NP B-ORG\nrejects VBZ I-VP O\n. . O O\n\n"
CONLL_U = (
    "# text = Yes.\n1\tYes\tyes\tINTJ\t_\t_\t0\troot\t_\t_\n2\t.\t.\tPUNCT\t_\t_\t1\tpunct\t_\t_\n"
)


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("a.json", json.dumps(ROWS), "a JSON array"),
        ("a.txt", "\ufeff" + json.dumps(ROWS, indent=2), "a JSON array"),
        ("a", json.dumps([{"text": LONG}, *ROWS]), "a JSON array"),
        ("a.json", json.dumps({"data": ROWS}, indent=2), "a JSON object of several lines"),
        ("a.txt", "".join(f"{json.dumps(row)}\n" for row in ROWS), "JSON lines without"),
        (
            "a.txt",
            "".join(f"{json.dumps(row)},\n" for row in ROWS),
            "JSON lines without",
        ),
        ("a.txt", "".join(map(json.dumps, ROWS)), "JSON lines without"),
        ("a.txt", "".join(f"[{n}, 2]\n" for n in range(3)), "JSON lists"),
        ("a.json", json.dumps(ROWS)[:-1] + ",]", "a JSON array with a fault in line 1"),
        ("a.txt", json.dumps(ROWS, indent=1)[:-2] + ",\n]", "a JSON array with a fault in line 2"),
        ("a.json", '[\n {"text": "One."},\n // two\n {}]', "a JSON array with a fault in line 3"),
        ("a.json", json.dumps(ROWS)[:-20], "a JSON array with a fault in line 1"),
        ("a.txt", '{"text": "One."}\n{"text": "Two.",}\n', "JSON objects with a fault in line 2"),
        ("a.txt", "".join(f"{json.dumps(TEXT)}\n" for _ in ROWS), "JSON strings"),
        ("a.txt", f'"{TEXT.replace(chr(10), " ") * 3}"\n' * 3, "JSON strings"),
        ("a.txt", '"some text"\n"other text"\n"more"\n', "JSON strings"),
        ("a.txt", '"He said ""no""."\n"Yes."\n"So ""be"" it."\n', "a CSV table"),
        ("a.txt", "".join(f"{row}\n" for row in ROWS), "dicts of Python"),
        ("a", "{'text': 'a'}\n", "dicts of Python"),
        ("a.txt", str(ROWS), "a list of Python"),
        ("a.txt", pprint.pformat(ROWS), "a list of Python"),
        ("a.txt", pprint.pformat({"text": TEXT, "label": 1}), "a dict of Python"),
        ("a.txt", f"{{'text': '{LONG}'}}\n", "a dict of Python"),
        ("a.txt", "".join(f"{[*row.values()]}\n" for row in ROWS), "lists of Python"),
        ("a.txt", "['One.']\n['Two.', \"Three's.\"]\n", "lists of Python"),
        ("a.csv", "one column\nof prose\n", "a CSV table"),
        ("a.txt", "text,label\n" + CSV, "a CSV table"),
        ("a", CSV, "a CSV table"),
        ("a", ",text,label\n" + "".join(f"{n},One two.,x\n" for n in "123"), "a CSV table"),
        (
            "a.txt",
            "id;text\n" + "".join(f'{n};"{LONG[:99_999]}"\n' for n in range(4)),
            "a CSV table",
        ),
        ("a.txt", "本文,ラベル\n今日は晴れ。,1\n明日は雨。,0\n", "a CSV table"),
        ("a.txt", "文章,评价\n很好。,正面\n“不好”,负面\n一般,负面\n还行,正面\n", "a CSV table"),
        ("a.txt", "ข้อความ,ป้าย\nดีมาก,1\nไม่ดี,0\n", "a CSV table"),
        ("a.txt", "النص,التصنيف\nجيد.,إيجابي\nسيئ.,سلبي\n", "a CSV table"),
        ("a.txt", "पाठ;वर्ग\nअच्छा है।;हाँ\nबुरा है।;नहीं\n", "a CSV table"),
        ("a.txt", "본문\t분류\n좋아요.\t긍정\n싫어요.\t부정\n", "a TSV table"),
        ("a.txt", "Größe,Straße\ngroß.,ja\nklein.,nein\n", "a CSV table"),
        ("a.txt", "What was it?,Votes\n" + "A film.,12\nA play.,3\n" * 2, "a CSV table"),
        ("a.txt", TSV, "a TSV table"),
        ("a", "label\ttext\n" + 'x\tSay "no.\n' * 2, "a TSV table"),
        ("a.txt", quoted_tsv(), "a TSV table"),
        ("a.txt", "Hi.\tSalut.\nRun!\tCours !\nWho?\tQui ?\n" * 2, "a TSV table"),
        ("a.txt", "Ann\tHello.\nBen\tWho is it?\nAnn\tMe.\n" * 2, "a TSV table"),
        ("a.txt", "word\tmeaning\ndog\ta domestic animal\ncat\ta pet\n", "a TSV table"),
        ("a.txt", "| a | b |\n|---|:-:|\n| One. | 1 |\n| Two. | 2 |\n", "a Markdown table"),
        ("a.md", "a | b\n--- | ---\nOne. | 1\n", "a Markdown table"),
        ("a.txt", "+---+---+\n| a | b |\n+---+---+\n| 1 | 2 |\n+---+---+\n", "a Markdown table"),
        ("a.txt", CONLL, "CoNLL columns"),
        ("a.conll", "EU\tB-ORG\nrejects\tO\n\nGerman\tB-MISC\n", "CoNLL columns"),
        ("a.conllu", CONLL_U * 2, "CoNLL columns"),
        ("a.html", " <!DOCTYPE html>\n<p>One.", "HTML"),
        ("a.txt", "<p>One.</p>\n<p>Two.</p>\n", "HTML"),
        ("a.txt", "<div class='a'>\n<h1>One</h1>\nTwo.\nThree.\nFour.\n</div>\n", "HTML"),
        ("a.txt", "<ul><li>One<li>Two <b>three</b></ul>", "HTML"),
        ("a.txt", "One.<br>\n<b>Two</b>.<br />\nThree.<br>\n", "HTML"),
        ("a.txt", "<p>One.</p>", "HTML"),
        ("a.txt", f"<div>\n{'<p>' + 'One.' * 9} \n two</p>\n" * 9_000, "HTML"),
        ("a.txt", "<doc>\n<s>One.</s>\n<s>Two.</s>\n</doc>\n", "XML"),
        ("a.srt", "1\n00:00:01,000 --> 00:00:04,000\nOne.\n\n2\n", "SRT subtitles"),
        ("a.vtt", "WEBVTT\n\n00:01.000 --> 00:04.000\nOne.\n", "WebVTT subtitles"),
        ("a.wet", "WARC/1.0\r\nWARC-Type: warcinfo\r\n\r\nOne.\r\n", "a WARC file"),
        ("a.txt", "__label__a One.\n__label__b Two.\n", "labels of fastText"),
        ("a.txt", "PK\x03\x04", "a zip archive"),
        ("a.txt", gzip.compress(TEXT.encode(), mtime=0), "gzip data without .gz"),
        ("a.txt", "%PDF-1.7", "a PDF"),
        ("a.txt", TEXT.encode("utf-16-le"), "UTF-16 text"),
        ("a.txt", TEXT.encode("utf-16-be"), "UTF-16 text"),
        ("a.txt", RUSSIAN.encode("utf-16-le"), "UTF-16 text"),
        ("a.txt", JAPANESE.encode("utf-16-be"), "UTF-16 text"),
        ("a.txt", TEXT.encode("utf-32-le"), "UTF-32 text"),
        ("a.txt", JAPANESE.encode("utf-16"), "UTF-16 text"),
        ("a.txt", JAPANESE.encode("iso2022_jp"), "ISO-2022 text"),
        ("a.txt", tar(), "a tar archive"),
        ("a.txt", b"Rar!\x1a\x07\x01\x00" + TEXT.encode(), "a RAR archive"),
        ("a.txt", pa.compress(TEXT.encode(), "lz4", asbytes=True), "LZ4 data"),
        ("a.txt", orc(), "an ORC file"),
        ("a.txt", b"Obj\x01\x04\x16avro.schema" + TEXT.encode(), "an Avro file"),
        ("a.txt", frame(TEXT.encode()), "a TFRecord file"),
        ("a.txt", bytes(range(256)) * 9, "binary data"),
    ],
)
def test_another_format_is_not_read_as_prose(
    tmp_path: Path, name: str, content: str | bytes, found: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with refuses("input.other_format", place=path) as refusal:
        read(sources(path))
    assert found in str(refusal.value)
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    tally = Tally()
    assert read(sources(packed, on_error="skip"), tally=tally) == []
    assert tally.problems == 1
    # The setting overrules.
    (source,) = find_sources(sources(path, format="text"), root=None, tally=tally)
    assert source.format == "text"


def test_line_ends_of_old_macs_are_named(tmp_path: Path) -> None:
    path = tmp_path / "mac.txt"
    path.write_bytes(b"One.\rTwo.\r\rThree.\r")
    with refuses("input.line_ends", place=path):
        read(sources(path))
    path.write_bytes(b"One.\r\nTwo.\r\n\r\nThree.\r\n")
    assert lines_of(sources(path)) == [["One.", "Two."], ["Three."]]


PROSE = [
    # Brackets and JSON in sentences.
    '["Hello," she said.]\nAnother line.\n',
    '["5," she said]\n',
    "[1] A footnote, and more.\n[2] Another, and more.\n",
    "[1]\nA footnote.\n[2]\nAnother.\n",
    "[1, 2,\n3] and more.\n",
    "[Music]\n\n{x} is a set.\n",
    '{"a": 1} is an object of JSON, and [1, 2] a list.\n',
    '{"a": 1}\nis an object of JSON.\n',
    "{'a': 1} is a dict of Python.\nSo is {'b': 2}\n",
    "('Tis true, he said.)\n('Twas so.)\n",
    '("Hello.")\n("Goodbye.")\n',
    "[Music, " + "one, two, " * 40_000,
    # Dialogue.
    '"Yes," he said.\n"No," she said.\n"Well," they said.\n',
    '"Who is there?"\n"It is I."\n"Come in!"\n"Thank you…"\n' * 9,
    '"Yes." "No."\n"Well." "So."\n"Now." "Then."\n',
    "'One.'\n'Two.'\n'Three.'\n",
    "— Yes.\n— No.\n« Oui ! »\n« Non ! »\n",
    "„Ja“, sagte er.\n“Yes,” he said.\n",
    "Speaker: One.\n" * 9,
    "[12:30] Ann: Hello.\n[12:31] Ben: Good day.\n[12:40] Ann: Goodbye.\n",
    'A single "docstring".\n',
    '"""One line of Python."""\n',
    # Commas, semicolons, bars and tabs.
    "Well, I went.\nYes, you did.\nNo, he did not.\nSo, we all did.\n",
    "Once; twice.\nNow; then.\nHere; there.\nIn; out.\n",
    "Take a,b and c.\nThen d,e and f.\nLast g,h and i.\nDone x,y and z.\n",
    "a | b\nc | d\ne | f\ng | h\n",
    "\tAn indented line.\n" * 6,
    "Milk, 2 litres\nBread, 1 loaf\nEggs, 12\nSalt, 1 kg\nTea, 2 packs\n",
    # Numbers, lists, headings and contents.
    "In 1,000 years.\nOf 2,000 men.\nBy 3,000 votes.\nTo 4,000 more.\nAt 5,000 feet.\n",
    "1,000 men came.\n2,500 stayed.\n3,000 left.\n4,200 slept.\n5,100 woke.\n",
    "1,234\n5,678\n9,012\n3,456\n7,890\n",
    "3,14\n2,72\n1,41\n1,73\n0,58\n",
    "1. One.\n2. Two.\n3. Three.\n- Four.\n* Five.\n",
    "# One\n\n## Two\n\nThree.\n\n---\n\nOne\n===\n",
    "Chapter I\nChapter II\nAct I\nScene I\nScene II\nAct II\nScene I\nScene II\n",
    "Introduction\t1\nMethods\t5\nResults\t12\nDiscussion\t20\nReferences\t31\n",
    "Introduction ........ 1\nMethods ........ 5\nResults ........ 12\n" * 2,
    "A table in Markdown.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nIt has one row.\n",
    "dog\ta domestic animal\ncat\ta small animal\ncow\ta large animal\nox\ta bovine\n",
    "beak\tthe nose of a bird\nwing\tits arm\nnest\tits home\n",
    # Poems, also with two verses in a line.
    "O Rose\nO love\nO joy\nO pain\n",
    "Tyger Tyger, burning bright,\nIn the forests of the night;\n" * 5,
    "床前明月光,疑是地上霜\n举头望明月,低头思故乡\n白日依山尽,黄河入海流\n欲穷千里目,更上一层楼\n",
    "床前明月光\t疑是地上霜\n举头望明月\t低头思故乡\n白日依山尽\t黄河入海流\n",
    "قفا نبك من ذكرى حبيب ومنزل\tبسقط اللوى بين الدخول فحومل\n" * 4,
    "توانا بود هر که دانا بود,ز دانش دل پیر برنا بود\nز یزدان,بدان\nبه نام,خداوند\n",
    # Markup in sentences.
    "<p>One tag</p> is prose.\n",
    "<p> begins a paragraph, which ends with </p>.\nThe tag <br> ends a line.\n",
    "<b>Bold</b> text is in <b> and </b>\nA list has <li>one</li> item or <li>two</li>\n",
    "Use <b>bold</b> for names.\nUse <i>italics</i> for titles.\n",
    "<unk> is a piece.\n<s> begins a row, and </s> ends it.\n",
    "<3 is a heart.\na < b and b > c.\n",
    "1\nThe first scene, at 10:30 --> later.\n2\nThe second.\n",
    # Code.
    'import csv\n\n\ndef main(text, label):\n    """Reads."""\n    return {"a": text}\n',
    "#include <stdio.h>\n\nint main(void) {\n    return 0;\n}\n",
    "SELECT a,b FROM c;\nSELECT d,e FROM f;\nSELECT g,h FROM i;\nSELECT j,k FROM l;\n",
    # Scripts.
    "Это первая строка, и она длинна.\nЭто вторая, она короче.\n",
    "Αυτή είναι η πρώτη γραμμή, και η δεύτερη.\nΝαι, είναι.\nΌχι, δεν είναι.\n",
    "これは、最初の文です。\n「はい」と言った。\nこれは,次の文です\n",
    "이것은 첫 문장, 그리고 끝.\n네, 맞아요.\n아니, 틀려요.\n",
    "هذا هو السطر الأول، وهو طويل.\nنعم، هو كذلك.\n",
    "זו השורה הראשונה, והיא ארוכה.\nכן, היא.\nלא, היא לא.\n",
    "यह पहली पंक्ति है, और लंबी है।\nहाँ, है।\n",
    "นี่คือบรรทัดแรก,ยาว\nใช่,จริง\nไม่,ไม่จริง\nอาจจะ,ก็ได้\n",
    "ეს პირველი ხაზია, და გრძელია.\nდიახ, ასეა.\n",
    "Սա առաջին տողն է, և երկար է։\nԱյո, այդպես է։\n",
    # Control characters of old files.
    "A\bAB\bB of a manual.\n\fA new page.\x1a",
    "One \0word in ten may be lost.\nThe other words of this line stay as they are.\n",
    "",
]


@pytest.mark.parametrize("content", PROSE)
def test_prose_is_read(tmp_path: Path, content: str) -> None:
    path = tmp_path / "prose.txt"
    path.write_text(content, encoding="utf-8")
    section = sources(path, max_line_length=10_000_000)
    assert read(section) == read(sources(path, format="text", max_line_length=10_000_000))

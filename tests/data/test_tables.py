"""Reading tables row by row."""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.data.tables import NO_HEADER, SUFFIXES, RowErrors, read_table
from bert_jax.errors import UserError
from tests.project import refuses


def rows(path: Path) -> list[tuple[int, dict[str, Any]]]:
    return [(row.line, dict(row.values)) for row in read_table(path)]


def test_csv_has_quotes_and_tsv_does_not(tmp_path: Path) -> None:
    tsv, table = tmp_path / "t.tsv", tmp_path / "t.csv"
    tsv.write_bytes('\ufeffa\tb\r\n"x" z\t1\r\ny"\t\r\n'.encode())
    assert rows(tsv) == [(2, {"a": '"x" z', "b": "1"}), (3, {"a": 'y"', "b": ""})]
    table.write_bytes(b'a,b\n"x\ny, ""z""",1\nw,2\n')
    assert rows(table) == [(3, {"a": 'x\ny, "z"', "b": "1"}), (4, {"a": "w", "b": "2"})]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        # All quotes are those of a CSV, as pandas writes them.
        ('a\tb\n"She said ""no""."\t1\nw\t2\n', ['She said "no".', "w"]),
        ('a\tb\n"x\ny"\t1\r\nw\t2\n', ["x\ny", "w"]),
        ('a\tb\n"x\n\ny ""z"""\t1\n', ['x\n\ny "z"']),
        ('a\tb\n"x\ty"\t1\nw\t2\n', ["x\ty", "w"]),
        ('a\tb\n"x\ry"\t1\nw\t2\n', ["x\ry", "w"]),
        ('"a"\t"b"\n"x"\t"1"\n"w"\t"2"\n', ["x", "w"]),
        ('a\tb\n"x"\t1\n"w"\t2\n', ["x", "w"]),
        ('"a"\t"b"\n"x\t1\n2"\t"1"\n', ["x\t1\n2"]),
        # One quote is not, so none are.
        (
            'a\tb\n"She said ""no""."\t1\nShe said "no".\t2\n',
            ['"She said ""no""."', 'She said "no".'],
        ),
        ('a\tb\n"x"\t1\n"w" y\t2\n', ['"x"', '"w" y']),
        ('a\tb\n"x\t1\nw\t2\n', ['"x', "w"]),
        ('a\tb\n5" x\t1\n"w"\t2\n', ['5" x', '"w"']),
        # Quotations.
        ('a\tb\n"x"\t1\nw\t2\n', ['"x"', "w"]),
        ('a\tb\n"x\u2028y"\t1\nw\t2\n', ['"x\u2028y"', "w"]),
    ],
)
def test_the_content_of_a_tsv_decides_whether_it_has_quotes(
    tmp_path: Path, content: str, expected: list[str]
) -> None:
    path = tmp_path / "t.tsv"
    path.write_bytes(content.encode())
    assert [values["a"] for _, values in rows(path)] == expected


@pytest.mark.parametrize(
    ("content", "line"),
    [
        # pandas writes the first one, and GLUE's tables have rows such as the others.
        ('a\tb\nw\t1\n"x:\tspam\ny"\t2\n', 3),
        ('a\tb\n"He left,\t1\nshe said."\t2\nw\t1\n', 2),
        ('a\tb\nw\t1\n"x\t1\r\ny\t2\r\nz"\t2\r\n', 3),
        ('a\nw\n"x\ny"\n', 3),
    ],
)
def test_a_tsv_with_two_readings_is_refused(tmp_path: Path, content: str, line: int) -> None:
    path = tmp_path / "t.tsv"
    path.write_bytes(content.encode())
    with refuses("table.quotes", place=f"{path}: line {line}"):
        rows(path)
    # One quote that is only possible in one of the readings decides.
    rest = "\tw" * content.partition("\n")[0].count("\t")
    path.write_bytes(f'{content}"u ""v"""{rest}\n'.encode())
    quoted = len(rows(path))
    path.write_bytes(f'{content}u "v" w{rest}\n'.encode())
    assert len(rows(path)) > quoted


def test_json_and_parquet_keep_types(tmp_path: Path) -> None:
    made = [{"a": "x", "b": 1.5, "c": ["l", "m"]}, {"a": "y", "b": None, "c": []}]
    lines = tmp_path / "t.jsonl"
    lines.write_text("".join(f"{json.dumps(row)}\n" for row in made))
    assert rows(lines) == [(1, made[0]), (2, made[1])]
    pq.write_table(pa.Table.from_pylist(made), tmp_path / "t.parquet")
    assert rows(tmp_path / "t.parquet") == [(1, made[0]), (2, made[1])]
    first = next(read_table(tmp_path / "t.parquet"))
    assert first.place == f"{tmp_path}/t.parquet: row 1"


def test_a_field_beyond_the_csv_modules_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a\n" + "x" * 200_000 + "\n")
    assert len(rows(path)[0][1]["a"]) == 200_000


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
@pytest.mark.parametrize(
    "content",
    [
        "a\n\nx\n\n\ny\n\n",
        "a\r\n\r\nx\r\n\r\n",
        "a,b\n\nx,1\n\ny,2\n\n",
        # These lines are not blank: a space, a quoted empty field, several empty fields.
        "a\n \nx\n",
        "a,b\n,\nx,1\n",
        'a,b\n"x\n\ny",1\n',
        'a\nx\n""\n\ny\n',
    ],
)
def test_blank_lines_are_skipped_like_the_csv_modules(
    tmp_path: Path, suffix: str, content: str
) -> None:
    path, tsv = tmp_path / f"t{suffix}", suffix == ".tsv"
    if tsv and '"' in content:
        return  # TSV has no quotes
    path.write_bytes(content.replace(",", "\t" if tsv else ",").encode())
    with path.open(newline="") as file:
        expected = list(csv.DictReader(file, delimiter="\t" if tsv else ","))
    assert [values for _, values in rows(path)] == expected


@pytest.mark.parametrize(
    ("name", "content", "line", "key", "values"),
    [
        ("t.csv", b"a,b\n1,2\n3\n", 3, "table.fields", {"found": 1, "allowed": 2}),
        ("t.tsv", b"a\tb\n1\t2\t3\n", 2, "table.fields", {"found": 3, "allowed": 2}),
        ("t.tsv", b"a\ta\n", 1, "table.column_twice", {"name": "a"}),
        ("t.csv", b"1,1\nx,2\n", 1, "table.column_twice", {"name": "1", "hint": NO_HEADER}),
        ("t.csv", b"", 0, "table.no_header", {}),
        ("t.tsv", b"", 0, "table.no_header", {}),
        ("t.csv", b'a\n"x" y\n', 2, "table.not_csv", {}),
        ("t.xlsx", b"", 0, "table.suffix", {"found": ".xlsx", "allowed": SUFFIXES}),
        ("t.jsonl", b'{"a": 1}\n{"a"\n', 2, "json.invalid", {}),
        ("t.jsonl", b'"a"\n', 1, "json.kind", {"found": "a string"}),
        ("t.parquet", b"PAR1", 0, "parquet.unreadable", {}),
    ],
)
def test_files_that_are_not_tables_are_named(
    tmp_path: Path, name: str, content: bytes, line: int, key: str, values: dict[str, Any]
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with refuses(key, place=f"{path}: line {line}" if line else path, **values):
        rows(path)


@pytest.mark.parametrize(
    ("content", "opens", "last"),
    [
        ('a,b\nx,1\n"y,2\nz,3\n', 3, 4),
        ('a,b\nx,1\n"y,2\nz,3\n"w",4\n', 3, 5),  # the quote of another row closes the field
        ('a,b\n"x\nx",1\n"y ""z"", 5"" wide,2\nz,3\n', 4, 5),
        ('a,b\n"x\nx","y\nz,3\n', 2, 4),  # the row begins before the open quote
        ('a,b\n5" disk,"y\nz,3\n', 2, 3),
        ('a,"b\nx,1\n', 1, 2),
    ],
)
def test_an_open_quote_names_its_line(tmp_path: Path, content: str, opens: int, last: int) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content)
    with refuses("table.open_quote", place=f"{path}: line {opens}", end=last):
        rows(path)


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.jsonl"])
def test_the_line_of_an_invalid_utf8_byte_is_found(tmp_path: Path, name: str) -> None:
    line = b'{"a": "x"}\n' if name.endswith("l") else b"x\n"
    content = line * 3000 + b"caf\xe9\n" + line * 10
    (tmp_path / name).write_bytes(content)
    with refuses("file.not_utf8", place=f"{tmp_path / name}: line 3001", found=0xE9):
        rows(tmp_path / name)


def test_malformed_rows_are_skipped_and_counted(tmp_path: Path) -> None:
    path, errors = tmp_path / "t.csv", RowErrors("skip")
    path.write_text('a,b\nx,1\ny\n"open,2\nz,3\n"p" q,4\nw,5\n"v,6\nu,7\n')
    found = [(row.line, row.values["a"]) for row in read_table(path, errors=errors)]
    assert found == [(2, "x"), (5, "z"), (7, "w"), (9, "u")]
    assert errors.count == 4
    (note,) = errors.note(path, kept=4)
    assert note.startswith(f"{path}: skipped 4 of 8 rows: line 3: ")
    assert "; line 4: " in note
    assert "; line 6: " in note
    assert note.endswith("; …")
    lines, errors = tmp_path / "t.jsonl", RowErrors("skip")
    lines.write_text('{"a": 1}\n{"a"\n[]\n{"a": 2}\n')
    assert [row.values["a"] for row in read_table(lines, errors=errors)] == [1, 2]
    assert errors.count == 2
    # A malformed header is not counted as a row.
    path.write_text('"a" b,c\nx,1\n')
    with refuses("table.not_csv", place=f"{path}: line 1"):
        list(read_table(path, errors=errors))


FIELD = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(FIELD, FIELD), max_size=5))
def test_files_of_the_csv_module_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, table: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("a", "b"), *table])
    assert [tuple(values.values()) for _, values in rows(path)] == table
    with path.with_suffix(".tsv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter="\t").writerows([("a", "b"), *table])
    try:
        assert [tuple(values.values()) for _, values in rows(path.with_suffix(".tsv"))] == table
    except UserError as error:
        # Without quotes, the lines of a field with tabs and line ends may have as many fields.
        either = any("\t" in field and "\n" in field for row in table for field in row)
        if error.key != "table.quotes" or not either:
            raise

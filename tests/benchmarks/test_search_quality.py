"""The study of search: its pairs, and the table of its page."""

from pathlib import Path

from benchmarks.marked_table import inserted
from benchmarks.search_quality import MARK, read_pairs, read_records, table

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_measurements() -> None:
    records = read_records(ROOT / "benchmarks" / "search_quality.jsonl")
    assert inserted(ROOT / "docs" / "results" / "search.md", MARK) == list(table(records))


def test_pairs_are_the_first_sentence_and_the_rest(tmp_path: Path) -> None:
    rest = " ".join(f"word{number}" for number in range(20))
    texts = [f"This is a first sentence{at}. {rest} {at}" for at in range(3)]
    document = "\n\n".join(["Title", *texts, "Short. It ends."])
    (tmp_path / "wiki").write_text(f'<doc id="1">\n{document}\n</doc>\n')
    found = read_pairs([tmp_path / "wiki"], limit=2)
    assert len(found) == 2
    assert all(f"{pair.query}. {pair.passage}" in texts for pair in found)

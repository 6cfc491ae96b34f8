from pathlib import Path

import pytest

from bert_jax.errors import UserError
from bert_jax.pipelines.examples import make_examples
from tests.corpus import section, write_corpus, write_tokenizer


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A directory with 40 documents in one file and a tokenizer."""
    write_corpus(tmp_path / "text.txt", documents=range(40))
    write_tokenizer(tmp_path / "tokenizer")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "on_error"),
    [
        (b"", "fail"),
        (b"a single document .\nof two sentences .\n", "fail"),
        (b"A sentence.\n\xff\n", "fail"),
        (b"A sentence.\n\xff\n", "skip"),
    ],
)
def test_a_run_that_made_nothing_of_use_stands_in_nobodys_way(
    corpus: Path, text: bytes, on_error: str
) -> None:
    good = (corpus / "text.txt").read_bytes()
    (corpus / "text.txt").write_bytes(text)
    before = sorted(corpus.iterdir())
    evaluation = {"files": (str(corpus / "tokenizer.txt"),), "ngram": 3}  # indexed before the text
    asked = section(corpus, on_error=on_error, cleaning={"contamination": evaluation})
    with pytest.raises(UserError):
        make_examples(asked)
    assert sorted(corpus.iterdir()) == before
    (corpus / "text.txt").write_bytes(good)
    make_examples(asked)


def test_what_differs_from_a_finished_dataset_is_named(corpus: Path) -> None:
    made = section(corpus, cleaning={"contamination": {"files": (str(corpus / "tokenizer.txt"),)}})
    make_examples(made)
    for number in range(5):
        write_corpus(corpus / f"text{number}.txt", documents=range(50, 60))
    write_tokenizer(corpus / "other", documents=100)
    write_corpus(corpus / "elsewhere.txt", documents=range(40))
    for changes, said in [
        ({}, r"examples\.input: text0\.txt is new, text1\.txt is new, .*, and 2 more"),
        ({"input": (f"{corpus}/text0.txt",)}, r"examples\.input: text\.txt is gone, text0"),
    ]:
        with pytest.raises(UserError, match=f"made with other settings: {said}"):
            make_examples(made.model_copy(update=changes))
    only = made.model_copy(update={"input": (f"{corpus}/text.txt",)})
    for changes, said in [
        ({"tokenizer": f"{corpus}/other"}, r"examples\.tokenizer was another one \(\w{12}…, now"),
        ({"max_seq_length": 32}, r"examples\.max_seq_length was 48, now 32;"),
        ({"layout": "prose"}, r'examples\.layout was "sentences", now "prose";'),
        (
            {"cleaning": made.cleaning.model_copy(update={"unicode": "nfc"})},
            r'examples\.cleaning\.unicode was "?\w+"?, now "nfc";',
        ),
    ]:
        with pytest.raises(UserError, match=f"made with other settings: {said}"):
            make_examples(only.model_copy(update=changes))
    with (corpus / "tokenizer.txt").open("a") as file:
        file.write("one more line\n")
    with pytest.raises(UserError, match=r"contamination\.files had other contents"):
        make_examples(only)

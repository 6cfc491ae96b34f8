"""The documentation builds without a warning, and its commands work."""

import itertools
import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from sentence_transformers import SentenceTransformer
from transformers import BertForPreTraining, BertModel

import bert_jax
from bert_jax.cli.commands import cli
from bert_jax.config import read_packaged
from bert_jax.encoders.registry import SECTIONS, encoder_module
from bert_jax.files.yaml_file import parse_yaml
from bert_jax.objectives.registry import OBJECTIVES
from bert_jax.pipelines.python_docs import write_python_docs
from bert_jax.text.vocabulary import SPECIAL_PIECES
from bert_jax.train.metrics_writer import VALIDATION, read_metrics
from tests.browser import render
from tests.corpus import write_corpus
from tests.interop.hf_checkpoints import hf_config, hf_model, save
from tests.project import ROOT

pytestmark = pytest.mark.slow

# Matches a code block: language, file name and content.
_FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a warning."""
    directory = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(directory)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert built.returncode == 0, built.stderr
    return directory


def test_the_reference_describes_each_name_once(site: Path) -> None:
    reference = site / "reference"
    pages = [page.read_text(encoding="utf-8") for page in (reference / "settings").glob("*.html")]
    keys = [key for page in pages for key in re.findall(r"<td><code>([a-z_.]+)</code></td>", page)]
    assert keys.count("train.phases.batch_size") == 1
    assert "train.phases.objective.kind" not in keys  # described on the page of `objective`
    anchors = [found for page in pages for found in re.findall(r'<h2 id="([^"]+)"', page)]
    assert sorted(anchors) == sorted(set(anchors))
    headings = re.findall(
        r'<h2 id="[^"]*"[^>]*>\s*(?:<code>)?([\w.]+)',
        (reference / "python.html").read_text(encoding="utf-8"),
    )
    assert {f"bert_jax.{name}" for name in ("pretrain", "demo", "load")} <= set(headings)


def test_the_search_lists_guides_first(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    boosts = {entry["location"]: entry["boost"] for entry in index["docs"]}
    assert boosts["planning.html"] > boosts["reference/python.html"]


@pytest.mark.browser
def test_the_search_works_from_a_file(site: Path, tmp_path: Path) -> None:
    found = render(f"file://{site}/index.html?q=packing", profile=tmp_path)
    first = re.search(r'class="md-search-result__item"><a href="([^"]*)"', found)
    assert first is not None
    assert first[1].startswith(f"file://{site}/packing.html")


def test_every_step_of_the_tutorial_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _follow("tutorial.md") == [
        *("python", "vocab", "examples", "doctor", "pretrain", "evaluate", "fill-mask", "finetune"),
        *("predict", "python", "export"),
    ]
    assert Path("data/mine.report.html").is_file()
    assert Path("runs/reviews/report.html").is_file()
    found = json.loads(Path("runs/reviews/evaluation.json").read_text())
    assert found["failure"] is None
    assert found["scores"]["accuracy"] >= found["constant_score"] + 0.3
    assert Path("exported/model.safetensors").is_file()


@pytest.mark.chaos
def test_every_step_of_the_page_on_modernbert_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for _, name, content in _FENCE.findall(_page("tutorial.md")):
        if name == "data.py":
            exec(compile(_shortened(content), name, "exec"), {})
    assert _follow("howto/modernbert.md") == [
        *("vocab", "examples", "examples", "pretrain", "evaluate", "fill-mask", "finetune"),
        *("export", "export", "python"),
    ]
    *_, word, stars = capsys.readouterr().out.splitlines()
    assert stars in ("1", "5")
    (text,) = re.findall(r'fill-mask runs/modern "(.*)"', _page("howto/modernbert.md"))
    (answers,) = bert_jax.load("runs/modern").fill_mask(text).masks
    assert answers[0].piece == word  # transformers' answer
    assert all(re.fullmatch(" [a-z]+", answer.piece) for answer in answers)
    for name in ("modern", "reviews"):
        config = json.loads(Path(f"exported/{name}/config.json").read_text())
        assert config["global_rope_theta"] == 40_000


def test_every_step_from_a_checkpoint_to_its_export_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_python_docs(tmp_path / "text" / "domain", max_bytes=250_000)
    (tmp_path / "text" / "general").mkdir()
    write_corpus(tmp_path / "text" / "general" / "a.txt", documents=range(99))
    rows = (f"{number} mills,a\n{number} dogs,b\n" for number in range(40))
    Path("rows.csv").write_text("text,label\n" + "".join(rows))
    # Every word has the pieces of its characters.
    characters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    vocabulary = [*SPECIAL_PIECES, *characters, *(f"##{each}" for each in characters)]
    config = hf_config(vocab_size=len(vocabulary), num_hidden_layers=1, max_position_embeddings=128)
    save(hf_model(BertForPreTraining, config), Path("start"))
    Path("start/vocab.txt").write_text("\n".join(vocabulary))
    assert _follow("howto/adapt.md") == [
        *("import", "vocab", "examples", "examples", "doctor", "pretrain", "average", "evaluate"),
        *("evaluate", "fill-mask", "export", "python", "finetune", "finetune"),
    ]
    first, *_, last = read_metrics(Path("runs/adapted"), kind=VALIDATION)
    assert {"domain.mlm_loss", "general.mlm_loss"} <= first.keys() & last.keys()
    pieces, word = capsys.readouterr().out.splitlines()[-1].split(maxsplit=1)
    assert len(vocabulary) < int(pieces) <= len(vocabulary) + 1000
    assert word
    # `bert-jax new adapt` writes the same settings.
    page, _ = (text for _, name, text in _FENCE.findall(_page("howto/adapt.md")) if name)
    assert parse_yaml(page, "page") == parse_yaml(read_packaged("new/adapt"), "new")


def test_every_step_from_documentation_to_a_search_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("documentation").mkdir()
    for name in ("data.md", "finetune.md", "planning.md", "submit.md", "tokenizers.md"):
        Path("documentation", name).write_text(_page(name), encoding="utf-8")
    words = sorted({*re.findall(r"[a-z]+", " ".join(map(_page, ("data.md", "submit.md"))).lower())})
    vocabulary = [*SPECIAL_PIECES, *words]
    config = hf_config(vocab_size=len(vocabulary), num_hidden_layers=1, max_position_embeddings=64)
    save(hf_model(BertModel, config), Path("start"))
    Path("start/vocab.txt").write_text("\n".join(vocabulary))
    SentenceTransformer("start").save("start")  # with mean pooling
    assert _follow("howto/search.md") == [
        *("python", "finetune", "evaluate", "mine", "finetune", "python", "features", "export"),
        "export",
    ]
    before, retriever, reranked = (
        float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()[-3:]
    )
    assert retriever > before
    # A reranker of one layer that has seen few lists has learned nothing yet: another order is all.
    assert reranked not in (0, retriever)
    corpus = Path("data/search/corpus.jsonl").read_text(encoding="utf-8")
    assert len(np.load("index.npz")["vectors"]) == corpus.count("\n")


def test_every_step_from_a_classifier_to_a_filtered_dataset_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = sorted(set(re.findall(r"[a-z]+", _page("howto/label-a-crawl.md").lower())))
    vocabulary = [*SPECIAL_PIECES, *words, ".", "!"]
    config = hf_config(vocab_size=len(vocabulary), num_hidden_layers=1, max_position_embeddings=128)
    save(hf_model(BertModel, config), Path("start"))
    Path("start/vocab.txt").write_text("\n".join(vocabulary))
    assert _follow("howto/label-a-crawl.md") == [
        *("python", "finetune", "score", "examples", "score", "score", "score", "export", "python"),
    ]
    total = json.loads(Path("data/scored/_manifest.json").read_text())["total"]
    assert total["read"] == 600
    assert total["written"] > 100
    assert total["dropped"] > 100
    tables = {path.stem: pq.read_table(path) for path in Path("data/scored").glob("*.parquet")}
    kept = [text for table in tables.values() for text in table.column("text").to_pylist()]
    assert all(text.startswith("The ") for text in kept)
    # The dataset has the documents and sentences that were kept, and no others.
    read = bert_jax.open_dataset("data/filtered", "train").provenance.corpus
    assert read.documents == len(kept) == total["written"]
    assert read.sentences == sum(text.count(".") for text in kept)
    assert json.loads(Path("data/beam/_manifest.json").read_text())["total"] == total
    # The exported model, in bfloat16 and in PyTorch, keeps as many.
    printed = capsys.readouterr().out.splitlines()[-1]
    assert printed == f"{tables['3'].num_rows} of 200 documents"


def test_every_step_of_the_page_on_search_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    example = "Search your support tickets"
    words = sorted(set(re.findall(r"\w+", _section("embeddings.md", example).lower())))
    vocabulary = [*SPECIAL_PIECES, *words, ",", "."]
    config = hf_config(vocab_size=len(vocabulary), num_hidden_layers=1, max_position_embeddings=64)
    model = hf_model(BertModel, config)
    # As in a pretrained model, vectors depend more on words than on positions.
    model.embeddings.position_embeddings.weight.data *= 0.1
    save(model, Path("start"))
    Path("start/vocab.txt").write_text("\n".join(vocabulary))
    assert _follow("embeddings.md", example) == ["python", "python"]
    found = capsys.readouterr().out.splitlines()[-3:]
    assert all("cannot log in" in line for line in found), found
    assert Path("index.npy").is_file()
    assert Path("exported/tickets/modules.json").is_file()


def test_the_recipe_for_a_linear_classifier_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = {"good": "fine clever warm", "bad": "dull slow cold"}
    vocabulary = [*SPECIAL_PIECES, *" ".join(words.values()).split()]
    config = hf_config(vocab_size=len(vocabulary), num_hidden_layers=1, max_position_embeddings=16)
    save(hf_model(BertModel, config), Path("runs/minilm"))
    Path("runs/minilm/vocab.txt").write_text("\n".join(vocabulary))
    rows = [
        f"{' '.join(text)},{label}"
        for label, of_label in words.items()
        for text in itertools.product(of_label.split(), repeat=3)
    ]
    Path("reviews.csv").write_text("\n".join(["text,label", *rows]))
    ((_, _, recipe),) = _FENCE.findall(_section("embeddings.md", "Do the vectors know the labels?"))
    exec(compile(recipe, "embeddings.md", "exec"), {})
    accuracy, f1, frequent = capsys.readouterr().out.splitlines()[-3:]
    assert frequent.endswith(" 50.0%")
    for line in (accuracy, f1):
        score = re.search(r": ([\d.]+)% ± ", line)
        assert score is not None
        assert float(score[1]) > 90


def _page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def _section(page: str, heading: str) -> str:
    """Returns a section of a page, to the next heading of its level."""
    return _page(page).split(f"\n## {heading}\n")[1].partition("\n## ")[0]


def _follow(page: str, heading: str | None = None) -> list[str]:
    """Writes the files of a page or a section and runs its commands; returns the verbs."""
    done: list[str] = []
    text = _page(page) if heading is None else _section(page, heading)
    for language, name, content in _FENCE.findall(text):
        content = _shortened(content)
        if name:
            Path(name).write_text(content, encoding="utf-8")
        elif language == "python":
            exec(compile(content, page, "exec"), {})
            done.append("python")
        else:
            done += map(_run, content.splitlines())
    return done


def _shortened(content: str) -> str:
    for long, short in FEWER:
        content = content.replace(long, short)
    return content


# Overrides that save time: less text, fewer steps, and a model that compiles in half the time.
FEWER = (
    ('write_python_docs("text")', 'write_python_docs("text", max_bytes=250_000)'),
    ("steps: 1200", "steps: 8"),
    ("steps: 1000\n      seq_length: 64\n", "steps: 600\n      seq_length: 64\n"),
    ("{every: 500}", "{every: 200}"),
    ("steps: 1000\n", "steps: 8\n"),
    ("steps: 500\n", "steps: 8\n"),
    ("steps: 100\n", "steps: 4\n"),
    ("every: 500", "every: 4"),
    ("num_hidden_layers: 4", "num_hidden_layers: 2"),
    ("every: 300", "every: 4"),
    ("learning_rate: 3e-5", "learning_rate: 3e-3"),
    ("warmup_steps: 100", "warmup_steps: 4"),
    ("num_hidden_layers: 2", "num_hidden_layers: 1"),
    ("sentence-transformers/all-MiniLM-L6-v2", "start"),
    ("cross-encoder/ms-marco-MiniLM-L6-v2", "start"),
    ("google-bert/bert-base-uncased", "start"),
    ("max_length: 256", "max_length: 64"),
    ("{learning_rate: 2e-5}", "{learning_rate: 2e-3}"),
    ('"max_length": 64}', '"max_length": 64, "optimizer": {"learning_rate": 2e-3}}'),
)


def _run(line: str) -> str:
    """Runs a shell line, and returns its verb."""
    program, *words = [
        word.strip('"') for word in re.findall(r'"[^"]*"|\S+', line.partition(" # ")[0])
    ]
    if program == "python":
        exec(compile(Path(words[0]).read_text(encoding="utf-8"), words[0], "exec"), {})
        return program
    assert program == "bert-jax", line
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, (line, result.output, result.stderr)
    return words[0]


def test_every_package_name_on_a_page_exists() -> None:
    found = {
        name: page.name
        for page in PAGES
        for name in re.findall(r"\bbert_jax(?:\.[A-Za-z_]\w*)+", page.read_text(encoding="utf-8"))
    }
    assert len(found) > 10
    missing = {name: page for name, page in found.items() if not _is_there(name)}
    assert missing == {}


def test_every_source_file_on_a_page_exists() -> None:
    folders = "bert_jax|pipelines|benchmarks|tests|configs|tpu_setup|docs|constraints"
    missing = {
        path: page.name
        for page in PAGES
        # Capitals are placeholders: `bert_jax/encoders/KIND/`.
        for path in re.findall(
            rf"`((?:{folders})/[a-z0-9_./-]+)`", page.read_text(encoding="utf-8")
        )
        if not (ROOT / path).exists()
    }
    assert missing == {}


def test_the_tour_names_what_is_there() -> None:
    stops = re.findall(r"^\d+\. `(.*)\.py`, `(.*)`\.", _page("tour.md"), re.MULTILINE)
    assert len(stops) == 10
    assert [stop for stop in stops if not _is_there(".".join(stop).replace("/", "."))] == []


def test_the_tables_of_encoders_are_those_of_the_registries() -> None:
    objectives, exports = _tables(_page("support.md"), first="`model.kind`")
    assert objectives.keys() == SECTIONS.keys()
    for row in objectives.values():
        assert [re.findall(r"\w+", name)[0] for name in row] == list(OBJECTIVES)
        assert all(row.values())
    causal = {
        kind: any(
            each.causal for each in encoder_module(kind, "hugging_face").FORMAT.classes.values()
        )
        for kind in SECTIONS
    }
    column = "Hugging Face, in and out"
    assert {kind: "`causal` too" in row[column] for kind, row in exports.items()} == causal


def _tables(page: str, *, first: str) -> list[dict[str, dict[str, str]]]:
    """Returns the tables of a page whose first column has this name: cells by row and column."""
    tables = []
    for lines in re.findall(rf"^\| {re.escape(first)} (?:.*\n(?=\|))*.*\n", page, re.MULTILINE):
        (_, *columns), _, *rows = (
            [cell.strip() for cell in line[1:-1].split("|")] for line in lines.splitlines()
        )
        tables.append({row[0].strip("`"): dict(zip(columns, row[1:], strict=True)) for row in rows})
    return tables


def _is_there(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True

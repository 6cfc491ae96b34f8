"""`bert-jax score`: results equal the predictions of single texts, on every engine."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import bert_jax
from tests.corpus.files import (
    CLASSES,
    REGRESSION,
    SEVERAL,
    TAGS,
    TOKENS,
    VECTORS,
    config,
    results,
    rows_of,
    texts,
    write_corpus,
    write_parquet,
)
from tests.interop.hub_server import go_online, serve
from tests.project import bert_jax as run_command
from tests.project import environment, ok, refused, said, says
from tests.storage.cloud import Cloud, _calm, _server, cloud  # noqa: F401

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def original(corpus: Path) -> dict[str, str]:
    """Returns the texts of a corpus by id."""
    return {f"p{at}-{row}": text for at in range(6) for row, text in enumerate(texts(60, seed=at))}


@pytest.mark.parametrize("heads", [CLASSES, SEVERAL, REGRESSION, TAGS, VECTORS, TOKENS])
def test_results_equal_those_of_one_text_at_a_time(
    corpus: Path, tmp_path: Path, heads: Any
) -> None:
    path = config(tmp_path, corpus, heads=heads, columns="page", workers=1)
    ok("score", path)
    rows, expected = rows_of(tmp_path / "out"), original(corpus)
    assert rows.keys() == expected.keys()
    assert all(row["page"] == int(name.partition("-")[2]) for name, row in rows.items())
    model, names = bert_jax.load(tmp_path / "model" / "run"), list(expected)
    if heads is VECTORS:
        found = np.array([rows[name]["vector"] for name in names])
        np.testing.assert_allclose(found, model.encode(list(expected.values())), atol=1e-5)
        return
    if heads is TOKENS:
        wanted = model.encode(list(expected.values()))
        assert any(len(each) < 8 for each in wanted)
        for name, each in zip(names, wanted, strict=True):
            np.testing.assert_allclose(rows[name]["vectors"], each, atol=1e-5)
        return
    for name, record in zip(names, model.predict(list(expected.values())), strict=True):
        row, predicted = rows[name], record["prediction"]
        if heads is TAGS:
            assert (row["tokens"], row["tags"]) == (record["tokens"], predicted)
        elif heads is REGRESSION:
            assert row["score"] == pytest.approx(predicted, abs=1e-5)
        else:
            assert row["label"] == predicted
            assert row["probabilities"] == pytest.approx(record["probabilities"], abs=1e-5)


def test_equal_bytes_on_every_engine(corpus: Path, tmp_path: Path) -> None:
    """One, two and four workers, devices of the main process, two hosts, and Beam."""
    config(tmp_path, corpus)
    records = bert_jax.load(tmp_path / "model" / "run").predict(texts(60, seed=0))
    median = float(np.median([record["probabilities"]["good"] for record in records]))
    keep = f'probabilities["good"] > {median}'
    path = config(tmp_path, corpus, keep=keep, part_bytes=4096)
    ways: dict[str, list[list[str]]] = {
        "one": [["score.workers=1"]],
        "two": [["score.workers=2"]],
        "four": [["score.workers=4"]],
        "devices": [["mesh.simulated_devices=1", "score.workers=2"]],
        "beam": [["score.engine=beam", "score.workers=2"]],
        "hosts": [
            [
                "score.workers=1",
                "mesh.distributed.enabled=true",
                "mesh.distributed.process_count=2",
                f"mesh.distributed.process_index={host}",
            ]
            for host in (0, 1)
        ],
    }
    found = {}
    for way, hosts in ways.items():
        output = tmp_path / way
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "bert_jax.cli", "score", path, f"score.output={output}", *a],
                env=environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            for a in hosts
        ]
        for process in started:
            text, _ = process.communicate(timeout=600)
            assert process.returncode == 0, (way, text.decode())
        found[way] = results(output)
    manifest = json.loads(found["one"]["_manifest.json"])
    total = manifest["total"]
    assert total["read"] == 360
    assert total["written"] + total["dropped"] == 360
    assert 0 < total["written"] < 360
    assert len(manifest["parts"]) > 6  # large files were cut
    for way, files in found.items():
        assert files == found["one"], way


def test_a_killed_job_is_finished_by_the_same_command(corpus: Path, tmp_path: Path) -> None:
    path = config(tmp_path, corpus, workers=2)
    assert run_command("score", path).returncode == 0
    whole = results(tmp_path / "out")
    command = [sys.executable, "-m", "bert_jax.cli", "score", str(path), "score.output=out2"]
    rng = np.random.default_rng(0)
    for _ in range(3):
        process = subprocess.Popen(
            command,
            env=environment(),
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        done = tmp_path / "out2" / "_parts"
        before = len([*done.rglob("p*.json")]) if done.exists() else 0
        end = time.monotonic() + 120
        while time.monotonic() < end and process.poll() is None:
            if done.exists() and len([*done.rglob("p*.json")]) > before:
                break
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 0.3))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    last = subprocess.run(
        command, env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert last.returncode == 0, last.stderr
    assert results(tmp_path / "out2") == whole


def test_damaged_files_and_rows(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    whole = write_parquet(corpus / "p0.parquet", 30, seed=0)
    damaged = corpus / "p1.parquet"
    damaged.write_bytes(whole.read_bytes()[:-100])
    lines = [
        json.dumps({"text": "good1 word2"}),
        "{no json",
        json.dumps({"text": None}),
        json.dumps({"body": "good2"}),
        b"\xff".decode("latin-1"),
        json.dumps({"text": "bad1"}),
    ]
    (corpus / "p2.jsonl").write_bytes("\n".join(lines).encode("latin-1"))
    path = config(tmp_path, corpus, workers=1)
    line = refused("score", path)
    says(line, key="parquet.unreadable", place=damaged)
    assert not (tmp_path / "out" / "p1.parquet").exists()
    assert not (tmp_path / "out" / "_manifest.json").exists()
    damaged.unlink()
    line = refused("score", path)
    says(line, key="score.row", line=2, setting="score.on_error=skip")
    damaged.write_bytes(whole.read_bytes()[:-100])
    output = tmp_path / "skipped"
    shown = ok("score", path, "score.on_error=skip", f"score.output={output}")
    assert "4 skipped" in shown
    assert str(damaged) in shown
    manifest = json.loads((output / "_manifest.json").read_text())
    assert manifest["total"] == {
        **manifest["total"],
        "read": 32,
        "written": 32,
        "skipped": 4,
    }
    by_output = {part["output"]: part for part in manifest["parts"]}
    assert str(damaged) in by_output["p1.parquet"]["damage"]
    offsets = [0, sum(len(each) + 1 for each in lines[:5])]
    rows = pq.read_table(output / "p2.parquet").to_pylist()
    assert [row["id"] for row in rows] == [f"p2.jsonl:{offset}" for offset in offsets]
    assert len(pq.read_table(output)) == 32  # readers of a directory see parts alone


def test_mistakes_are_one_line(corpus: Path, tmp_path: Path) -> None:
    path = config(tmp_path, corpus)
    for setting, key, place in (
        ("score.text=body", "score.no_column", "score.text"),
        ("score.columns=[url]", "score.no_column", "score.columns"),
        ("score.keep=score >= 3", "score.keep_column", "score.keep"),
        ("score.keep=label", "score.keep", "score.keep"),
        ("score.max_length=100", "score.max_length", "score.max_length"),
        ("score.prompt=query", "setting.ignored", "score.prompt"),
        (f"score.input={tmp_path}/none/*.parquet", "input.no_match", "score.input"),
        ("mesh.tensor=2", "mesh.whole_model", "mesh.tensor"),
    ):
        line = refused("score", path, setting)
        assert line.key == key, line
        assert line.place.startswith(place), line
    # A mistake leaves no settings that would refuse the corrected command.
    copied = ('score.columns="*"', f"score.output={tmp_path / 'copied'}", "score.keep=label ==")
    assert refused("score", path, *copied).key == "score.keep"
    assert not (tmp_path / "copied").exists()
    ok("score", path, "score.workers=1")
    line = refused("score", path, "score.max_length=32")
    says(line, key="score.other_settings", place=tmp_path / "out", setting="score.max_length")


def test_a_full_disk_leaves_no_part_of_a_file(corpus: Path, tmp_path: Path) -> None:
    path = config(tmp_path, corpus, heads=VECTORS, workers=1)

    command = [sys.executable, "-m", "bert_jax.cli", "score", str(path)]
    command.append("mesh.compilation_cache=null")
    result = subprocess.run(
        ["bash", "-c", 'ulimit -f 8; exec "$@"', "bash", *command],  # files of 8 KiB
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    line = said(result)
    says(line, key="disk.full")
    left = {p.suffix for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert left <= {"", ".json", ".lock"}, left  # the settings have no suffix
    assert run_command("score", path).returncode == 0
    assert len(rows_of(tmp_path / "out")) == 360


def test_a_bucket_that_is_away(corpus: Path, tmp_path: Path, cloud: Cloud) -> None:  # noqa: F811
    bucket = cloud.make_bucket()
    for file in corpus.rglob("*.*"):
        (bucket / "crawl" / file.relative_to(corpus)).write_bytes(file.read_bytes())
    path = config(tmp_path, corpus, workers=1)
    assert run_command("score", path).returncode == 0
    here = results(tmp_path / "out")
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "bert_jax.cli",
            "score",
            str(path),
            f"score.input={bucket}/crawl/*/*",
            f"score.output={bucket}/out",
        ],
        env=environment() | cloud.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    end = time.monotonic() + 200
    while not (bucket / "out" / "_parts" / "_job").exists():
        assert time.monotonic() < end
        time.sleep(0.1)
    cloud.proxy.down = True
    time.sleep(15)
    cloud.proxy.down = False
    text, _ = process.communicate(timeout=400)
    assert process.returncode == 0, text.decode()
    for name, content in here.items():
        if name != "_manifest.json":  # has the paths of the inputs
            assert (bucket / "out" / name).read_bytes() == content, name


def test_features_and_predict_read_folders(corpus: Path, tmp_path: Path) -> None:
    config(tmp_path, corpus, heads=VECTORS)
    run, out = tmp_path / "model" / "run", tmp_path / "vectors"
    ok("features", run, f"{corpus}/*/*.parquet", out, "--column", "text", "--copy", "page")
    found = rows_of(out)
    assert len(found) == 120
    assert {*found["p0-0"]} == {"id", "page", "vector"}
    line = refused("features", run, corpus / "a" / "p0.parquet", tmp_path / "o.npz", "--copy", "x")
    says(line, key="score.option", place="--copy")


def test_a_dataset_of_examples_is_scored_by_its_tokens(tmp_path: Path) -> None:
    from bert_jax.data.dataset.reader import open_dataset
    from bert_jax.pipelines.examples import ExamplesSection, make_examples

    # Words of the vocabulary: their pieces are equal after decoding.
    lines = [
        text.replace("unknown", "good1").replace("Élan,", "bad2") for text in texts(120, seed=3)
    ]
    (tmp_path / "text.txt").write_text(
        "\n\n".join("\n".join([a, b]) for a, b in zip(lines[::2], lines[1::2], strict=True))
    )
    path = config(tmp_path, tmp_path / "dataset", heads=VECTORS, workers=1)
    tokenizer = tmp_path / "model" / "run" / "tokenizer"
    section = ExamplesSection(
        input=(str(tmp_path / "text.txt"),),
        tokenizer=str(tokenizer),
        output=str(tmp_path / "dataset"),
        max_seq_length=64,
        workers=1,
        num_shards=2,
        validation_fraction=0.0,
    )
    make_examples(section)
    ok("score", path)
    found = rows_of(tmp_path / "out")
    model, dataset = (
        bert_jax.load(tmp_path / "model" / "run"),
        open_dataset(tmp_path / "dataset", "train"),
    )
    assert len(found) == len(dataset) > 5
    for at in range(len(dataset)):
        ids, first = dataset[at].input_ids.tolist(), dataset[at].first_length
        pair = tuple(map(model.tokenizer.decode, (ids[1 : first - 1], ids[first:-1])))
        expected = model.encode([pair if dataset[at].has_pair else pair[0]])[0]
        np.testing.assert_allclose(found[f"train:{at}"]["vector"], expected, atol=1e-5)


def test_a_dataset_of_a_hub(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = config(tmp_path, corpus, workers=1)
    ok("score", path)
    with serve({"datasets/someone/crawl": corpus}) as hub:
        go_online(hub, monkeypatch, tmp_path / "cache", "hf_token")
        output = f"score.output={tmp_path / 'hub'}"
        ok("score", path, "score.input=hf://datasets/someone/crawl", output)
        line = refused("score", path, "score.input=hf://datasets/someone/crawls", output)
        says(line, key="hub.not_found", place="someone/crawls")
    here, there = results(tmp_path / "out"), results(tmp_path / "hub")
    assert {**here, "_manifest.json": b""} == {**there, "_manifest.json": b""}


def test_submit_starts_independent_hosts(corpus: Path, tmp_path: Path) -> None:
    path = config(tmp_path, corpus, workers=1)
    assert run_command("score", path).returncode == 0
    whole = results(tmp_path / "out")
    options = ("--verb", "score", "--on", "local", "--hosts", "2", "--bucket", tmp_path / "jobs")
    options = (*options, "--name", f"score{os.getpid()}")
    result = run_command(
        "submit", path, "score.output=" + str(tmp_path / "b"), *options, "--watch", "--yes"
    )
    assert result.returncode == 0, result.stderr
    found = results(tmp_path / "b")
    assert found.pop("job.txt")
    assert found == whole

"""`report.html` of pretraining runs: what was trained, curves, and filled masks."""

import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jax
import numpy as np
from etils import epath

from bert_jax.data.dataset.cache import DatasetCache
from bert_jax.data.dataset.provenance import read_provenance
from bert_jax.data.dataset.reader import open_dataset
from bert_jax.data.google_bert.reader import is_google_bert
from bert_jax.data.rows.masking import MaskedExample, MaskingSection, TokenMasker
from bert_jax.files.atomic import refusal_of, write_errors, write_whole
from bert_jax.files.remote import is_remote
from bert_jax.inference.bucketed import model_of_run
from bert_jax.inference.fill_mask import MaskFiller
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.report.pretraining.page import FilledText, RunRecord, render
from bert_jax.report.rendering import Cell, flat
from bert_jax.runs.run_directory import Run, read_run_provenance
from bert_jax.train.checkpoint_manifest import EMA
from bert_jax.train.metrics_writer import METRICS, read_metrics
from bert_jax.train.progress_display import warn_aloud
from bert_jax.train.state import define_model
from bert_jax.version import __version__
from bert_jax.workflows.epochs import PhaseEpochs, count_epochs, format_epochs
from bert_jax.workflows.objective_of_run import objective_section
from bert_jax.workflows.phases import VALIDATION
from bert_jax.workflows.pretraining_settings import TrainSection

# Whole words, because a text with a masked part of a word is hard to read.
MASKING: Final = MaskingSection(unit="whole_word", replace_with_mask=1.0, replace_with_random=0.0)
WORDS: Final = 3  # maximum number of masks of a text
TOKENS: Final = 64  # maximum number of tokens of a text with filled masks
TOP: Final = 3  # number of pieces for each mask
OTHERS: Final = ("run_dir", "vocab", "examples", "finetune", "score", "submit")  # not shown


def write_report(
    runs: Mapping[str, Run],
    output: epath.Path,
    *,
    epochs: Sequence[PhaseEpochs] | None = None,
    cache: DatasetCache | None = None,
) -> None:
    """Writes the report of one pretraining run, or a comparison of several.

    In a job of several processes, one process calls it in a block of `alone`. If the masks cannot
    be filled, prints a warning and leaves them out.

    Args:
        runs: runs by name.
        output: file to write.
        epochs: epochs of the only run. Default: read from the datasets on this machine.
        cache: local copies of datasets in a bucket. None: the report has no texts of such datasets.

    Raises:
        UserError: a section of a configuration is invalid, or the file cannot be written.
    """
    filled: list[FilledText] = []
    if len(runs) == 1:
        (run,) = runs.values()
        if reason := refusal_of(lambda: filled.extend(fill_held_out(run, cache))):
            warn_aloud(f"{output} has no filled masks: {reason}")
    records = [_record(run, name, epochs=epochs, filled=filled) for name, run in runs.items()]
    written = time.strftime("%Y-%m-%d %H:%M %Z")
    footer = f"Written by bert_jax {__version__}, {written}. This file is self-contained."
    with write_errors(output):
        write_whole(output, render(records, footer=footer).encode())


def fill_held_out(run: Run, cache: DatasetCache | None) -> list[FilledText]:
    """Masks words of held-out examples, and fills the masks with the last checkpoint.

    Returns an empty list if the run has no MLM head or no held-out examples on this machine.
    """
    if not run.heads.mlm or run.heads.causal or not (masked := _mask_held_out(run, cache)):
        return []
    # Compiling for a CPU is faster, and needs no other process.
    try:
        devices = jax.local_devices(backend="cpu")
    except RuntimeError:  # JAX_PLATFORMS excludes it
        devices = jax.local_devices()
    mesh = make_mesh(MeshSection(), devices[:1])
    model, pieces = model_of_run(run, checkpoint="last", mesh=mesh), run.tokenizer
    if model.heads.causal:  # the last checkpoint is of an earlier phase
        return []
    filled = MaskFiller(model, top_k=TOP).fill([each.input_ids.tolist() for _, each in masked])
    return [
        FilledText(
            name,
            pieces.decode(each.input_ids[1:-1].tolist()),
            list(zip(pieces.texts(each.ids.tolist()), answers, strict=True)),
        )
        for (name, each), answers in zip(masked, filled, strict=True)
    ]


def _mask_held_out(run: Run, cache: DatasetCache | None) -> list[tuple[str, MaskedExample]]:
    """Returns masked first spans of held-out examples, each with the name of its set."""
    train, tokenizer = run.section("train", TrainSection, verb="report"), run.tokenizer
    masker = TokenMasker.from_tokenizer(tokenizer, masking=MASKING, max_predictions=WORDS)
    masked = []
    for name, path in _held_out(train).items() if train.report_texts else ():
        place = path if cache is None else cache.local(path)
        if is_google_bert(place) or is_remote(place) or not os.path.exists(place):
            continue
        if VALIDATION not in read_provenance(place).splits:
            continue
        dataset, rng = open_dataset(place, VALIDATION), np.random.default_rng(run.seed)
        rows = rng.permutation(len(dataset))[: train.report_texts]
        for example in dataset.__getitems__(rows.tolist()):
            text = example.input_ids[1 : example.first_length - 1].astype(np.int32)
            words = np.flatnonzero(~tokenizer.is_continuation[text])  # a text may begin in a word
            text = text[words[0] : words[0] + TOKENS] if len(words) else text[:TOKENS]
            found = masker(np.array([tokenizer.special.cls, *text, tokenizer.special.sep]), rng)
            masked += [(name, found)] if len(found.positions) else []
    return masked


def _held_out(train: TrainSection) -> dict[str, str]:
    """Returns the directories of the held-out sets by name; a single one has the name ""."""
    evaluation, own = train.evaluation, train.phases[-1].paths[0]
    if evaluation is None:
        return {"": own}
    return dict(evaluation.sets or {"": evaluation.dataset or own})


def _record(
    run: Run, name: str, *, epochs: Sequence[PhaseEpochs] | None, filled: Sequence[FilledText]
) -> RunRecord:
    train = run.section("train", TrainSection, verb="report")
    if epochs is None:
        epochs = list(count_epochs(train))
    at_most = train.evaluation and train.evaluation.at_most
    first, phases = 0, {}
    for index, phase in enumerate(train.phases):
        phases |= {f"phase {index}": first} if index else {}
        first += phase.steps
    settings = {key: value for key, value in run.settings.items() if key not in OTHERS}
    return RunRecord(
        name=name,
        facts=_facts(run, train),
        data=_data(run, train, epochs),
        phases=phases,
        metrics=read_metrics(run.directory) if (run.directory / METRICS).exists() else [],
        settings=dict(flat(settings)),
        kept=[score.rpartition(".")[0].removeprefix(f"{EMA}.") for score in at_most or ()],
        filled=filled,
    )


def _facts(run: Run, train: TrainSection) -> dict[str, Cell]:
    sizes, start = run.architecture, read_run_provenance(run.directory).get("init_from")
    parameters = jax.tree.leaves(define_model(run.build).params)
    facts = {
        "encoder": f"{sizes.kind}, {sizes.num_hidden_layers} layers, width {sizes.hidden_size}",
        "parameters": f"{sum(math.prod(leaf.shape) for leaf in parameters):,}",
        "tokenizer": f"{run.tokenizer.vocab_size:,} pieces, {run.tokenizer.hash[:12]}",
        "start": start or "random initialization",
        "steps": f"{train.total_steps:,}",
        "seed": f"{run.seed}",
    }
    return facts | _vocabulary(start)


def _vocabulary(start: Any) -> dict[str, str]:
    """Returns what an extended vocabulary saves, if a local initial run records it."""
    if not start or is_remote(start) or not os.path.isdir(start):
        return {}
    origin = read_run_provenance(epath.Path(start))
    words, pieces = origin.get("new_words"), origin.get("pieces_per_word")
    facts = {"new words": f"{len(words):,}"} if words else {}
    if pieces:
        facts["pieces per word"] = f"{pieces['before']:.3f}, with new words {pieces['after']:.3f}"
    return facts


def _data(run: Run, train: TrainSection, epochs: Sequence[PhaseEpochs]) -> list[dict[str, Cell]]:
    read = {(each.phase, each.dataset): format_epochs(each.epochs) for each in epochs}
    return [
        {
            "phase": index,
            "objective": objective_section(run, phase=index, verb="report").kind,
            "steps": phase.steps,
            "rows": phase.batch_size,
            "tokens per row": phase.seq_length,
            "dataset": path,
            "weight": f"{phase.dataset[path]:g}" if isinstance(phase.dataset, dict) else "–",
            "planned epochs": read.get((index, path), "–"),
        }
        for index, phase in enumerate(train.phases)
        for path in phase.paths
    ]

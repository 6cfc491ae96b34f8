"""`report.html` of a fine-tuned run: training curves, scores, errors and attention."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from bert_jax.data.rows.collate import collate_tokens
from bert_jax.files.atomic import write_whole
from bert_jax.model.encoder_model import EncoderModel
from bert_jax.parallel.compiling import made_once
from bert_jax.report.finetuning.attention import AttentionMaps, attention_view
from bert_jax.report.finetuning.page import ReportInputs, render
from bert_jax.report.rendering import View
from bert_jax.runs.open_checkpoints import LoadedParams
from bert_jax.runs.run_directory import Run
from bert_jax.runs.settings import REPORT
from bert_jax.task import Batch, Params
from bert_jax.tasks.batches import collate_inputs
from bert_jax.tasks.family import Family, Record, Split
from bert_jax.tasks.section import FinetuneSection
from bert_jax.tasks.squad.scores import overlap_f1
from bert_jax.tasks.tokens.entities import entity_report
from bert_jax.train.metrics_writer import read_metrics
from bert_jax.train.state import ModelDefinition

# By default, the report shows the attention of a dev row with a number of tokens in this range.
SHORTEST, LONGEST = 8, 32


def write_report(
    run: Run,
    family: Family,
    loaded: LoadedParams,
    *,
    records: Mapping[str, Sequence[Record]],
    views: Mapping[str, View] = {},
    seeds: Sequence[Mapping[str, Any]] = (),
    warning: str | None = None,
) -> None:
    """Writes a fine-tuned run's report into its directory.

    `family` must have the dev splits. `records` are the predictions of the checkpoint `loaded`.
    `views` are the results of `Family.view` by split. `seeds` are the results of a sweep. `warning`
    appears at the top of the report.
    """
    section = run.section("finetune", FinetuneSection, verb="finetune")
    settings = section.model_dump(mode="json")
    inputs = ReportInputs(
        title=run.directory.name,
        kind=run.heads.text_head.title if run.heads.text_head else run.heads.task or "",
        problem=run.heads.problem,
        labels=run.heads.labels,
        best_metric=family.best_metric,
        scores={name: family.score(found) for name, found in records.items()},
        records=records,
        settings={"seed": run.seed, **settings},
        metrics=read_metrics(run.directory),
        notes=family.notes,
        warning=warning,
        run={
            "step": loaded.step,
            "device": f"{loaded.mesh.size} × {jax.devices()[0].device_kind}",
            "jax": jax.__version__,
            "written": time.strftime("%Y-%m-%d %H:%M %Z"),
        },
        attention=_attention(run, family, loaded, sentence=section.report_sentence),
        seeds=seeds,
        entities=_entities(run, family, records),
        f1=_f1(run, records),
        views=views,
    )
    write_whole(run.directory / REPORT, render(inputs))


def _entities(
    run: Run, family: Family, records: Mapping[str, Sequence[Record]]
) -> dict[str, dict[str, dict[str, float]]]:
    if run.heads.task != "token_classification" or family.best_metric != "f1":
        return {}
    return {name: entity_report(found) for name, found in records.items()}


def _f1(run: Run, records: Mapping[str, Sequence[Record]]) -> dict[str, list[float]]:
    """Returns the F1 of each question, 0 to 1, by split."""
    if run.heads.task != "question_answering":
        return {}

    def best(record: Record) -> float:
        answers = [answer["text"] for answer in record["label"]]
        if not answers:
            return float(not record["prediction"])
        return max(overlap_f1(answer, record["prediction"]) for answer in answers)

    return {name: list(map(best, found)) for name, found in records.items()}


def _attention(
    run: Run, family: Family, loaded: LoadedParams, *, sentence: str | None
) -> list[AttentionMaps]:
    """Returns the attention maps of `sentence`; if it is None, of a short dev row."""
    if sentence is not None:
        special = run.tokenizer.special
        room = run.architecture.max_position_embeddings - 2
        ids = [special.cls, *run.tokenizer.encode(sentence)[:room], special.sep]
        batch = collate_tokens([ids], batch_size=1, length=len(ids), pad_id=special.pad)
        title = "report_sentence"
    else:
        found = _fitting_row(family)
        if found is None:
            return []
        split, row = found
        length = int(split.lengths[row])
        pad = run.tokenizer.special.pad
        inputs = collate_inputs(split, np.asarray([row]), batch_size=1, length=length, pad_id=pad)
        batch = {name: ids.reshape(-1, length)[:1] for name, ids in inputs.items()}
        title = f"Row {row} of dev"
    # Use one device, because a single row cannot be sharded.
    params = jax.device_put(jax.device_get(loaded.params), jax.devices()[0])
    maps = _attention_maps(loaded.model)(params, jax.device_put(batch, jax.devices()[0]))
    weights = np.asarray(jax.device_get(maps))[:, 0]
    # The row is as long as its longest choice: omit the padding of the first choice.
    size = int((batch["segment_ids"][0] > 0).sum())
    pieces = run.tokenizer.pieces(batch["input_ids"][0, :size].tolist())
    return [attention_view(pieces, weights, title=title)]


@made_once
def _attention_maps(definition: ModelDefinition) -> Callable[[Params, Batch], jax.Array]:
    def maps(params: Params, batch: Batch) -> jax.Array:
        model = nnx.merge(definition.graphdef, params)
        assert isinstance(model, EncoderModel)
        return model.attention_maps(batch)

    return jax.jit(maps)


def _fitting_row(family: Family) -> tuple[Split, int] | None:
    for split in (family.splits[name] for name in family.dev):
        fitting = np.flatnonzero((split.lengths >= SHORTEST) & (split.lengths <= LONGEST))
        if len(fitting):
            return split, int(fitting[0])
    return None

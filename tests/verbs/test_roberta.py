"""A RoBERTa checkpoint with byte-level BPE in every verb, against Hugging Face's PyTorch."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import yaml
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    RobertaForMaskedLM,
)

import bert_jax
from bert_jax.runs.open_checkpoints import load_params
from bert_jax.runs.run_directory import open_run
from tests.interop.hf_checkpoints import hf_model, roberta_config
from tests.project import ok, write_config
from tests.text.library_tokenizers import roberta, saved

POSITIONS = 64
TEXT = "The tower (1889) was <mask> in Élan, by  whom?"
PAIRS = [("a good tower", "in Élan 🗼"), ("bad", "of  1889 and more"), ("a", "b")]


class Imported(NamedTuple):
    """A checkpoint and the run that was imported from it."""

    model: RobertaForMaskedLM
    run: Path


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Imported:
    folder, tokenizer = tmp_path_factory.mktemp("roberta"), roberta()
    special = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    sizes = {"vocab_size": len(tokenizer), "num_hidden_layers": 1}
    changes: dict[str, Any] = sizes | {"max_position_embeddings": POSITIONS + 2} | special
    config = roberta_config(**changes)
    model = hf_model(RobertaForMaskedLM, config)
    model.save_pretrained(saved("roberta", folder / "hf"))
    assert "type 0" in ok("import", folder / "hf", folder / "run")
    return Imported(model, folder / "run")


def their_output(model: PreTrainedModel, *texts: str) -> Any:
    tokenizer: Any = roberta()
    with torch.no_grad():
        return model(**tokenizer(*texts, return_tensors="pt"))


def test_masks_and_features_equal_hugging_faces(imported: Imported) -> None:
    run = open_run(imported.run)
    assert run.architecture.max_position_embeddings == POSITIONS
    assert run.settings["objective"]["kind"] == "roberta"
    model, tokenizer = bert_jax.load(imported.run), roberta()
    (candidates,) = model.fill_mask(TEXT, top_k=4).masks
    at = tokenizer(TEXT)["input_ids"].index(tokenizer.mask_token_id)
    logits = their_output(imported.model, TEXT).logits[0, at]
    logits[tokenizer.all_special_ids] = -torch.inf  # no candidates
    best = logits.softmax(-1).topk(4)
    expected = [tokenizer.decode([number]) for number in best.indices.tolist()]
    assert [each.piece for each in candidates] == expected
    probabilities = [each.probability for each in candidates]
    assert probabilities == pytest.approx(best.values.tolist(), abs=1e-5)
    assert candidates[0].piece in ok("fill-mask", imported.run, TEXT)
    for pair in PAIRS:
        states = their_output(imported.model.roberta, *pair).last_hidden_state[0]
        ours = model.encode([pair], layers="last", pool="cls")[0]
        np.testing.assert_allclose(ours, states[0].numpy(), atol=1e-5)


def test_a_checkpoint_is_fine_tuned_and_exported(imported: Imported, tmp_path: Path) -> None:
    lines = [f"{first},{second},{label}" for first, second in PAIRS for label in ("no", "yes")]
    data = tmp_path / "rows.csv"
    data.write_text("\n".join(["first,second,label", *lines, ""]), encoding="utf-8")
    task = {"kind": "table", "train": str(data), "dev": str(data)}
    task |= {"text": "first", "pair": "second", "label": "label"}
    settings = {"init_from": str(imported.run), "task": task, "max_length": 32, "epochs": 1}
    values = {"seed": 0, "run_dir": str(tmp_path / "tuned")}
    config = write_config(tmp_path / "run.yaml", values | {"finetune": settings | {"dropout": 0.1}})
    said = ok("finetune", config)
    assert "the classifier's dense layer and the sequence-classification head start fresh" in said
    written = yaml.safe_load((tmp_path / "tuned" / "config.yaml").read_text())["model"]
    assert written["kind"] == "roberta"
    assert not written["heads"]["pooler"]
    params = load_params(open_run(tmp_path / "tuned"), checkpoint="last").params
    assert set(params) == {"encoder", "classifier", "task"}

    exported = tmp_path / "exported"
    ok("export", tmp_path / "tuned", exported)
    model, report = AutoModelForSequenceClassification.from_pretrained(
        exported, output_loading_info=True, attn_implementation="eager"
    )
    assert {name for name, found in report.items() if found} == set()
    assert (model.config.max_position_embeddings, model.config.pad_token_id) == (POSITIONS + 2, 1)
    assert AutoTokenizer.from_pretrained(exported)(*PAIRS[0]) == roberta()(*PAIRS[0])
    ok("predict", tmp_path / "tuned", tmp_path / "out.jsonl", "--input", data)
    records = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    for record, pair in zip(records, [pair for pair in PAIRS for _ in range(2)], strict=True):
        expected = their_output(model, *pair).logits[0].softmax(-1).numpy()
        ours = [record["probabilities"][model.config.id2label[at]] for at in range(2)]
        np.testing.assert_allclose(ours, expected, atol=1e-5)

"""Records of every task kind."""

from typing import Any

import numpy as np

from bert_jax.report.finetuning.attention import AttentionMaps, attention_view
from bert_jax.report.finetuning.embeddings import SamplePair, VectorSample
from bert_jax.report.finetuning.page import ReportInputs
from bert_jax.report.pretraining.page import FilledText, RunRecord
from bert_jax.train.time_account import KINDS

EVIL = '<script>alert("x")</script> & "quotes" \'single\' </style> <!-- -- > \x00\x1f ünï😀'


def single(count: int, *, labels: tuple[str, ...], seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        odds = rng.dirichlet(np.ones(len(labels)))
        made.append(
            {
                "id": f"dev-{number}",
                "text": f"text {number} {EVIL}",
                "pair": f"pair {number}",
                "label": labels[number % len(labels)],
                "prediction": labels[int(odds.argmax())],
                "probabilities": dict(zip(labels, odds.tolist(), strict=True)),
            }
        )
    return made


def multi(count: int, *, labels: tuple[str, ...], seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        odds, gold = rng.random(len(labels)), rng.random(len(labels)) < 0.4
        made.append(
            {
                "id": str(number),
                "text": f"text {number} {EVIL}",
                "label": [name for name, here in zip(labels, gold, strict=True) if here],
                "prediction": [name for name, p in zip(labels, odds, strict=True) if p > 0.5],
                "probabilities": dict(zip(labels, odds.tolist(), strict=True)),
            }
        )
    return made


def numbers(count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    gold = rng.random(count) * 5
    return [
        {"id": str(at), "text": f"{EVIL} {at}", "label": value, "prediction": value + offset}
        for at, (value, offset) in enumerate(
            zip(gold.tolist(), rng.normal(size=count).tolist(), strict=True)
        )
    ]


def tagged(count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": f"s{at}",
            "tokens": ["Ada", EVIL, "met", "Paris", "."],
            "label": ["B-PER", "I-PER", "O", "B-LOC", "O"],
            "prediction": ["B-PER", "O", "O", "B-LOC" if at % 2 else "B-PER", "O"],
        }
        for at in range(count)
    ]


def question(
    *, context: str, gold: tuple[tuple[str, int], ...], prediction: str, start: int | None
) -> dict[str, Any]:
    answers = [{"text": text, "start": at} for text, at in gold]
    nbest = [
        {"text": text, "probability": p, "start_logit": 1.0, "end_logit": 2.0}
        for text, p in ((prediction, 0.7), ("", 0.2), (EVIL, 0.1))
    ]
    return {
        "id": "q", "title": "t", "question": f"Who? {EVIL}", "context": context,
        "answers": answers, "label": answers, "prediction": prediction, "start": start,
        "score": 1.5, "null_score_difference": -2.0, "nbest": nbest,
    }  # fmt: skip


def choice(count: int) -> list[dict[str, Any]]:
    shared = {"text": f"start {EVIL}", "choices": ["a", EVIL, "c"], "prediction": 0}
    odds = [0.6, 0.3, 0.1]
    return [
        {**shared, "id": str(at), "label": at % 3, "probabilities": odds} for at in range(count)
    ]


def vectors(pairs: int, *, scored: bool = False) -> VectorSample:
    """Returns pairs of texts. The second texts have two values only."""
    made = np.random.default_rng(0).normal(size=(2 * pairs, 3)).astype(np.float32)
    texts = [f"{EVIL} {at if at < pairs else at % 2}" for at in range(2 * pairs)]
    score = 0.5 if scored else None
    return VectorSample(
        texts, made, [SamplePair(at, pairs + at, score) for at in range(pairs)], 9 * pairs
    )


def example(layers: int = 2, heads: int = 3, size: int = 5) -> AttentionMaps:
    weights = np.random.default_rng(0).dirichlet(np.full(size, 0.2), (layers, heads, size))
    tokens = ["[CLS]", EVIL, *(f"t{at}" for at in range(size - 3)), "[SEP]"]
    return attention_view(tokens, weights)


def metrics(evaluations: int = 3) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for step in range(20, 20 * (3 * evaluations) + 1, 20):
        lines.append({"kind": "train", "step": step, "loss": 3 / step, "learning_rate": 1e-5})
        lines.append({"kind": "speed", "step": step, "tokens_per_second": 1e4})
        if step % 60 == 0:
            lines.append(
                {"kind": "validation", "step": step, "loss": 0.5, "accuracy": 0.5 + step / 1e4}
            )
    return lines


def inputs(**changes: Any) -> ReportInputs:
    """Returns report inputs for a classification with three labels."""
    labels = ("no", "yes", EVIL)
    values: dict[str, Any] = {
        "title": f"A run {EVIL}",
        "kind": "sequence_classification",
        "problem": "single_label",
        "labels": labels,
        "best_metric": "accuracy",
        "scores": {"dev": {"accuracy": 0.8431, "f1": 0.25}},
        "records": {"dev": single(90, labels=labels)},
        "settings": {"epochs": 3, "optimizer": {"learning_rate": 2e-5}, EVIL: EVIL},
        "metrics": metrics(),
        "notes": [f"dev: {EVIL}"],
        "run": {"step": 180, "seconds": 75.2, "device": EVIL},
    }
    return ReportInputs(**(values | changes))


def pretraining_run(name: str = EVIL, *, general: float = 0.25, **changes: Any) -> RunRecord:
    """Returns a run of 40 steps with two held-out sets, a restart and a bad step.

    `general` is the change of the loss on the set "general" in each evaluation.
    """
    lines: list[dict[str, Any]] = []
    for at, step in enumerate(range(0, 41, 10)):
        held_out = {"domain.mlm_loss": 4 - at, "general.mlm_loss": 2 + general * at}
        held_out |= {"domain.replaced_auc": at / 8}
        lines.append({"kind": "validation", "step": step, **held_out, "ema.domain.mlm_loss": 3.5})
        if step:
            trained = {"loss": 4.5 - at, "mlm_loss": 4.5 - at, "learning_rate": 1e-4}
            lines.append({"kind": "train", "step": step, **trained})
            lines.append({"kind": "speed", "step": step, "tokens_per_second": 1e4, "mfu": 0.4})
            account = {**dict.fromkeys(KINDS, 0.0), "train": 9.0 * at, "compile": 1.0}
            state = {"starts": 1 + (step > 20), "finished": 0, "at": 1e9}
            lines.append({"kind": "goodput", "step": step, **account, **state})
    lines.append({"kind": "bad_step", "step": 25, "at": 25, "skip": 1, "loss": 99.0})
    values: dict[str, Any] = {
        "name": name,
        "facts": {"encoder": EVIL},
        "data": [{"phase": 0, "dataset": EVIL}, {"phase": 1, "dataset": "b"}],
        "phases": {"phase 1": 20},
        "metrics": lines,
        "settings": {"seed": name, "tokenizer": EVIL},
        "kept": ["general"],
        "filled": [FilledText("domain", f"a [MASK] {EVIL}", [("b", [("b", 0.5), (EVIL, 0.25)])])],
    }
    return RunRecord(**(values | changes))

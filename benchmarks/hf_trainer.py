"""Fine-tunes SST-2 with Hugging Face's Trainer, from the model on disk to the dev metric.

    python -m benchmarks.hf_trainer CHECKPOINT glue/SST-2 --limit 2000

This is a typical Trainer script, with the settings of `configs/finetune/sst2.yaml`. It needs
`accelerate`, which the tests do not need. Prints a line of JSON.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.hf_finetune import Settings, read


def main() -> None:
    """Fine-tunes and prints the metrics."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("data", type=Path, help="directory with train.tsv and dev.tsv")
    parser.add_argument("--limit", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    settings = Settings(epochs=arguments.epochs)
    with tempfile.TemporaryDirectory() as scratch:
        scores = train(arguments.checkpoint, arguments.data, arguments.limit, settings, scratch)
    print(json.dumps({"peer": "hf_trainer", "accuracy": scores["eval_accuracy"]}), flush=True)


def train(
    checkpoint: Path, data: Path, limit: int, settings: Settings, scratch: str
) -> dict[str, float]:
    """Fine-tunes and returns the dev metrics."""
    import datasets
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        checkpoint, num_labels=2
    )

    def encoded(name: str, most: int | None) -> Any:
        rows = read(data / f"{name}.tsv", "sst2")[:most]
        table = {"text": [row[0] for row in rows], "label": [int(row[2]) for row in rows]}
        return datasets.Dataset.from_dict(table).map(
            lambda batch: tokenizer(batch["text"], truncation=True, max_length=settings.max_length),
            batched=True,
        )

    asked = transformers.TrainingArguments(
        output_dir=scratch,
        num_train_epochs=settings.epochs,
        learning_rate=settings.learning_rate,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=settings.batch_size,
        warmup_steps=settings.warmup,  # values below 1 are a share of all steps
        weight_decay=settings.weight_decay,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        use_cpu=True,
        report_to=[],
        seed=1,
    )
    trainer = transformers.Trainer(
        model=model,
        args=asked,
        train_dataset=encoded("train", limit),
        eval_dataset=encoded("dev", None),
        processing_class=tokenizer,
        compute_metrics=lambda found: {
            "accuracy": float(np.mean(np.argmax(found.predictions, -1) == found.label_ids))
        },
    )
    trainer.train()
    return trainer.evaluate()


if __name__ == "__main__":
    main()

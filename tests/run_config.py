"""Configurations of small runs, as a user would write them."""

from pathlib import Path
from typing import Any

VOCAB_SIZE = 640
MESH = {"platform": "cpu", "data": 4, "fsdp": 2}

# Dropout for tests of bit-for-bit equality after a kill or on several processes. `project_config`
# omits dropout, because it doubles compile time.
DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}


def project_config(root: Path) -> dict[str, Any]:
    """Returns the configuration of a whole job with two phases."""
    return {
        "seed": 3,
        "run_dir": str(root / "run"),
        "tokenizer": str(root / "tokenizer"),
        "vocab": {
            "input": [str(root / "text" / "*.txt")],
            "output": str(root / "tokenizer"),
            "size": VOCAB_SIZE,
            "unused_slots": 10,
        },
        "examples": {
            "input": [str(root / "text" / "*.txt")],
            "tokenizer": str(root / "tokenizer"),
            "output": str(root / "dataset32"),
            "max_seq_length": 32,
            "dupe_factor": 1,
            "validation_fraction": 0.1,
            "workers": 1,
        },
        "model": {
            "architecture": {
                "hidden_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "intermediate_size": 64,
                "max_position_embeddings": 48,
                **dict.fromkeys(DROPOUT, 0.0),
            },
            "execution": {"dtype": "float32"},
        },
        "mesh": {"platform": "cpu", "data": 2, "simulated_devices": 2},
        "optimizer": {"learning_rate": 1e-3, "warmup_steps": 4},
        "train": {
            "phases": [
                {
                    "dataset": str(root / "dataset32"),
                    "steps": 10,
                    "seq_length": 32,
                    "batch_size": 8,
                },
                {"dataset": str(root / "dataset48"), "steps": 6, "seq_length": 48, "batch_size": 8},
            ],
            "log_every": 2,
            "report_texts": 0,  # each text with masks compiles a program
            "evaluation": {"every": 8, "examples": 24},
            "checkpoint": {"every": 4},
        },
    }


def one_phase(root: Path, *, steps: int = 12, **train: Any) -> dict[str, Any]:
    """Returns a configuration with one phase on the eight devices of the test process.

    Tests with equal numbers of steps share one compiled program.

    Args:
        root: the project's directory.
        steps: number of steps of the phase.
        **train: more settings of the section "train".
    """
    values = project_config(root)
    values["mesh"] = MESH
    phase = values["train"]["phases"][0] | {"steps": steps}
    values["train"] |= {"phases": [phase], **train}
    return values

import json
from pathlib import Path

import pytest
import yaml

from bert_jax.errors import UserError
from bert_jax.runs.directory import open_run
from bert_jax.version import __version__
from tests.tasks.runs import tiny_run


def test_a_run_with_the_keys_of_another_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    root = tiny_run(tmp_path)
    settings = yaml.safe_load((root / "config.yaml").read_text())
    # As 0.1 wrote it: architecture and execution directly under `model`.
    model = settings["model"]
    settings["model"] = {
        "size": None,
        "bert_config": None,
        **{name: value for name, value in model["architecture"].items() if name != "vocab_size"},
        **model["execution"],
        "heads": model["heads"],
    }
    (root / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    provenance = json.loads((root / "provenance.json").read_text())
    (root / "provenance.json").write_text(json.dumps({**provenance, "bert_jax": "0.1.0"}))
    with pytest.raises(UserError) as refused:
        open_run(root)
    message = str(refused.value)
    assert "\n" not in message
    for part in (
        f"{root / 'config.yaml'}: model.hidden_size: unknown key",
        'did you mean "architecture.hidden_size"?',
        f"0.1.0, this is {__version__}",
    ):
        assert part in message

"""The settings in a run directory, and the words for a model's heads."""

from pathlib import Path

from etils import epath

from bert_jax.files.seal import sealed_yaml
from bert_jax.files.yaml_file import dump_yaml
from bert_jax.model.section import HeadsSection
from bert_jax.runs.settings import CONFIG, describe, read_settings


def test_settings_that_no_longer_exist_are_left_out(tmp_path: Path) -> None:
    kept = {"seed": 3, "train": {"log_every": 5, "phases": [{"steps": 8}]}}
    held = kept | {"train": kept["train"] | {"example_log": True}}
    (tmp_path / CONFIG).write_text(sealed_yaml(dump_yaml(held)), encoding="utf-8")
    assert read_settings(epath.Path(tmp_path)) == kept


def test_every_head_has_a_name() -> None:
    none = {"pooler": False, "mlm": False, "next_sentence": False}
    assert describe(HeadsSection(**none)) == "no head and no pooler"
    assert describe(HeadsSection(**none | {"pooler": True})) == "no head but a pooler"
    assert describe(HeadsSection(**none, replaced_tokens=True)) == "a replaced-token head"

"""Models with one token type: both spans of a pair have it."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from transformers import BertConfig, BertForPreTraining

from tests.interop.hf_checkpoints import hf_config, hf_model, mixed_batch, read_run, save
from tests.project import ok


def test_a_model_with_one_token_type_is_imported_and_takes_pairs(tmp_path: Path) -> None:
    config = hf_config(type_vocab_size=1)
    source = save(hf_model(BertForPreTraining, config), tmp_path / "hf")
    said = ok("import", source, tmp_path / "run")
    assert "type_vocab_size is 1: both spans of a pair get token type 0" in said
    found = read_run(tmp_path / "run")
    assert found.run.architecture.type_vocab_size == 1

    batch = jax.tree.map(jnp.asarray, mixed_batch(config))
    pairs = batch | {"token_type_ids": batch["segment_ids"]}
    one, both = (found.model.hidden(each, dropout_key=None) for each in (batch, pairs))
    np.testing.assert_array_equal(both, one)  # mixed_batch has type 0 alone
    assert not batch["token_type_ids"].any()

    assert "w" in ok("fill-mask", tmp_path / "run", "w1 [MASK] w2")
    ok("export", tmp_path / "run", tmp_path / "back")
    assert BertConfig.from_pretrained(tmp_path / "back").type_vocab_size == 1

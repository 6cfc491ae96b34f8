"""Chinese from an extracted Wikipedia to a pretrained model, with segmented whole-word masking."""

import copy
import json
import re
from pathlib import Path

import numpy as np
import pytest

from bert_jax.data.dataset.provenance import read_provenance
from bert_jax.train.metrics_writer import read_metrics
from tests.corpus import original, write_tokenizer
from tests.data.chinese import LEXICON
from tests.project import ok, project_config, write_config

CHARACTERS = "我他在是去的看有来上"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Thirty articles, a vocabulary of their characters, and a configuration."""
    rng = np.random.default_rng(0)

    def sentence() -> str:
        words = [*rng.choice(list(CHARACTERS), 4), *rng.choice(LEXICON, 3)]
        return "".join(rng.permutation(words)) + str(rng.choice(["。", "！", "？"]))

    text = tmp_path / "zhwiki" / "AA" / "wiki_00"
    text.parent.mkdir(parents=True)
    with text.open("w", encoding="utf-8") as file:
        for number in range(30):
            lines = [sentence() + sentence() for _ in range(4)]
            head = f'<doc id="{number}" url="u" title="北京">'
            file.write("\n".join([head, "北京", "", *lines, "</doc>", ""]))
    characters = sorted({*CHARACTERS, *"".join(LEXICON), *"。！？"})
    write_tokenizer(tmp_path / "tokenizer", documents=0, extra=characters)
    values = project_config(tmp_path)
    del values["vocab"]
    values["examples"] |= {
        "input": [str(tmp_path / "zhwiki" / "*" / "wiki_*")],
        "format": "wikiextractor",
        "layout": "prose",
        "language": "zh",
    }
    values["objective"] = {
        "masking": {"unit": "whole_word", "segmenter": "tests.data.chinese:cut", "rate": 0.3}
    }
    values["mesh"] = {"platform": "cpu", "data": 8}
    values["optimizer"]["warmup_steps"] = 1
    values["train"] |= {
        "phases": [values["train"]["phases"][0] | {"steps": 2}],
        "log_every": 1,
        "evaluation": {"every": 2, "examples": 8},
        "checkpoint": {"every": 2},
    }
    return write_config(tmp_path / "run.yaml", values)


@pytest.mark.slow
def test_chinese_words_are_masked_whole(config: Path) -> None:
    root = config.parent
    result = ok("examples", config, "--inspect", 30)
    made = read_provenance(root / "dataset32")
    assert (made.corpus.documents, made.corpus.sentences) == (30, 240)
    assert made.corpus.unknown_rate == 0
    words: dict[str, set[int]] = {word: set() for word in LEXICON}
    for line in result.splitlines():
        if line[:3] in ("A  ", "B  "):
            changed = [piece.endswith("⟩") for piece in line[3:].split()]
            text = "".join(map(original, line[3:].split()))
            for found in re.finditer("|".join(LEXICON), text):
                words[found.group()].add(sum(changed[found.start() : found.end()]))
    # Either all characters of a word are predicted, or none.
    assert words == {word: {0, 2} for word in LEXICON}

    ok("pretrain", config)
    metrics = read_metrics(root / "run", kind="train")
    assert [line["step"] for line in metrics] == [1, 2]
    assert all(np.isfinite(line["mlm_loss"]) for line in metrics)
    saved = (root / "run" / "config.yaml").read_text()
    assert "segmenter: tests.data.chinese:cut" in saved
    settings = json.loads((root / "run" / "tokenizer" / "tokenizer_config.json").read_text())
    assert settings["do_lower_case"] is True


def test_english_and_chinese_in_one_list_are_named_with_the_remedy(tmp_path: Path) -> None:
    english = "the old river crossed a small stone bridge near the grey mill .\n"
    chinese = "".join([*CHARACTERS, *LEXICON, "。\n"])
    for name, line in (("en", english), ("zh", chinese)):
        (tmp_path / f"{name}.txt").write_text(f"{line * 5}\n" * 40, encoding="utf-8")
    values = project_config(tmp_path)
    values["vocab"] |= {"size": 100, "pad_to_128": True}
    both, text = [str(tmp_path / "en.txt"), str(tmp_path / "zh.txt")], "examples.output"
    inputs = {
        "both": both,
        "languages": {"en": both[:1], "zh": both[1:]},
        "english": both[:1],
        "chinese": both[1:],
    }
    remedy = "`input: {en: [en/*.txt], zh: [zh/*.txt]}`"
    for name, files in inputs.items():
        for section in ("vocab", "examples"):
            values[section]["input"] = copy.deepcopy(files)  # YAML would write an alias
        file = write_config(tmp_path / "run.yaml", values)
        said = [ok("vocab", file, "--force"), ok("examples", file, f"{text}={tmp_path / name}")]
        assert [remedy in each for each in said] == [name == "both"] * 2, name

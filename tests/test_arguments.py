"""A wrong argument of a public function is one line with the argument's name."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

import bert_jax
from bert_jax.model.section import HeadsSection
from tests.project import refuses
from tests.tasks.runs import tiny_run

NOTHING, BYTES, OBJECT, NAN = None, b"x", object(), float("nan")
# Values that an argument must not have, by a word of its type. The first word that fits counts.
WRONG: dict[str, list[Any]] = {
    "PathLike": [3, 1.5, True, BYTES, ["x"], OBJECT],
    "Literal": [3, BYTES, True, "unknown", "", ["mean"]],
    "Callable": [3, "print", True],
    "str | collections.abc.Sequence": [3, 1.5, True, BYTES, {"a"}, [3], [None], [["x"]]],
    "Sequence[float": [3, 1.5, "text", {"a"}, ["x", 1.0], [None], [[1.0]]],
    "Sequence": [3, 1.5, "text", {"a"}, [3], ["x", BYTES], [None], [["x"]], iter("x")],
    "Mapping": [3, 1.5, True, "x", BYTES, ["x"], {3: 4}],
    "Console": [3, "x", True, print],
    "MeshSection": [3, "x", {"data": 1}, OBJECT],
    "SubmitSection": [3, "x", {"name": "x"}],
    "RunConfig": [3, True, [], {}, bert_jax.MeshSection()],
    "ExtraOutputs": [3, "x", {"report": "x"}],
    "bool": [1, 0, 1.0, "true", "", BYTES, [True], np.int64(1)],
    "Ge(": [-1, 1.5, "9"],
    "Gt(": [0, -1, 1.5, "9"],
    "int": [1.5, "9", "x", True, b"9", [9], {}, NAN, np.float64(9), np.bool_(1), OBJECT],
    "float": ["9", b"9", True, [9.0], NAN, float("inf")],
    "str": [3, 1.5, True, BYTES, ["x"], {}, ("x",), np.int64(3), np.asarray(["x"]), "\0", "\ud800"],
}
VALID = {"Sequence": ["x"], "RunConfig": bert_jax.RunConfig()}
# Arguments with many forms. `MemoryTable` and `parse_config` check them.
FORMS = {"texts", "rows", "data", "queries", "documents", "values"}


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in bert_jax.__all__:
        if inspect.isfunction(found := getattr(bert_jax, name)):
            yield name, found
    for name, found in inspect.getmembers(bert_jax.LoadedModel, inspect.isfunction):
        if not name.startswith("_"):
            yield f"LoadedModel.{name}", found
    yield "DoctorReport.of_level", bert_jax.DoctorReport.of_level


def arguments_of(function: Callable[..., Any]) -> dict[str, tuple[str, str]]:
    """Returns the type of each argument, and its key in `WRONG`."""
    spelled = {name: str(hint) for name, hint in get_type_hints(function, None, None, True).items()}
    return {
        name: (spelled[name], next(word for word in WRONG if word in spelled[name]))
        for name, each in inspect.signature(function).parameters.items()
        if name in spelled and name not in FORMS and each.kind is not each.VAR_KEYWORD
    }


CASES = [
    pytest.param(function, name, id=f"{label}-{name}")
    for label, function in public_functions()
    for name in arguments_of(function)
]


@pytest.mark.parametrize(("function", "name"), CASES)
def test_a_wrong_value_is_refused_with_its_argument(
    function: Callable[..., Any], name: str
) -> None:
    types = arguments_of(function)
    spelled, word = types[name]
    others = {
        each.name: VALID.get(types.get(each.name, ("", ""))[1], "x")
        for each in inspect.signature(function).parameters.values()
        if each.default is each.empty and each.kind is not each.VAR_KEYWORD
    }
    optional = "None" in spelled or "Optional" in spelled
    for value in [*WRONG[word], *([] if optional else [None])]:
        with refuses("argument.value") as caught:
            function(**{**others, name: value})
        assert caught.value.place.partition("[")[0] == name, value


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bert_jax.LoadedModel:
    return bert_jax.load(tiny_run(tmp_path_factory.mktemp("m"), heads=HeadsSection()))


def test_a_message_has_what_was_found_and_what_is_allowed(model: bert_jax.LoadedModel) -> None:
    call: Any = model
    with refuses("argument.value", place="batch_size", found="1.5", allowed=["an integer"]):
        call.encode("word1", batch_size=1.5)
    with refuses("argument.value", place="max_length", found="'9'", allowed=["an integer"]):
        call.encode("word1", max_length="9")
    with refuses("argument.value", place="layers", found="5", allowed=["text"]):
        call.encode("word1", layers=5)
    with refuses("argument.value", place="top_k", found="'x'"):
        call.fill_mask("[MASK]", top_k="x")
    for texts, found in ((None, "NoneType"), (b"x", "bytes"), (3, "int")):
        for function in (call.fill_mask, call.encode, call.features):
            with refuses("rows.kind", place="texts", found=found):
                function(texts)
    with refuses("rows.row_kind", place="texts: row 2", found="bytes"):
        call.fill_mask(["[MASK]", b"[MASK]"])
    with refuses("rows.too_many_values", place="texts: row 1", found=2):
        call.fill_mask([("[MASK]", "word1")])
    with refuses("argument.value", place="overrides[1]", found="3", allowed=["text"]):
        bert_jax.load_config("x.yaml", ["seed=1", 3])  # pyright: ignore[reportArgumentType]
    for size in (0, -1, 10**12, 10**30):
        with refuses("batch_size.range", found=size):
            call.encode("word1", batch_size=size)
        with refuses("fill_mask.top_k", found=size):
            call.fill_mask("[MASK]", top_k=size)
    with pytest.raises(TypeError, match=r"encode\(\) got an unexpected .*'batchsize'"):
        call.encode("word1", batchsize=3)


def test_values_of_numpy_and_paths_are_accepted(
    model: bert_jax.LoadedModel, tmp_path: Path
) -> None:
    call: Any = model
    expected = model.encode("word1 word2", max_length=4, batch_size=8, layers="last")
    sizes = {"max_length": np.int64(4), "batch_size": np.int8(8), "layers": np.str_("last")}
    np.testing.assert_array_equal(call.encode(np.str_("word1 word2"), **sizes), expected)
    several: list[Any] = [
        np.asarray(["a [MASK]"]),
        ("a [MASK]",),
        iter(["a [MASK]"]),
        {"text": ["a [MASK]"]},
    ]
    for texts in several:
        (filled,) = call.fill_mask(texts, top_k=np.uint16(2))
        assert filled == model.fill_mask("a [MASK]", top_k=2)
    path = tmp_path / "texts.txt"
    path.write_text("word1\n")
    run = Path(str(tmp_path)) / "run"
    with refuses("run.missing", place=str(run)):
        bert_jax.features(run, path, tmp_path / "out.npz")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("section", "settings", "key", "values"),
    [
        ("MeshSection", {"data": "2"}, "argument.value", {"place": "data", "found": "'2'"}),
        ("MeshSection", {"dtaa": 2}, "argument.name", {"place": "dtaa", "what": "unknown"}),
        ("TableSection", {"text": "a"}, "argument.name", {"place": "label", "what": "missing"}),
        ("RunConfig", {"mesh": {"data": "2"}}, "argument.value", {"place": "mesh.data"}),
        (
            *("MultipleChoiceSection", {"text": "a", "choices": ("b", "b"), "label": "c"}),
            *("choice.columns", {"place": "choices"}),
        ),
    ],
)
def test_a_wrong_setting_of_a_section_is_one_line(
    section: str, settings: dict[str, Any], key: str, values: dict[str, Any]
) -> None:
    with refuses(key, **values):
        getattr(bert_jax, section)(**settings)

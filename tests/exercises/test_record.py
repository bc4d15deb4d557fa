"""The record of an exercise: files, errors, changes, and the published schema."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.errors import OptionError
from qkv.exercises import Asked, Exercise, Given, Structure, quantities, schema
from qkv.exercises.record import plain_label, roles

ROOT = Path(__file__).parents[2]


def test_the_published_schema_is_the_record_s():
    published = json.loads((ROOT / "docs/exercise.schema.json").read_text(encoding="utf-8"))
    assert published == json.loads(json.dumps(schema())), "qkv solve --schema > docs/exercise.schema.json"


def test_a_record_survives_json_and_toml(tmp_path):
    exercise = Exercise(
        label="3",
        givens=[Given(symbol="Q", role="query", value=[[1, "1/3"]]), Given(symbol="d", role="width")],
        structure=Structure(heads=7, mask="causal"),
        conventions={"scale": {"value": "sqrt"}},
        asked=[Asked(label="a", quantity="scores", row=1)],
    )
    path = tmp_path / "exercise.json"
    path.write_text(exercise.model_dump_json(), encoding="utf-8")
    assert Exercise.load(path) == exercise
    path = tmp_path / "exercise.toml"
    path.write_text('label = "3"\n[[asked]]\nquantity = "scores"\n', encoding="utf-8")
    assert Exercise.load(path).asked[0].quantity == "scores"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"asked": [{}]}', "asked.0.quantity"),
        ('{"givens": [{"role": "nonsense"}]}', "givens.0.role"),
        ('{"unknown": 1}', "unknown"),
        ("{", "JSON"),
    ],
)
def test_an_error_names_the_field(text, named):
    with pytest.raises(OptionError, match=named):
        Exercise.from_text(text)


def test_a_question_changes_givens_and_structure():
    asked = Asked(quantity="head_width", changes=[Given(role="heads", value=64)])
    exercise = Exercise(structure=Structure(heads=8), givens=[Given(role="width", value=512)], asked=[asked])
    assert (exercise.size("heads"), exercise.with_changes(asked).size("heads")) == (8, 64)
    assert exercise.with_changes(asked).size("width") == 512


def test_labels():
    exercise = Exercise(asked=[Asked(label="(b)(ii)", quantity="scores")])
    assert exercise.only("b.ii").asked == exercise.asked
    assert plain_label("13.4") == "13.4"
    with pytest.raises(OptionError, match="b"):
        exercise.only("c")


def test_every_quantity_names_a_module_that_solves_it():
    from importlib import import_module

    from qkv.exercises.solving import SOLVERS

    for name, entry in quantities().items():
        import_module(f"qkv.exercises.solvers.{entry['module']}")
        assert name in SOLVERS, name
    assert len(set(roles())) == len(roles())


def test_importing_qkv_does_not_import_pydantic():
    code = "import qkv, sys; assert 'pydantic' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

"""The API's description is true: valid, of every view, and held to by what is answered to drawn requests."""

import importlib
import json
from pathlib import Path
from urllib.parse import urlencode

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from jsonschema import Draft202012Validator
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

import qkv.lab

VIEWS = {
    path.stem: importlib.import_module(f"qkv.lab.views.{path.stem}").VIEW
    for path in sorted((Path(qkv.lab.__file__).parent / "views").glob("[a-z]*.py"))
    if "_" not in path.stem
}
KNOWN = {
    "start",
    "walk",
    "scale",
    "cache",
    "plan",
    "kernels",
    "reach",
    "norms",
    "practice",
    "solve",
    "transcript",
    "model",
    "generate",
}
LIGHT = [name for name, view in VIEWS.items() if view.heavy is not True]  # in most of their states, at least
EXAMPLES = 5


@pytest.fixture(scope="module")
def described(lab):
    return json.loads(lab.ask("/api/openapi.json").text)


@pytest.fixture(scope="module")
def schema(lab):
    return schemathesis.openapi.from_url(f"{lab.address}/api/openapi.json")


def test_these_are_the_views():
    assert set(VIEWS) == KNOWN


@pytest.mark.slow
def test_the_description_is_openapi(lab, described, schema):
    answer = lab.ask("/api/openapi.json")
    assert answer.headers.get_content_type() == "application/json"
    assert described["openapi"].startswith(("3.0", "3.1"))
    assert {"title", "version"} <= set(described["info"])
    schema.validate()
    names = [
        operation["operationId"] for operations in described["paths"].values() for operation in operations.values()
    ]
    assert len(names) == len(set(names))


def test_every_view_is_described(described):
    for name, view in VIEWS.items():
        ways = described["paths"][f"/api/{name}"]
        assert {"get", "post"} <= set(ways)
        fields = {field.name for field in view.fields}
        assert {each["name"] for each in ways["get"]["parameters"]} == fields
        for way in (ways["get"], ways["post"]):
            assert {"200", "422"} <= set(way["responses"])
            assert way.get("summary") or way.get("description")


def resolved(described, schema):
    while "$ref" in schema:
        place = described
        for step in schema["$ref"].removeprefix("#/").split("/"):
            place = place[step]
        schema = place
    return schema


@pytest.mark.slow
@pytest.mark.parametrize("name", list(VIEWS))
def test_a_view_answers_as_described(lab, described, name):
    """The default state, by GET and by POST, with every text that GET tells of sent back."""
    way = described["paths"][f"/api/{name}"]["get"]
    promised = resolved(described, way["responses"]["200"]["content"]["application/json"]["schema"])
    whole = {**promised, "components": described.get("components", {})}
    Draft202012Validator.check_schema(promised)
    by_get = lab.ask(f"/api/{name}", seconds=60.0)
    assert by_get.status == 200, by_get.text[:300]
    told = json.loads(by_get.text)
    Draft202012Validator(whole).validate(told)
    assert set(VIEWS[name].schema) == set(told["result"])
    again = lab.ask(f"/api/{name}?{urlencode(told['state'])}", seconds=60.0)
    posted = lab.ask(
        f"/api/{name}", "POST", {"Content-Type": "application/json"}, json.dumps(told["state"]).encode(), 60.0
    )
    for answer in (again, posted):
        assert answer.status == 200, answer.text[:300]
        assert json.loads(answer.text)["state"] == told["state"]
        if not VIEWS[name].heavy:  # what is heavy may be measured
            assert json.loads(answer.text)["python"] == told["python"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("name", LIGHT)
def test_drawn_requests_are_answered_as_described(schema, name, method):
    operation = schema[f"/api/{name}"][method]
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case):
            # What a field allows may not suit the others: a drawn state may be refused, as described.
            # It is answered within the seconds of its view; the start of the process for heavy questions comes on top.
            seconds = 20 + VIEWS[name].seconds
            case.call_and_validate(timeout=seconds, excluded_checks=[positive_data_acceptance])

        check()

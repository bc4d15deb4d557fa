"""The lab for programs: what OpenAPI says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .fields import Field, Flag, Matrix, Words
from .markup import VERSION
from .view import View
from .views import every

LONGEST_IN_ADDRESS = 2000  # characters, each of which may take twelve bytes there
_ENTRY = r"-?[0-9]{1,9}(\.[0-9]{1,9}|/[1-9][0-9]{0,8})?"


def openapi() -> dict[str, Any]:
    """OpenAPI 3.1 of /api: one question for each view, by address or by body."""
    paths = {f"/api/{view.name}": _path(view) for view in every()}
    paths["/api"] = {
        "get": {
            "operationId": "list",
            "summary": "The views, their fields and the defaults",
            "responses": {"200": _json("what there is", {"type": "object", "required": ["views"]})},
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "qkv lab",
            "version": VERSION,
            "description": "What the pages of the lab show, as numbers. Fields that are not given take their defaults.",
        },
        "paths": paths,
        "components": {"schemas": {"Problems": _problems()}},
    }


def listing() -> dict[str, Any]:
    return {
        "views": [
            {
                "name": view.name,
                "title": view.title,
                "verb": view.verb,
                "lead": view.lead,
                "fields": {field.name: field.default_text for field in view.fields},
            }
            for view in every()
        ]
    }


def _path(view: View) -> dict[str, Any]:
    answer = {
        "type": "object",
        "required": ["state", "result", "python"],
        "properties": {
            "state": {"type": "object", "additionalProperties": {"type": "string"}},
            "result": {"type": "object", "required": sorted(view.schema), "properties": dict(view.schema)},
            "python": {"type": "string"},
        },
    }
    problems = {"$ref": "#/components/schemas/Problems"}
    responses = {
        "200": _json("the numbers", answer),
        "400": _json("the body is no JSON object", problems),
        "403": _json("the request comes from a page of another site", problems),
        "408": _json("the request took too long to arrive", problems),
        "413": _json("the request is too large", problems),
        "415": _json("the body is no JSON", problems),
        "421": _json("the request was made to another name than this server's", problems),
        "422": _json("a field, or what fields mean together, cannot be used", problems),
        "503": _json("too much is being computed already, or it took too long", problems),
    }
    body = {
        "type": "object",
        "additionalProperties": False,
        "properties": {field.name: field.schema() | {"description": _said(field)} for field in view.fields},
    }
    common = {"summary": view.lead, "tags": [view.verb], "responses": responses}
    return {
        "get": {"operationId": f"{view.name}_by_address", "parameters": [_parameter(f) for f in view.fields], **common},
        "post": {
            "operationId": f"{view.name}_by_body",
            "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
            **common,
        },
    }


def _parameter(field: Field) -> dict[str, Any]:
    schema = field.schema()
    if isinstance(field, Flag):
        schema = {"type": "string", "enum": ["yes", "no"], "default": field.default_text}
    elif isinstance(field, Words):
        schema |= {"maxLength": min(field.longest, LONGEST_IN_ADDRESS)}  # longer texts go by body
    elif isinstance(field, Matrix):
        row = f"{_ENTRY}(,{_ENTRY}){{0,{field.most_columns - 1}}}"
        schema = {"type": "string", "pattern": f"^{row}(;{row}){{0,{field.most_rows - 1}}}$"}
    return {"name": field.name, "in": "query", "required": False, "description": _said(field), "schema": schema}


def _said(field: Field) -> str:
    return f"{field.label}. {field.help}".strip() if field.help else field.label


def _json(description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": dict(schema)}}}


def _problems() -> dict[str, Any]:
    texts = {"type": "object", "additionalProperties": {"type": "string"}}
    return {"type": "object", "required": ["problems"], "properties": {"problems": texts}}

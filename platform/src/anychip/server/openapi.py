"""Write the OpenAPI document of a table of endpoints, from the models that check requests and write answers.

Knows OpenAPI 3.1; knows no endpoint by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from pydantic.json_schema import models_json_schema

from anychip.server.answers import Health
from anychip.server.errors import ErrorReply
from anychip.server.unknown import HEADER

if TYPE_CHECKING:
    from anychip.server.endpoints import Endpoint

REF = "#/components/schemas/{name}"
MEANINGS = {
    400: "A field is wrong, unknown or not offered; the error names it",
    404: "No model of that name is served here",
    413: "The body is too large",
    415: "The body is no application/json",
    429: "The queue is full; Retry-After says when to come back",
    500: "The engine failed on this request",
    503: "No requests are taken now; /health says why",
}
ABOUT = (
    "A null is the same as an absent field. Fields marked as not offered pass with the values listed, which ask for "
    "nothing. Where the service has API keys, all but /health, /ready and /metrics want one as bearer token."
)

Schema = dict[str, Any]


def write_document(endpoints: Iterable[Endpoint], *, version: str, is_lenient: bool) -> Schema:
    """The document as JSON.

    Args:
        version: of the service.
        is_lenient: unknown fields are ignored, not refused.
    """
    table = tuple(endpoints)
    replies, answers = _answers(table)
    paths: dict[str, Schema] = {}
    for endpoint in table:
        path = re.sub(r"\{(\w+):\w+\}", r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, path, replies)
    schemas = {**_bodies(table, is_lenient), **answers}
    return {
        "openapi": "3.1.0",
        "info": {"title": "anychip", "version": version or "0", "description": ABOUT},
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],  # whether there are keys is the operator's affair
    }


def _bodies(table: Iterable[Endpoint], is_lenient: bool) -> dict[str, Schema]:
    models = [(endpoint.body, "validation") for endpoint in table if endpoint.body is not None]
    _, definitions = models_json_schema(models, ref_template=REF.replace("{name}", "{model}"))  # type: ignore[arg-type]
    schemas: dict[str, Schema] = _without_titles(definitions["$defs"])
    if is_lenient:
        for schema in schemas.values():
            if schema.get("additionalProperties") is False:
                schema["additionalProperties"] = True
    return schemas


def _answers(table: Iterable[Endpoint]) -> tuple[dict[object, Schema], dict[str, Schema]]:
    """A reference for each type of answer, and the schemas referred to."""
    types = [kind for one in table for kind in (one.reply, one.chunk) if kind is not None] + [ErrorReply, Health]
    found, components = msgspec.json.schema_components(types, ref_template=REF)
    return dict(zip(map(str, types), found, strict=True)), _without_titles(components)


def _operation(endpoint: Endpoint, path: str, answers: Mapping[object, Schema]) -> Schema:
    operation: Schema = {
        "operationId": f"{endpoint.method.lower()}{re.sub(r'[^a-z0-9]+', '_', path)}".rstrip("_"),
        "summary": endpoint.summary,
        "responses": _responses(endpoint, answers),
    }
    if names := re.findall(r"\{(\w+)\}", path):
        text = {"type": "string", "minLength": 1}
        operation["parameters"] = [{"name": name, "in": "path", "required": True, "schema": text} for name in names]
    if endpoint.body is not None:
        schema = {"$ref": REF.format(name=endpoint.body.__name__)}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _responses(endpoint: Endpoint, answers: Mapping[object, Schema]) -> dict[str, Schema]:
    whole = {"type": "string"} if endpoint.reply is None else answers[str(endpoint.reply)]
    content = {endpoint.media_type: {"schema": whole}}
    if endpoint.chunk is not None:
        content["text/event-stream"] = {"schema": _event(answers[str(endpoint.chunk)])}
    good: Schema = {"description": "Done", "content": content}
    if endpoint.body is not None:
        said = "The unknown fields that were ignored, where the service is lenient"
        good["headers"] = {HEADER: {"description": said, "schema": {"type": "string"}}}
    error = {"application/json": {"schema": answers[str(ErrorReply)]}}
    own = {"application/json": {"schema": whole}}
    is_health = endpoint.reply is Health
    refusals = {
        str(status): {"description": MEANINGS[status], "content": own if is_health else error}
        for status in endpoint.refusals
    }
    others = {"default": {"description": "Refused", "content": error}}
    return {"200": good, **refusals, **others}


def _event(chunk: Schema) -> Schema:
    """One event of a stream."""
    part = {"type": "string", "contentMediaType": "application/json", "contentSchema": chunk}
    data = {"anyOf": [{"const": "[DONE]", "description": "Of the last event."}, part]}
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}


def _without_titles(schema: Any) -> Any:
    """Names made of names tell nothing."""
    if isinstance(schema, dict):
        return {
            key: _without_titles(value)
            for key, value in schema.items()
            if not (key == "title" and isinstance(value, str))
        }
    return [_without_titles(item) for item in schema] if isinstance(schema, list) else schema


__all__ = ["write_document"]

"""Show an OpenAPI document as one page of HTML that needs no script and nothing from elsewhere. Knows no endpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

Schema = Mapping[str, Any]

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 62rem; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; } h3 { font-size: 1rem; }
code { font-family: ui-monospace, monospace; font-size: .9em; }
summary { cursor: pointer; padding: .4rem 0; }
.method { display: inline-block; min-width: 3.2rem; font-weight: 700; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid #8886; padding: .3rem .6rem .3rem 0; text-align: left; vertical-align: top; }
details > div { padding-left: 1rem; border-left: 3px solid #8886; }
"""


def page_of(document: Schema) -> str:
    """The whole page."""
    info = document["info"]
    operations = "".join(
        _operation(path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    schemas = "".join(_schema(name, schema) for name, schema in document["components"]["schemas"].items())
    title = f"{escape(info['title'])} {escape(info['version'])}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{title}: API</title><link rel="icon" href="data:,"><style>{STYLE}</style></head><body><main>'
        f"<h1>{title}: API</h1><p>{escape(info['description'])}</p>"
        '<p>For programs: <a href="openapi.json">openapi.json</a></p>'
        f"<h2>Endpoints</h2>{operations}<h2>Objects</h2>{schemas}</main></body></html>"
    )


def _operation(path: str, method: str, operation: Schema) -> str:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    takes = "" if body is None else f"<p>Takes {_type(body)}</p>"
    rows = "".join(
        f"<tr><td>{escape(status)}</td><td>{_contents(answer)}</td><td>{escape(answer['description'])}</td></tr>"
        for status, answer in operation["responses"].items()
    )
    return (
        f'<details id="{escape(operation["operationId"])}">'
        f'<summary><span class="method">{escape(method.upper())}</span> '
        f"<code>{escape(path)}</code> {escape(operation['summary'])}</summary><div>{takes}"
        f"{_table(('Status', 'Answer', 'Meaning'), rows)}</div></details>"
    )


def _contents(answer: Schema) -> str:
    return "<br>".join(
        f"{_type(_inner(content['schema']))} as <code>{escape(media_type)}</code>"
        for media_type, content in answer["content"].items()
    )


def _inner(schema: Schema) -> Schema:
    """What the events of a stream hold, or the schema itself."""
    options = schema.get("properties", {}).get("data", {}).get("anyOf", ())
    return next((one["contentSchema"] for one in options if "contentSchema" in one), schema)


def _schema(name: str, schema: Schema) -> str:
    required = schema.get("required", ())
    rows = "".join(
        f"<tr><td><code>{escape(field)}</code></td><td>{_type(one)}</td>"
        f"<td>{'yes' if field in required else ''}</td><td>{escape(_about(one))}</td></tr>"
        for field, one in schema.get("properties", {}).items()
    )
    about = escape(schema.get("description", ""))
    return (
        f'<h3 id="{escape(name)}">{escape(name)}</h3><p>{about}</p>'
        f"{_table(('Field', 'Type', 'Needed', 'Meaning'), rows)}"
    )


def _table(heads: tuple[str, ...], rows: str) -> str:
    head = "".join(f'<th scope="col">{escape(one)}</th>' for one in heads)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _about(schema: Schema) -> str:
    default = schema.get("default")
    said = "" if default in (None, [], {}) else f" Default: {default}."
    return f"{schema.get('description', '')}{said}".strip()


def _type(schema: Schema) -> str:
    """A type in few words, with links to objects."""
    return " or ".join(dict.fromkeys(_words(schema)))


def _words(schema: Schema) -> Iterator[str]:
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        yield f'<a href="#{name}">{name}</a>'
    elif "enum" in schema or "const" in schema:
        for value in schema.get("enum", [schema.get("const")]):
            yield f"<code>{escape(repr(value) if not isinstance(value, (bool, type(None))) else _json(value))}</code>"
    elif "anyOf" in schema and "type" not in schema:
        for one in schema["anyOf"]:
            yield from _words(one)
    elif schema.get("type") == "array":
        yield f"array of ({_type(schema.get('items', {}))})"
    elif "type" in schema:
        yield escape(str(schema["type"])) + _range(schema)
    else:
        yield "anything"


def _json(value: bool | None) -> str:
    return "null" if value is None else str(value).lower()


def _range(schema: Schema) -> str:
    bounds = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    said = [f"{word} {schema[key]:g}" for key, word in bounds.items() if key in schema]
    return f" {' '.join(said)}" if said else ""


__all__ = ["page_of"]

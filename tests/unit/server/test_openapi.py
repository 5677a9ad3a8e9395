"""The API's document: all routes, the fields that are checked, and the answers that come."""

import json
import re

import msgspec
import pytest

from anychip.server import info, native
from anychip.server.answers import (
    Detokenized,
    Flushed,
    Generated,
    Health,
    ModelCard,
    ModelList,
    ServerInfo,
    Tokenized,
)
from anychip.server.app import ROUTES
from anychip.server.endpoints import ENDPOINTS
from anychip.server.errors import ErrorReply
from anychip.server.openai.protocol import ChatMessage, ChatRequest, CompletionRequest, StreamOptions
from anychip.server.openai.replies import ChatReply, TextReply
from support.local_client import Asker

BODIES = (
    *(ChatMessage, ChatRequest, CompletionRequest, StreamOptions),
    *(native.GenerateBody, native.NativeSampling, info.TokenizeBody, info.DetokenizeBody),
)


def document(**settings):
    return Asker(**settings).ask("GET", "/openapi.json").json()


DOCUMENT = document()


def test_the_document_has_every_route_and_no_other():
    routes = {
        (re.sub(":path", "", route.path), method.lower()) for route in ROUTES for method in route.methods - {"HEAD"}
    }
    assert {(path, method) for path, methods in DOCUMENT["paths"].items() for method in methods} == routes


def test_it_says_openapi_3_1_and_the_services_version():
    assert DOCUMENT["openapi"] == "3.1.0"
    assert document(version="7.1")["info"]["version"] == "7.1"


def test_every_reference_leads_somewhere_and_every_operation_has_its_own_name():
    schemas = DOCUMENT["components"]["schemas"]
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(DOCUMENT)))
    assert references
    assert references <= schemas.keys()
    names = [operation["operationId"] for methods in DOCUMENT["paths"].values() for operation in methods.values()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("model", BODIES)
def test_a_body_is_told_with_its_fields_and_all_that_passes(model):
    schema = DOCUMENT["components"]["schemas"][model.__name__]
    assert schema["properties"].keys() == {*model.model_fields, *model.unsupported, *model.ignored}
    assert schema["additionalProperties"] is False
    for name, values in model.unsupported.items():
        assert schema["properties"][name]["enum"] == [*values, None]
    for name, field in model.model_fields.items():
        assert ("null" in json.dumps(schema["properties"][name])) != field.is_required()


def test_ranges_and_limits_are_told():
    chat = DOCUMENT["components"]["schemas"]["ChatRequest"]
    assert chat["required"] == ["messages"]
    assert chat["properties"]["temperature"]["anyOf"] == [
        {"minimum": 0, "maximum": 2, "type": "number"},
        {"type": "null"},
    ]
    assert {"const": -1} in chat["properties"]["max_tokens"]["anyOf"][0]["anyOf"]


def test_a_lenient_service_tells_that_further_fields_pass():
    schemas = document(unknown_fields="lenient")["components"]["schemas"]
    assert {schemas[model.__name__]["additionalProperties"] for model in BODIES} == {True}


ASKED = [
    ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, ChatReply),
    ("POST", "/v1/completions", {"prompt": "hi"}, TextReply),
    ("POST", "/generate", {"text": "hi"}, Generated),
    ("POST", "/generate", {"text": ["hi"]}, list[Generated]),
    ("GET", "/v1/models", None, ModelList),
    ("GET", "/v1/models/stub", None, ModelCard),
    ("POST", "/tokenize", {"prompt": "hi"}, Tokenized),
    ("POST", "/detokenize", {"tokens": [65]}, Detokenized),
    ("GET", "/health", None, Health),
    ("GET", "/server_info", None, ServerInfo),
    ("POST", "/flush_cache", None, Flushed),
    ("POST", "/v1/completions", {"prompt": 5}, ErrorReply),
]


def same(value, kind):
    """Whether the value has exactly the fields of the type."""
    return msgspec.to_builtins(msgspec.convert(value, kind)) == value


@pytest.mark.parametrize(("method", "path", "body", "kind"), ASKED)
def test_what_is_answered_is_what_the_document_tells(method, path, body, kind):
    assert same(Asker().ask(method, path, json=body).json(), kind)


def test_health_is_told_with_progress_while_loading():
    asker = Asker()
    asker.client.state = "loading"
    assert same(asker.ask("GET", "/health").json(), Health)


def test_every_endpoint_with_a_json_answer_was_compared():
    asked = {path for _, path, _, _ in ASKED} | {"/v1/models/{name:path}", "/ready", "/openapi.json"}
    assert {one.path for one in ENDPOINTS if one.reply is not None} <= asked


def test_the_document_is_written_once():
    asker = Asker()
    assert asker.app.state.document() is asker.app.state.document()

"""Requests made up from the API's own document: none brings the server into trouble, and every answer is as told."""

import hypothesis
import pytest

from support.processes import stub_service

pytestmark = pytest.mark.faults
schemathesis = pytest.importorskip("schemathesis", reason="its releases want Python 3.11")

#: all tokens of the stub's vocabulary but those that its core refuses on purpose
CORE = {"reply": [[65], [66]], "model": {"vocab_size": 900, "context_length": 4000}}
EXAMPLES = 40
#: what takes a body, which can be wrong
TAKING = (
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /generate",
    "POST /tokenize",
    "POST /detokenize",
)
OPERATIONS = (
    *TAKING,
    "POST /flush_cache",
    "GET /v1/models",
    "GET /v1/models/{name}",
    "GET /health",
    "GET /ready",
    "GET /metrics",
    "GET /server_info",
    "GET /docs",
)


@pytest.fixture(scope="module", params=["strict", "lenient"])
def service(request):
    with stub_service(core=CORE, settings={"unknown_fields": request.param}) as found:
        found.wait_for("ready")
        yield found


@pytest.fixture(scope="module")
def operations(service):
    document = schemathesis.openapi.from_url(f"{service.url}/openapi.json")
    return {operation.label: operation for operation in (one.ok() for one in document.get_all_operations())}


def checks(mode):
    from schemathesis.specs.openapi import checks as of_documents

    always = [
        schemathesis.checks.not_a_server_error,
        of_documents.status_code_conformance,
        of_documents.content_type_conformance,
        of_documents.response_headers_conformance,
        of_documents.response_schema_conformance,
    ]
    refusals = [of_documents.negative_data_rejection]
    return always + (refusals if mode is schemathesis.GenerationMode.NEGATIVE else [])


def test_the_document_has_these_operations(operations):
    assert set(operations) == set(OPERATIONS)


MODES = [
    *((schemathesis.GenerationMode.POSITIVE, label) for label in OPERATIONS),
    *((schemathesis.GenerationMode.NEGATIVE, label) for label in TAKING),
]


@pytest.mark.parametrize(("mode", "label"), MODES)
def test_every_answer_is_as_the_document_says(service, operations, mode, label):
    operation, wanted, statuses = operations[label], checks(mode), set()

    @hypothesis.seed(13)
    @hypothesis.settings(
        max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def ask(case):
        if mode is schemathesis.GenerationMode.POSITIVE and isinstance(case.body, dict):
            case.body.pop("model", None)  # the document doesn't say which names there are
            if case.body.get("text"):
                case.body.pop("input_ids", None)  # nor that only one of the two is wanted
        response = case.call()
        statuses.add(response.status_code)
        case.validate_response(response, checks=wanted)

    ask()
    if mode is schemathesis.GenerationMode.POSITIVE and label in TAKING:
        assert 200 in statuses
    assert service.health() == "ready"

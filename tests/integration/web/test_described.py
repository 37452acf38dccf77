"""What the API answers is what its OpenAPI document declares."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import hypothesis
import jsonschema  # type: ignore[import-untyped]
import pytest
import schemathesis
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

from kingdom.web.routes import API_ROUTES
from kingdom.web.stream import EVENT_STREAM
from tests.acceptance.sample_store import EVENT, PETITION, TASK, SampleStore, make_sample_store
from tests.contract.backends import BACKENDS
from tests.integration.web.site import Site, serving

CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)
# Ids that exist, so that not every answer is 404.
KNOWN = ("last", TASK, EVENT, PETITION, f"wf-{TASK}", "gen-hello", "court.event")


@pytest.fixture
def sample(realm: Path) -> SampleStore:
    return make_sample_store(realm)


@pytest.fixture
async def site(sample: SampleStore, tmp_path: Path) -> AsyncIterator[Site]:
    backend = BACKENDS["files"](str(sample.realm))
    async with serving(backend, tmp_path) as site:
        yield site
    backend.close()


async def test_the_document_describes_every_route(site: Site) -> None:
    document = (await site.get("/api/v1/openapi.json")).document
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == {(route.method, route.path) for route in API_ROUTES}
    assert document["openapi"] == "3.1.0"


async def test_every_get_route_returns_its_declared_response_from_a_sample_store(
    site: Site, sample: SampleStore
) -> None:
    document = (await site.get("/api/v1/openapi.json")).document
    program = site.bearing(await site.token("ci"))
    found: set[str] = set()
    looking = [route for route in API_ROUTES if route.method == "GET" and route.media != EVENT_STREAM]
    for route in looking:
        responses = document["paths"][route.path]["get"]["responses"]
        for known in (*KNOWN, sample.run, sample.dead) if "{" in route.path else ("",):
            reply = await program.get(re.sub(r"\{\w+\}", known, route.path))
            schema = responses[str(reply.status)]["content"]["application/json"]["schema"]
            jsonschema.validate(reply.document, {**schema, "components": document["components"]})
            found |= {route.path} if reply.status == 200 else set()
    # These routes need a General or a run on a host, which the sample store does not have.
    assert {route.path for route in looking} - found == {
        "/api/v1/generals/{name}",
        "/api/v1/runs/{id}/diff",
        "/api/v1/runs/{id}/checkpoints/{checkpoint}/diff",
    }


@pytest.mark.parametrize("examples", [8, pytest.param(100, marks=pytest.mark.long)])
async def test_generated_requests_get_only_declared_responses(site: Site, sample: SampleStore, examples: int) -> None:
    document = (await site.get("/api/v1/openapi.json")).document
    token = await site.token("ci")
    # This route could end the token of this test, and a stream does not end.
    del document["paths"]["/api/v1/tokens/{name}"], document["paths"]["/api/v1/stream"]
    known = (*KNOWN, sample.run, sample.dead)
    await asyncio.to_thread(_try_everything, document, site.url, token, known, examples)


def _try_everything(document: dict[str, Any], url: str, token: str, known: tuple[str, ...], examples: int) -> None:
    schema: Any = schemathesis.openapi.from_dict(document)
    for result in schema.get_all_operations():
        operation = result.ok()

        @hypothesis.settings(
            max_examples=examples,
            database=None,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy(), pick=hypothesis.strategies.integers(0, 2 * len(known)))
        def try_one(case: Any, pick: int) -> None:
            if case.path_parameters and pick < len(known):
                case.path_parameters = dict.fromkeys(case.path_parameters, known[pick])
            case.call_and_validate(
                base_url=url, headers={"Authorization": f"Bearer {token}"}, checks=CHECKS, timeout=60
            )

        try_one()

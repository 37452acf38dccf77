"""The OpenAPI 3.1 document of the API, generated from the table of routes and the types. This module prints it."""

import re
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

from kingdom.access.settings import COOKIE
from kingdom.views.json_schemas import output_schemas
from kingdom.web.failures import ApiError
from kingdom.web.route import ApiRoute, Audience
from kingdom.web.routes import API_ROUTES
from kingdom.web.stream import EVENT_STREAM

_COMPONENTS = "#/components/schemas/"
_JSON = "application/json"
_PARAMETER = re.compile(r"\{(\w+)\}")
_ERRORS = {
    400: "The request does not fit its type, or contradicts itself.",
    401: "The session or token is missing, unknown, revoked or expired.",
    403: "The right is missing, or the request comes from another site.",
    404: "There is no such thing.",
    408: "The request did not arrive in time.",
    409: "The current state does not allow the request.",
    413: "The request is too large.",
    500: "The server failed.",
    502: "An external program failed.",
    503: "The store cannot be reached, or the server cannot do this now; try again later.",
}
_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "A request with the key of an earlier request returns the earlier response and does nothing.",
    "schema": {"type": "string", "maxLength": 200},
}

_LAST_EVENT = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "The id of the last message that the client has; it takes precedence over `after`.",
    "schema": {"type": "string"},
}


@cache
def document() -> bytes:
    """Return the document as JSON."""
    every, shapes = output_schemas([route.result for route in API_ROUTES] + [ApiError], _COMPONENTS)
    bodies = [route.body for route in API_ROUTES if route.body]
    body_schemas, body_shapes = msgspec.json.schema_components(bodies, ref_template=f"{_COMPONENTS}{{name}}")
    of_body = dict(zip(bodies, body_schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route, result in zip(API_ROUTES, every, strict=False):
        operation = _operation(route, result, of_body.get(route.body) if route.body else None)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    made = {
        "openapi": "3.1.0",
        "info": {
            "title": "Kingdom",
            "version": "1",
            "description": "The nouns, verbs and shapes are those of the command line and its --json.",
        },
        "paths": paths,
        "components": {
            "schemas": {**body_shapes, **shapes},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": COOKIE},
            },
        },
    }
    return msgspec.json.format(msgspec.json.encode(made, order="deterministic"), indent=2) + b"\n"


def _operation(route: ApiRoute, result: dict[str, Any], body: dict[str, Any] | None) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": list(_parameters(route)),
        "responses": {
            "200": {"description": "Success.", "content": {route.media: {"schema": result}}},
            **dict(_failures(route)),
        },
        "x-right": str(route.right),
    }
    if body:
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": body}}}
    if route.right is not Audience.EVERYONE:
        operation["security"] = [{"token": []}, {"session": []}]
    return operation


def _parameters(route: ApiRoute) -> Iterator[dict[str, Any]]:
    for name in _PARAMETER.findall(route.path):
        schema = {"type": "string", "minLength": 1, "maxLength": 200}
        yield {"name": name, "in": "path", "required": True, "schema": schema}
    if route.query:
        _, shapes = msgspec.json.schema_components([route.query], ref_template="{name}")
        for name, schema in shapes[route.query.__name__]["properties"].items():
            yield {"name": name, "in": "query", "schema": _inlined(schema, shapes)}
    if route.media == EVENT_STREAM:
        yield _LAST_EVENT
    if route.takes_key:
        yield _KEY


def _inlined(schema: dict[str, Any], shapes: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a query parameter without references, and without null, which a parameter cannot be."""
    choices = [each for each in schema.get("anyOf", []) if each != {"type": "null"}]
    if len(choices) == 1:
        return _inlined(choices[0], shapes)
    made = dict(shapes[schema["$ref"]]) if "$ref" in schema else {**schema}
    made.pop("title", None)
    if "items" in made:
        made["items"] = _inlined(made["items"], shapes)
    return made


def _failures(route: ApiRoute) -> Iterator[tuple[str, Any]]:
    statuses = {400, 401, 403, 500, 503}
    if _PARAMETER.search(route.path):
        statuses |= {404, 502}
    if route.method != "GET":
        statuses |= {404, 408, 409, 413, 502}
    for status in sorted(statuses):
        schema = {"$ref": f"{_COMPONENTS}{ApiError.__name__}"}
        yield str(status), {"description": _ERRORS[status], "content": {_JSON: {"schema": schema}}}


if __name__ == "__main__":
    sys.stdout.write(document().decode())

"""Requests that were made up: whatever comes, each answer is one that the surface documents."""

from __future__ import annotations

from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, assume, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CheckFunction
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from tests.serve.kit import Site
from tests.serve.surface import SURFACE

OPERATIONS = [(path, method.upper()) for path, methods in SURFACE["paths"].items() for method in methods]


def names_are_unique(body: Any) -> bool:
    """What no schema can say of tools."""
    tools = (isinstance(body, dict) and body.get("tools")) or []
    names = [tool.get("name") or tool["function"]["name"] for tool in tools]
    return len(names) == len(set(names))


@pytest.mark.parametrize("mode", GenerationMode, ids=lambda mode: mode.value)
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_whatever_is_asked_the_answer_is_one_that_is_documented(
    running: Site, path: str, method: str, mode: GenerationMode
) -> None:
    """No 500, no hang, each error in the shape of its wire, the run id on each answer; what is no request is refused."""
    # a position in a run is one only beside the id of that run, which a document cannot say
    excluded: list[CheckFunction] = [positive_data_acceptance] if path.endswith("/events") else []
    if path.endswith(("/retry", "/cancel")):
        excluded.append(negative_data_rejection)  # they have all they need, and read no body
    operation = schemathesis.openapi.from_dict(SURFACE)[path][method]
    asked: list[int] = []
    before = len(running.log())

    with requests.Session() as http:

        @settings(
            max_examples=100,
            derandomize=True,
            suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
        )
        @given(operation.as_strategy(mode))
        def check(case: schemathesis.Case) -> None:
            assume(mode is GenerationMode.NEGATIVE or names_are_unique(case.body))
            answer = case.call(base_url=running.url, session=http, timeout=60)
            asked.append(answer.status_code)
            case.validate_response(answer, excluded_checks=excluded)

        check()

    assert len(asked) >= 70 and max(asked) < 500
    said = running.log()[before:]
    assert "Traceback" not in said and "[error" not in said

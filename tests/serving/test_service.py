"""The HTTP service in this process: its OpenAPI document holds for what it does, and
its errors say rule and cure."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.federation.small import frames

from colonnade.errors import (
    BudgetExhausted,
    ColonnadeError,
    DataError,
    NoAnswer,
    PartyError,
)
from colonnade.serving.batcher import Batcher, Busy, Unknown
from colonnade.serving.limits import Limits
from colonnade.serving.service import Pulse, application, as_problem
from colonnade.serving.source import Row, Source

IDS = sorted(frames()["lab"]["patient"])
TOKEN = "a-token-of-some-length"
Call = Callable[..., httpx.Response]


class Failing(Source):
    """A real source that can be told to fail."""

    error: Exception | None = None
    up: bool = True

    def ask(self, ids: Any) -> list[Row]:
        if self.error is not None:
            raise self.error
        return super().ask(ids)

    def heartbeat(self) -> dict[str, bool]:
        return {**super().heartbeat(), "lab": self.up}


class Service:
    """A client of one application."""

    def __init__(self, source: Failing, limits: Limits, **batcher: Any) -> None:
        self.source = source
        self.batcher = Batcher(source, window=0, **batcher)
        self.app = application(self.batcher, limits)

    def __call__(self, method: str, path: str, **how: Any) -> httpx.Response:
        async def call() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://desk"
            ) as client:
                return await client.request(method, path, **how)

        return asyncio.run(call())

    def predict(self, ids: list[Any]) -> httpx.Response:
        return self("POST", "/predict", json={"ids": ids})


@pytest.fixture
def serve(finished: Path) -> Iterator[Callable[..., Service]]:
    made: list[Service] = []

    def start(limits: Limits | None = None, **batcher: Any) -> Service:
        made.append(Service(Failing(finished / "run"), limits or Limits(), **batcher))
        return made[-1]

    yield start
    for one in made:
        one.batcher.close()


def test_predictions_are_the_federations_own(serve: Callable[..., Service]) -> None:
    service = serve()
    wanted = [IDS[5], IDS[0], IDS[5]]
    told = service.predict(wanted).json()
    expected = service.source.federation.predict([IDS[5], IDS[0]])
    assert [row["id"] for row in told["predictions"]] == wanted
    assert [
        list(row["scores"].values()) for row in told["predictions"][:2]
    ] == expected.scores.tolist()
    assert [
        row["prediction"] for row in told["predictions"][:2]
    ] == expected.labels.tolist()
    assert told["degraded"] == 0


def test_the_openapi_document_describes_what_is_answered(
    serve: Callable[..., Service],
) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    service = serve(Limits(rows=5))
    document = service("GET", "/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    for ref in re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(document)):
        found = document
        for step in ref.split("/"):
            found = found[step]
    driven = {
        ("/predict", "post", 200): service.predict(IDS[:2]),
        ("/predict", "post", 404): service.predict(["nobody"]),
        ("/predict", "post", 413): service.predict(IDS[:6]),
        ("/predict", "post", 422): service("POST", "/predict", content=b"{"),
        ("/health", "get", 200): service("GET", "/health"),
        ("/metrics", "get", 200): service("GET", "/metrics"),
    }
    assert {(path, method) for path, method, _ in driven} == {
        (path, method)
        for path, methods in document["paths"].items()
        for method in methods
    }
    for (path, method, status), response in driven.items():
        assert response.status_code == status
        (kind, content), *_ = document["paths"][path][method]["responses"][str(status)][
            "content"
        ].items()
        assert response.headers["content-type"].startswith(kind)
        if kind == "application/json":
            jsonschema.validate(
                response.json(),
                {**content["schema"], "components": document["components"]},
            )
    asked = document["paths"]["/predict"]["post"]["requestBody"]["content"][
        "application/json"
    ]["schema"]
    for body, right in (
        ({"ids": ["17", 3]}, True),
        ({"ids": []}, False),
        ({"ids": [1.5]}, False),
        ({}, False),
    ):
        valid = jsonschema.Draft202012Validator(
            {**asked, "components": document["components"]}
        ).is_valid(body)
        assert valid is right
        assert (service("POST", "/predict", json=body).status_code != 422) is right
    for path in ("/docs", "/redoc"):  # they would load scripts from elsewhere
        assert service("GET", path).status_code == 404
    assert "http" not in re.sub(r"http://desk/\w+", "", service("GET", "/").text)


@pytest.mark.parametrize(
    "kind", ["application/x-www-form-urlencoded", "text/plain", "application/json"]
)
def test_who_forgets_the_header_is_told_of_it(
    kind: str, serve: Callable[..., Service]
) -> None:
    # what curl -d sends, without -H
    sent = '{"ids": ' + ("[" if kind == "application/json" else '["P001"]}')
    told = serve()("POST", "/predict", content=sent, headers={"Content-Type": kind})
    cure = (
        "See /openapi.json."
        if "json" in kind
        else "Send it with the header Content-Type: application/json."
    )
    assert (told.status_code, told.json()["cure"]) == (422, cure)


ERRORS: list[tuple[Exception, int, str]] = [
    (BudgetExhausted("'lab' will not release"), 403, "budget"),
    (
        NoAnswer("lab", "Embed", "predict[0:1]", "private text"),
        503,
        "'lab' does not answer",
    ),
    (
        PartyError("lab", "Embed", "predict[0:1]", "private text", private=True),
        502,
        "'lab' failed",
    ),
    (
        DataError("1 of 1 ids are not among the rows, such as 'private text'"),
        404,
        "any more",
    ),
    (ValueError("private text"), 500, "something of ours failed"),
    (ColonnadeError("private text"), 500, "something of ours failed"),
]


@pytest.mark.parametrize(("error", "status", "words"), ERRORS)
def test_errors_have_a_status_a_rule_and_a_cure(
    error: Exception, status: int, words: str, serve: Callable[..., Service]
) -> None:
    service = serve()
    service.source.error = error
    response = service.predict(IDS[:1])
    assert response.status_code == status
    assert words in response.json()["error"]
    assert {"error", "rule", "cure"} <= set(response.json())
    assert "private text" not in response.text
    assert ("retry-after" in response.headers) == (status == 503)


def test_what_is_unknown_is_counted_and_not_named(
    serve: Callable[..., Service],
) -> None:
    response = serve().predict(["nobody", IDS[0], "no one"])
    assert (
        response.status_code,
        response.json()["unknown"],
        response.json()["asked"],
    ) == (404, 2, 3)
    assert "nobody" not in response.text
    assert "lab" not in response.text
    problem = as_problem(Unknown(2, 3))
    assert problem.status == 404
    assert [as_problem(one).status for one in (Busy("x"), TimeoutError())] == [503, 503]


def test_a_service_that_may_name_unknown_ids_predicts_the_others(
    serve: Callable[..., Service],
) -> None:
    service = serve(name_missing=True)
    response = service.predict(["nobody", IDS[0], "no one"])
    told = response.json()
    assert (response.status_code, told["unknown"]) == (200, 2)
    assert [row["id"] for row in told["predictions"]] == ["nobody", IDS[0], "no one"]
    lost, found, _ = told["predictions"]
    assert (lost["prediction"], lost["scores"], lost["missing"]) == (None, {}, [])
    assert found == service.predict(IDS[:1]).json()["predictions"][0]
    assert service.predict(["nobody"]).status_code == 404


def test_health_says_whether_rows_can_be_predicted_and_to_whom_who_answers(
    serve: Callable[..., Service],
) -> None:
    service = serve(Limits(token=TOKEN))
    assert service("GET", "/health").json() == {"status": "ready"}
    known = {"Authorization": f"Bearer {TOKEN}"}
    told = service("GET", "/health", headers=known).json()
    assert told == {
        "status": "ready",
        "parties": {"clinic": True, "lab": True},
        "tables": "current",
    }
    assert service("GET", "/metrics").status_code == 401
    assert (
        'colonnade_party_up{party="lab"} 1'
        in service("GET", "/metrics", headers=known).text
    )
    away = serve()
    away.source.up = False
    assert (
        away("GET", "/health").status_code,
        away("GET", "/health").json()["status"],
    ) == (503, "unavailable")


def test_a_pulse_is_taken_once_in_a_while() -> None:
    taken = []

    def beat() -> dict[str, bool]:
        taken.append(1)
        return {"lab": True}

    pulse = Pulse(beat, every=60)
    assert [pulse.now() for _ in range(3)] == [{"lab": True}] * 3
    assert len(taken) == 1

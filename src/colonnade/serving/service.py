"""The HTTP service in front of a batcher: POST /predict, GET /health, /metrics,
/openapi.json and a page that says so.

There is no Swagger page: it would be loaded from somewhere else. Needs the extra
`serve`.

Status: 403 a privacy budget is spent, and asking again changes nothing; 404 some ids
cannot be predicted (how many, not which) or, where the service names these, none can;
429 a caller asked for too many ids that nobody holds; 502 a party failed; 503 one did not
answer, or too many requests wait: ask again later.
"""

import asyncio
import html
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictInt, StrictStr
from starlette.exceptions import HTTPException

from colonnade import __version__
from colonnade.alignment.keys import row_names
from colonnade.errors import (
    BudgetExhausted,
    ColonnadeError,
    DataError,
    NoAnswer,
    PartyError,
)
from colonnade.serving.batcher import Batcher, Busy, Unknown
from colonnade.serving.connections import Connection, OpenConnections, address_group
from colonnade.serving.limits import App, Gate, Limits, Probing, Problem, internal
from colonnade.serving.source import repeating


def not_blank(text: str) -> str:
    """Refuse an id of nothing but spaces, which no table has; Python knows more of them
    than a regular expression."""
    if not text.strip():
        raise ValueError("an id is not blank")
    return text


Text = Annotated[
    StrictStr,
    Field(min_length=1, max_length=256, pattern=r"^[^\x00]+$"),
    AfterValidator(not_blank),
]
Id = Text | StrictInt
"""Without NUL: arrays of text drop it at an end, so "17" and "17" with NULs would be
the same row."""


class Asked(BaseModel):
    """Rows to predict."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"ids": ["17", "23"]}]}
    )

    ids: list[Id] = Field(
        min_length=1, description="Their ids; whole numbers stand for their digits."
    )


class Prediction(BaseModel):
    """The prediction for one row."""

    id: str
    prediction: Any = Field(
        description=(
            "The predicted label, or the value itself; null where the row cannot be"
            " predicted."
        )
    )
    scores: dict[str, float | None] = Field(
        description=(
            "A score per class, of two classes the positive one first; empty where the"
            " label is a number."
        )
    )
    answered: list[str] = Field(description="The parties that answered for this row.")
    missing: list[str] = Field(
        description="Those that did not: the prediction is degraded."
    )


class Answer(BaseModel):
    """Predictions, in the order of the ids."""

    predictions: list[Prediction]
    degraded: int = Field(description="How many rows were answered without some party.")
    unknown: int = Field(
        description=(
            "How many rows cannot be predicted. More than 0 only where the service names"
            " them; else the request is refused."
        )
    )


class Trouble(BaseModel):
    """What every error is sent as."""

    error: str
    rule: str
    cure: str


class Health(BaseModel):
    """Alive is who answers; ready is who can predict."""

    status: str = Field(
        description=(
            "ready, degraded (a party is missing, which is allowed), or unavailable"
        )
    )
    parties: dict[str, bool] | None = Field(
        default=None, description="Who answers; told to those with the token."
    )
    tables: str | None = Field(
        default=None,
        description="current; or old, where a changed file cannot be used.",
    )


HEARTBEAT = 2.0
"""Seconds for which the last heartbeat counts: monitors may ask often."""
GRACE = 30
"""Seconds for requests under way when the service is stopped."""
LOOK = 0.2
"""Seconds between two checks whether the service is over."""

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Colonnade</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:44rem;margin:3rem auto;padding:0 1rem}}
pre{{background:#8881;padding:.8rem;overflow:auto}}</style>
<h1>Predictions of {owner}</h1>
<p>{algorithm}, with {parties}. A request has at most {rows} rows.</p>
<pre>curl -s {url}/predict -H 'Content-Type: application/json'{token} -d '{{"ids": ["…"]}}'</pre>
<p><a href="health">health</a> · <a href="metrics">metrics</a> · <a href="openapi.json">OpenAPI</a></p></html>
"""


def application(batcher: Batcher, limits: Limits) -> App:
    """The ASGI application; when it ends, the batcher is closed."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(batcher.close)

    app = FastAPI(
        title="Colonnade",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    _add_errors(app)
    _add_predict(app, batcher, limits)
    _add_state(app, batcher)
    _add_page(app, batcher, limits)
    return Gate(app, limits, batcher.metrics)


def _add_errors(app: FastAPI) -> None:
    """Answer every error with a rule and a cure, and quote nothing that was sent."""

    @app.exception_handler(Problem)
    async def problem(_: Request, error: Problem) -> JSONResponse:
        return JSONResponse(error.body, error.status, error.headers)

    @app.exception_handler(Exception)  # the gate logs it
    async def internal_error(request: Request, _: Exception) -> JSONResponse:
        error = internal(request.scope["reference"])
        return JSONResponse(error.body, error.status)

    @app.exception_handler(RequestValidationError)
    # its own text quotes it
    async def bad_request(asked: Request, _: RequestValidationError) -> JSONResponse:
        rule = (
            'The body is JSON with a list of ids, each text or a whole number: {"ids":'
            ' ["17", "23"]}.'
        )
        is_json = "json" in asked.headers.get("content-type", "")
        cure = (
            "See /openapi.json."
            if is_json
            else "Send it with the header Content-Type: application/json."
        )
        body = {"error": "this is no request of ours", "rule": rule, "cure": cure}
        return JSONResponse(body, 422)

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> JSONResponse:
        rule = "There are POST /predict and GET /health, /metrics, /openapi.json."
        body = {"error": str(error.detail), "rule": rule, "cure": "See /openapi.json."}
        return JSONResponse(body, error.status_code, error.headers)


def _add_predict(app: FastAPI, batcher: Batcher, limits: Limits) -> None:
    """Add POST /predict."""
    troubles: dict[int | str, dict[str, Any]] = {
        status: {"model": Trouble}
        for status in (401, 403, 404, 408, 413, 422, 429, 500, 502, 503)
    }

    @app.post(
        "/predict", response_model=Answer, responses=troubles, operation_id="predict"
    )
    async def predict(asked: Asked, request: Request) -> JSONResponse:
        """Predict rows by id."""
        ids = [str(id_) for id_ in asked.ids]
        request.scope["rows"] = len(ids)
        if len(ids) > limits.rows:
            rule = f"A request has at most {limits.rows} rows."
            raise Problem(
                413, f"{len(ids)} rows are too many", rule, "Ask in several requests."
            )
        caller = (
            address_group(request.client.host) if request.client is not None else ""
        )
        try:
            keys = row_names(batcher.source.settings, ids)
            rows = await asyncio.wait_for(
                asyncio.wrap_future(batcher.ask(keys, caller)), batcher.patience
            )
        except (ColonnadeError, TimeoutError) as error:
            raise as_problem(error) from None
        predictions = []
        for id_, row in zip(ids, rows, strict=True):
            told = asdict(row) | {"id": id_}
            del told["is_unknown"]
            predictions.append(told)
        return JSONResponse(
            {
                "predictions": predictions,
                "degraded": sum(bool(row.missing) for row in rows),
                "unknown": sum(row.is_unknown for row in rows),
            }
        )


def _add_state(app: FastAPI, batcher: Batcher) -> None:
    """Add GET /health and /metrics."""
    source, pulse = batcher.source, Pulse(batcher.source.heartbeat)

    @app.get(
        "/health",
        response_model=Health,
        responses={503: {"model": Health}},
        operation_id="health",
    )
    async def health(request: Request) -> JSONResponse:
        """Whether rows can be predicted now; with the token, who answers."""
        parties = await asyncio.to_thread(pulse.now)
        allowed = source.settings.may_lack
        ready = all(parties.values()) or (allowed and any(parties.values()))
        status = (
            "ready" if all(parties.values()) else "degraded" if ready else "unavailable"
        )
        answer: dict[str, Any] = {"status": status}
        if request.scope["trusted"]:
            answer |= {
                "parties": parties,
                "tables": "old" if source.failed else "current",
            }
        return JSONResponse(answer, 200 if ready else 503)

    @app.get(
        "/metrics",
        response_class=PlainTextResponse,
        responses={401: {"model": Trouble}},
        operation_id="metrics",
    )
    async def metrics() -> PlainTextResponse:
        """Counters for Prometheus."""
        up = await asyncio.to_thread(pulse.now)
        gauges: dict[str, list[tuple[dict[str, str], float]]] = {
            "party_up": [
                ({"party": name}, float(answers)) for name, answers in up.items()
            ],
            "budget_left_epsilon": [
                ({"party": name}, left) for name, left in source.budgets().items()
            ],
            "waiting": [({}, float(batcher.waiting))],
        }
        return PlainTextResponse(
            batcher.metrics.text(gauges), media_type="text/plain; version=0.0.4"
        )


def _add_page(app: FastAPI, batcher: Batcher, limits: Limits) -> None:
    """Add GET /, a page that says how to ask."""
    source = batcher.source

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page(request: Request) -> HTMLResponse:
        words = {
            "owner": source.label_owner,
            "algorithm": source.settings.algorithm,
            "parties": ", ".join(source.parties),
            "rows": str(limits.rows),
            "url": str(request.base_url).rstrip("/"),
            "token": " -H 'Authorization: Bearer TOKEN'" if limits.token else "",
        }
        return HTMLResponse(
            PAGE.format(
                **{name: html.escape(text, quote=False) for name, text in words.items()}
            )
        )


def as_problem(error: Exception) -> Problem:
    """The answer to a caller for an error; never with a text that may quote data."""
    if isinstance(error, Unknown):
        rule = (
            "A row is predicted where every party holds it, or somebody where the model"
            " can do without the others."
        )
        cure = (
            "Ask for rows that all parties hold. Ask one at a time to find out; such"
            " requests are counted. Whoever runs the service may let it name them and"
            " predict the others (name_missing)."
        )
        return Problem(
            404, str(error), rule, cure, unknown=error.unknown, asked=error.asked
        )
    if isinstance(error, BudgetExhausted):
        rule = "A party releases what its budget covers, row by row, and no more."
        cure = (
            "These rows cannot be asked for again. The party's owner may raise its"
            " budget."
        )
        return Problem(403, "a privacy budget is spent", rule, cure)
    if isinstance(error, Probing):
        rule = (
            "Parties let so many ids a day be compared with theirs, so a caller may ask"
            " for few that nobody holds."
        )
        cure = (
            "Ask for fewer new ids at a time, and for ids that all parties hold; or"
            " tomorrow (UTC)."
        )
        return Problem(
            429, "too many ids that may be unknown", rule, cure, {"Retry-After": "3600"}
        )
    if isinstance(error, (Busy, TimeoutError)):
        rule = (
            "A request waits for its turn, as long as not too many others do, and not"
            " for ever."
        )
        return Problem(
            503, "too busy, or stopping", rule, "Ask again later.", {"Retry-After": "1"}
        )
    if isinstance(error, NoAnswer):
        rule = (
            'Every party must answer, unless [federation] on_missing is "skip" or'
            ' "stale".'
        )
        return Problem(
            503,
            f"'{error.party}' does not answer",
            rule,
            "Ask again later.",
            {"Retry-After": "5"},
        )
    if isinstance(error, PartyError):
        rule = "Every party must answer. Its own log says why it did not."
        return Problem(
            502, f"'{error.party}' failed", rule, "Tell whoever runs the service."
        )
    # a table has changed between the question and the answer
    if isinstance(error, DataError):
        return Problem(
            404,
            "some ids cannot be predicted any more",
            "A table has changed.",
            "Ask again.",
        )
    raise error


class Pulse:
    """Which parties answer; they are asked again only after a while."""

    def __init__(
        self, beat: Callable[[], dict[str, bool]], every: float = HEARTBEAT
    ) -> None:
        self.beat = beat
        self.every = every
        self.at = -every
        self.last = dict[str, bool]()

    def now(self) -> dict[str, bool]:
        if time.monotonic() - self.at >= self.every or not self.last:
            self.last = self.beat()
            self.at = time.monotonic()
        return self.last


def serve(batcher: Batcher, limits: Limits, listener: socket.socket) -> None:
    """Answer until SIGTERM or SIGINT; then finish what is under way and return."""
    before = {
        signal_: signal.signal(signal_, lambda *_: None)
        for signal_ in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        # in the end it gives the signal on to our handlers
        _server(batcher, limits, GRACE).run(sockets=[listener])
    finally:
        for signal_, handler in before.items():
            signal.signal(signal_, handler)


def serve_until(
    batcher: Batcher,
    limits: Limits,
    listener: socket.socket,
    over: Callable[[], bool],
    *,
    grace: int = GRACE,
) -> None:
    """Answer as `serve` does, in any thread, until `over()`."""
    server = _server(batcher, limits, grace)

    def look() -> None:
        if over():
            server.should_exit = True

    with repeating(look, LOOK, "over"):
        server.run(sockets=[listener])


THIS_MACHINE = "127.0.0.1,::1"
"""Addresses whose X-Forwarded-For is believed, where there is a proxy."""


def _server(batcher: Batcher, limits: Limits, grace: int) -> uvicorn.Server:
    connections = OpenConnections(limits, batcher.most_waiting + 100)
    config = uvicorn.Config(
        application(batcher, limits),
        http=type("Connection", (Connection,), {"open_connections": connections}),
        ws="none",
        log_level=logging.ERROR,  # lower levels log whatever anybody sends
        access_log=False,  # it would log paths as they are sent; the gate has its own
        server_header=False,
        timeout_graceful_shutdown=grace,
        # Anybody can send X-Forwarded-For. Of a proxy's, the last address is believed.
        proxy_headers=limits.proxy,
        forwarded_allow_ips=THIS_MACHINE,
    )
    return uvicorn.Server(config)

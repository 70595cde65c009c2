"""Put an appointment into a calendar: the client chooses the name of the object, so the destination itself refuses the second one.

`PUT` with `If-None-Match: *` creates and never overwrites: a second request under the same name is answered with 412. What the 412 does not
say is whose object is there; the probe reads it and compares.
"""

import base64
import os
from datetime import timedelta
from http.client import HTTPConnection
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from settled import App, EffectRejected, NotSent, ProbeResult, RetryPolicy

app = App()  # which ledger: SETTLED_DATABASE, settled.toml or ./settled.db

EVENT = """\
BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//settled//example//EN
BEGIN:VEVENT
UID:{uid}
DTSTAMP:20260101T000000Z
DTSTART:{start}
SUMMARY:{title}
END:VEVENT
END:VCALENDAR
"""


class Answer(NamedTuple):
    status: int
    text: str
    etag: str | None


def uid_of(arguments: dict[str, Any]) -> str:
    return f"booking-{arguments['booking']}"


@app.effect(
    name="book_appointment",
    operation_id=lambda arguments: f"booking:{arguments['booking']}",
    provider_reference=uid_of,
    # The name is the key. It never expires: as long as the object is there, the second PUT is refused.
    provider_idempotency_key=uid_of,
    provider_idempotency_guaranteed=True,
    risk="medium",
    timeout=10.0,
    kill_grace=0.5,
    probe_timeout=5.0,
    retry=RetryPolicy(max_attempts=3),
    network_drain=timedelta(seconds=2),  # enough on one machine; keep the default of 120 s for a real network
    commit_horizon=timedelta(seconds=5),
    read_lag=timedelta(seconds=5),
)
def book_appointment(arguments: dict[str, Any], ctx: Any) -> dict[str, Any]:
    uid = uid_of(arguments)
    body = EVENT.format(uid=uid, start=arguments["start"], title=arguments["title"]).replace("\n", "\r\n")
    answer = call("PUT", path_of(uid), body, {"If-None-Match": "*"})
    if answer.status == 412:
        return look_before_a_412_is_believed(arguments)
    if answer.status in (400, 401, 403, 409, 415, 507):
        raise EffectRejected(f"the calendar refused it with {answer.status}")
    if answer.status != 201:
        raise RuntimeError(f"the calendar answered {answer.status}, which proves nothing")
    return {"uid": uid, "etag": answer.etag}


def look_before_a_412_is_believed(arguments: dict[str, Any]) -> dict[str, Any]:
    """Something has this name. It is ours if it says what we wanted to say; if not, nobody can tell what became of ours."""
    uid = uid_of(arguments)
    found = call("GET", path_of(uid))
    if found.status == 200 and says(found.text, arguments):
        return {"uid": uid, "etag": found.etag}
    raise RuntimeError("an object of this name is there, and it is not this appointment")


@book_appointment.probe
def find_appointment(arguments: dict[str, Any]) -> ProbeResult:
    uid = uid_of(arguments)
    found = call("GET", path_of(uid))
    facts = {"source": "GET", "status": found.status}
    if found.status == 200:
        if not says(found.text, arguments):
            return ProbeResult.unknown(evidence={**facts, "why": "something else has our name"})
        return ProbeResult.committed(
            reference=uid, provider_operation_id=found.etag, output={"uid": uid, "etag": found.etag}, evidence=facts
        )
    if found.status != 404:
        return ProbeResult.unknown(evidence=facts)
    control = call("PROPFIND", collection(), headers={"Depth": "0"})  # the calendar itself is surely there
    # Not terminal: CalDAV has no way to say that a request which was accepted and is not shown yet cannot be applied any more.
    return ProbeResult.not_committed(healthy=control.status == 207, reference=uid, evidence=facts)


def says(text: str, arguments: dict[str, Any]) -> bool:
    lines = {line.strip() for line in text.splitlines()}
    return {f"UID:{uid_of(arguments)}", f"SUMMARY:{arguments['title']}", f"DTSTART:{arguments['start']}"} <= lines


def collection() -> str:
    return os.environ.get("CALDAV_COLLECTION", "/agent/calendar/")


def path_of(uid: str) -> str:
    return f"{collection()}{uid}.ics"


def call(method: str, path: str, body: str | None = None, headers: dict[str, str] | None = None) -> Answer:
    """One request, never repeated. Raises NotSent where the connection was refused, else what went wrong as it is."""
    connection = HTTPConnection(urlsplit(os.environ["CALDAV_URL"]).netloc, timeout=8)
    login = base64.b64encode(b"agent:secret").decode()
    try:
        try:
            connection.connect()
        except ConnectionRefusedError as refusal:
            raise NotSent("nothing listens at the address of the calendar") from refusal
        connection.request(method, path, body, {"Authorization": f"Basic {login}", "Content-Type": "text/calendar", **(headers or {})})
        reply = connection.getresponse()
        return Answer(reply.status, reply.read().decode(), reply.getheader("ETag"))
    finally:
        connection.close()

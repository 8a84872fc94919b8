"""What a site and its machines tell each other, as bytes."""

from __future__ import annotations

import msgspec

from gridweave.site.live_messages import Order, Report

ENCODER = msgspec.msgpack.Encoder()
ORDERS: msgspec.msgpack.Decoder[list[Order]] = msgspec.msgpack.Decoder(list[Order])
REPORTS: msgspec.msgpack.Decoder[list[Report]] = msgspec.msgpack.Decoder(list[Report])

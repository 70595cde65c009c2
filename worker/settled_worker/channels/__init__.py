"""The channels: ways to reach people. Each sends one notification within its time limit, or says why it could not."""

from settled_worker.channels.making import make_channel, make_channels, trouble_with
from settled_worker.channels.message import Channel, DeliveryFailedError, Message

__all__ = ["Channel", "DeliveryFailedError", "Message", "make_channel", "make_channels", "trouble_with"]

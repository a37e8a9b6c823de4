"""Words to a service manager (systemd, `Type=notify`), where one asks for them in the environment. See sd_notify(3)."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping

__all__ = ["ServiceManager"]


class ServiceManager:
    """Sends nothing where NOTIFY_SOCKET is not set; a manager that is gone is no fault.

    Args:
        environment: of this process.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        usec, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
        is_mine = not pid or pid == str(os.getpid())
        self.period_s = int(usec) / 2e6 if self._address and is_mine and usec.isdigit() and int(usec) else None
        """Seconds between two `alive`, half of what the manager allows; None: it does not watch."""

    def ready(self, status: str) -> None:
        self._send(f"READY=1\nSTATUS={status}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(text.encode(), socket.MSG_DONTWAIT, self._address)

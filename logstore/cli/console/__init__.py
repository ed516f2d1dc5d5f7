"""The console: pages for a browser, and a JSON API, in a broker's HTTP port (docs/console.md).

    browser ─▶ Site (who may ask, static files) ─▶ Api ─▶ Desk ─▶ the brokers, by Kafka's requests
                                                    └───▶ Local: what this broker alone knows

It asks brokers as the operators' verbs do, in threads of its own, and decides with the same functions: what
`why`, `health` and `timeline` say, the console says. The event loop of the broker serves its requests like
those of any client.
"""

from __future__ import annotations

from logstore.cli.console.console import ConsoleOptions, open_console

__all__ = ["ConsoleOptions", "open_console"]

"""A real Chromium, by selenium, and three real brokers with consoles."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from logstore.broker.blocking import BlockingClient
from logstore.cli import local_cluster
from logstore.cli.broker_operator import BrokerOperator
from logstore.cli.brokers import Brokers
from logstore.cli.cluster_file import existing
from logstore.cli.operating import wait_until
from logstore.disk.topic_partition import TopicPartition

AXE = Path(__file__).parent / "axe" / "axe.min.js"
PATIENCE_S = 60.0
SETTINGS = {
    "zookeeper.session.timeout.ms": "30000",  # a broker that is killed stays registered while it is looked at
    "group.initial.rebalance.delay.ms": "0",
}


class Browser:
    """A window of Chromium at a console."""

    def __init__(self, driver: Any, base: str) -> None:
        self.driver, self.base = driver, base

    def open(self, view: str = "") -> None:
        """Open a view from nothing."""
        self.driver.get("about:blank")
        self.driver.get(f"{self.base}#/{view}")

    def run(self, script: str, *arguments: object) -> Any:
        """Run a script in the page, and return what it returns."""
        return self.driver.execute_script(script, *arguments)

    def text(self) -> str:
        return str(
            self.run("return document.querySelector('main') ? document.querySelector('main').innerText : ''")
        )

    def has(self, selector: str) -> bool:
        return bool(self.run("return document.querySelector(arguments[0]) !== null", selector))

    def until_text(self, *wanted: str) -> None:
        """Wait until the view has all these texts."""
        found = wait_until(PATIENCE_S, lambda: all(each in self.text() for each in wanted))
        assert found, f"expected {wanted} in:\n{self.text()}"

    def until(self, selector: str) -> None:
        """Wait until an element is there."""
        assert wait_until(PATIENCE_S, lambda: self.has(selector)), f"no {selector} in:\n{self.text()}"

    def click(self, selector: str) -> None:
        """Click the first element, as a person would."""
        self.until(selector)
        self.driver.find_element("css selector", selector).click()

    def press(self, name: str) -> None:
        """Click the button of this name, once it can be."""
        script = (
            "const found = [...document.querySelectorAll('main button')]"
            ".find((one) => one.innerText === arguments[0] && !one.disabled);"
            "if (found) found.click(); return !!found"
        )
        assert wait_until(PATIENCE_S, lambda: bool(self.run(script, name))), f"no button {name}"

    def tick(self, name: str) -> None:
        """Click the box with this label."""
        script = (
            "const found = [...document.querySelectorAll('label.check')]"
            ".find((one) => one.innerText.trim() === arguments[0]);"
            "if (found) found.click(); return !!found"
        )
        assert wait_until(PATIENCE_S, lambda: bool(self.run(script, name))), f"no box {name}"

    def type_into(self, selector: str, value: str) -> None:
        """Set the value of a field, as if it had been typed or chosen."""
        script = (
            "const one = document.querySelector(arguments[0]); one.value = arguments[1];"
            "for (const name of ['input', 'change']) one.dispatchEvent(new Event(name, {bubbles: true}))"
        )
        self.run(script, selector, value)

    def key(self, name: str) -> None:
        """Press a key where the focus is."""
        from selenium.webdriver.common.keys import Keys

        self.driver.switch_to.active_element.send_keys(getattr(Keys, name))

    def complaints(self) -> list[str]:
        """What the browser's console says of errors since the last call."""
        return [each["message"] for each in self.driver.get_log("browser") if each["level"] == "SEVERE"]

    def barriers(self) -> list[str]:
        """What axe finds wrong with the view, for people who do not see it, or see it differently."""
        if not self.run("return typeof axe === 'object'"):
            self.run(AXE.read_text())
        found = self.driver.execute_async_script(
            "const done = arguments[arguments.length - 1];"
            "axe.run(document, {resultTypes: ['violations']}).then("
            "(all) => done(all.violations), (bad) => done([{id: String(bad), nodes: []}]))"
        )
        return [f"{each['id']}: {[node['html'][:160] for node in each['nodes'][:3]]}" for each in found]

    def be(self, scheme: str) -> None:
        """Show the page as for a reader who prefers `light` or `dark`."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def picture(self, name: str, height: int = 800) -> None:
        """Save a picture for the documentation, if SCREENSHOTS names a folder."""
        if folder := os.environ.get("SCREENSHOTS"):
            self.driver.set_window_size(1280, height)
            self.run(
                "for (const one of document.querySelectorAll('code'))"
                "  one.textContent = one.textContent.replace(/^.*\\/cluster\\//, '/data/')"
            )
            wait_until(1.0, lambda: False)  # a chart is drawn again for the new width
            self.driver.save_screenshot(f"{folder}/{name}.png")


def need_browser() -> tuple[str, str, Any]:
    """Return Chromium, its driver and selenium. Skips the test without them."""
    chromium, helper = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or helper is None:
        pytest.skip("chromium or chromedriver is missing: make console installs them")
    return (
        chromium,
        helper,
        pytest.importorskip("selenium.webdriver", reason="make console installs selenium"),
    )


@contextlib.contextmanager
def browser(base: str) -> Iterator[Browser]:
    """Open Chromium at a console. Skips the test if there is none."""
    chromium, helper, webdriver = need_browser()
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    flags = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,900"]
    if os.geteuid() == 0:
        flags.append("--no-sandbox")  # Chromium's sandbox does not run as root
    for flag in flags:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(helper))
    try:
        yield Browser(driver, base)
    finally:
        driver.quit()


# --- the cluster ----------------------------------------------------------------------------------


class Demo:
    """Three brokers with consoles to change things, and something to look at."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        cluster = local_cluster.start(directory, 3, SETTINGS, patience_s=120, console="--console-admin")
        self.addresses = [f"127.0.0.1:{node.port}" for node in cluster.nodes]
        self.console = f"http://127.0.0.1:{cluster.nodes[0].http_port}/"

    def fill(self) -> None:
        """Make topics, logs with several segments and leader epochs, and groups that lag."""
        draw = random.Random(7)
        topics = {"audit": 3, "clicks": 36, "emails": 2, "inventory": 18, "payments": 6, "sessions": 12}
        with BlockingClient(self.addresses) as client:
            for name, partitions in topics.items():
                client.create_topic(name, partitions, replication_factor=3)
        replicas = [(2, 3, 1), (3, 1, 2), (1, 2, 3)]  # the first leader is restarted below: an election
        self.create("orders", *(replicas[each % 3] for each in range(8)), segment_bytes=1 << 20)
        with BlockingClient(self.addresses) as client:
            self.append(client, draw, 7_000)
        for node in ("node-2", "node-3"):  # each takes its leaderships along: new epochs
            self.restart(node)
            with BlockingClient(self.addresses) as client:
                self.append(client, draw, 4_000)
        with BlockingClient(self.addresses) as client:
            for number in range(6):
                client.append("payments", [order(draw) for _ in range(200)], partition=number)
            self.commit(client, {"billing": 12_000, "shipping": 14_800, "search-index": 15_000})

    def append(self, client: BlockingClient, draw: random.Random, count: int) -> None:
        for _ in range(count // 500):
            client.append("orders", [order(draw) for _ in range(500)], partition=0)

    def commit(self, client: BlockingClient, groups: dict[str, int]) -> None:
        """Commit an offset of the first partition for each group."""
        for name, offset in groups.items():
            client._wait(client._client.commit(name, {TopicPartition("orders", 0): offset}))

    def restart(self, node: str) -> None:
        self.signal(node, signal.SIGTERM)
        member = next(each for each in existing(self.directory).nodes if each.name == node)
        assert wait_until(PATIENCE_S, lambda: not local_cluster.is_running(self.directory, member))
        local_cluster.launch(self.directory, [node], patience_s=120)

    def signal(self, node: str, number: signal.Signals) -> None:
        local_cluster.send_signal(self.directory, node, number)

    def create(self, topic: str, *replicas: tuple[int, ...], segment_bytes: int = 1 << 30) -> None:
        """Create a topic with these brokers for each partition."""
        settings = {"segment.bytes": str(segment_bytes)}
        with closing(Brokers(self.addresses[0])) as brokers:
            BrokerOperator(brokers).create(topic, settings, len(replicas), len(replicas[0]), replicas)

    def replicas(self, partition: str) -> list[int]:
        """The brokers of a partition, as the console's API tells them."""
        return [each["broker"] for each in self.asked(f"partition?name={partition}")["replicas"]]

    def controller(self) -> int:
        assert wait_until(PATIENCE_S, lambda: self.asked("overview")["controller"] is not None)
        return int(self.asked("overview")["controller"])

    def asked(self, path: str) -> Any:
        with urlopen(f"{self.console}api/{path}", timeout=30) as answer:
            return json.load(answer)

    def stop(self) -> None:
        local_cluster.stop(self.directory, patience_s=30)


def order(draw: random.Random) -> bytes:
    """A record that looks like something."""
    items = [
        {"sku": f"A-{draw.randrange(10_000):04}", "count": draw.randrange(1, 5)}
        for _ in range(draw.randrange(1, 4))
    ]
    customer = f"c-{draw.randrange(500)}"
    return json.dumps({"order": draw.randrange(10**7), "customer": customer, "items": items}).encode()

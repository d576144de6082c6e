"""The built book, opened in a browser that can reach nothing but the book."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Browser, Route, sync_playwright

ROOT = Path(__file__).parents[1]
BOOK = ROOT / "_build" / "html"
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text())
PAGES = [TOC["root"], *(page["file"] for part in TOC["parts"] for page in part["chapters"])]
CHROMIUM = shutil.which("chromium")
PHONE = 400  # pixels
QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

# What a reader sees once MathJax has finished. A picture without a text of its own gets its file
# name as alt text from Sphinx, which tells a reader nothing.
INSPECT = """async () => {
    if (window.MathJax) await MathJax.startup.promise;
    const all = selector => [...document.querySelectorAll(selector)];
    return {
        formulas: all('.math').length,
        unset: all('.math').filter(node => !node.querySelector('mjx-container')).length,
        wrong: all('mjx-merror, mjx-mtext[style*="red"]').map(node => node.textContent),
        pictures: all('article img').length,
        broken: all('img').filter(node => !node.naturalWidth).map(node => node.src),
        mute: all('article img').filter(node => !node.alt || /\\.(png|svg|jpe?g)$/.test(node.alt))
            .map(node => node.src),
        complaints: all('.output.stderr').map(node => node.textContent),
        litter: all('.output.text_plain').map(node => node.textContent)
            .filter(text => /^\\s*(\\[?<|\\[?Text\\()/.test(text)),
    };
}"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@dataclass
class Visit:
    """One page as loaded: what it asked for elsewhere, what it complained of, what it shows."""

    foreign: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    seen: dict = field(default_factory=dict)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    if not (BOOK.parent / "complete").exists():
        pytest.fail("there is no built book: run `make test`, which builds it, or `make book`")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(BOOK))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed; .ci/run installs it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


def visit(browser: Browser, address: str, page_name: str) -> Visit:
    """Load one page in a context of its own, with every request to another host refused."""
    found = Visit()

    def guard(route: Route) -> None:
        if route.request.url.startswith(address):
            route.continue_()
        else:
            found.foreign.append(route.request.url)
            route.abort()

    with browser.new_context() as context:
        context.route("**/*", guard)
        page = context.new_page()
        page.on("console", lambda m: found.errors.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: found.errors.append(str(error)))
        page.on("response", lambda r: found.errors.append(r.url) if r.status >= 400 else None)
        page.goto(address + page_name, wait_until="load")
        found.seen = page.evaluate(INSPECT)
        page.set_viewport_size({"width": PHONE, "height": 800})
        found.seen["width"] = page.evaluate("document.documentElement.scrollWidth")
    return found


def test_the_book_opens_at_its_introduction(browser, address):
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(address)
        page.wait_for_url("**/book/intro.html")


@pytest.mark.parametrize("name", PAGES)
def test_page(browser, address, name):
    found = visit(browser, address, f"{name}.html")
    assert found.foreign == [], "requests to another host"
    assert found.errors == [], "console errors"
    assert found.seen["formulas"] == (BOOK / f"{name}.html").read_text().count('class="math ')
    assert found.seen["unset"] == 0, "formulas not typeset"
    assert found.seen["wrong"] == [], "formulas typeset as errors"
    assert found.seen["broken"] == [], "images that did not load"
    assert found.seen["mute"] == [], "images without alt text"
    assert found.seen["complaints"] == [], "output on stderr"
    assert found.seen["litter"] == [], "a cell shows an object: write `_ = ...`"
    assert found.seen["width"] <= PHONE, "the page is wider than a telephone"
    if name.startswith("notebooks/"):
        assert found.seen["pictures"] > 0
        assert found.seen["formulas"] > 0

"""The explorer in a real Chromium without a screen: every control, and every number held to `moejax predict`."""

import json
import math
import os
import re
import shutil
import subprocess
import sys

import pytest

from moejax.__main__ import main
from moejax.laws.accounting import design_of
from moejax.laws.catalogue import CATALOGUE
from moejax.papers.chapter_002 import BUDGET, CONFIGURATIONS
from moejax.report.explorer.state import KNOBS, PRESETS

pytestmark = pytest.mark.browser

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
TURNS = ("ArrowRight", "ArrowRight", "ArrowLeft")
PATIENCE = 60_000
"""Milliseconds for what a law of its own must be compiled for."""


@pytest.fixture(scope="module")
def address():
    words = [sys.executable, "-m", "moejax", "explore", "--port", "0", "--no-browser"]
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "DISPLAY", "WAYLAND_DISPLAY")}
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment) as server:
        found, said = None, ""
        for line in server.stderr:
            said += line
            if found := re.search(r"Exploring at (http://127\.0\.0\.1:\d+/)", line):
                break
        assert found, said
        yield found[1]
        server.send_signal(2)
        assert server.wait(timeout=30) == 0, server.stderr.read()


@pytest.fixture(scope="module")
def chromium():
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed; `make browser` does")
    if CHROMIUM is None:
        pytest.skip("no Chromium is on the path")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


class Page:
    """A page of the explorer, with what went wrong in it."""

    def __init__(self, chromium, address, query="", **options):
        self.context = chromium.new_context(**{"viewport": {"width": 1400, "height": 900}, **options})
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.wrong, self.elsewhere = [], []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", lambda said: said.type == "error" and self.wrong.append(said.text))
        self.page.on("request", lambda asked: self._request(asked.url, address))
        self.page.goto(address + query)
        self.page.wait_for_selector("#loss")
        self.page.wait_for_selector("#knob-tokens [role=slider]")

    def _request(self, url, address):
        if not url.startswith((address, address.replace("http", "ws"), "data:", "blob:")):
            self.elsewhere.append(url)

    @property
    def loss(self):
        return float(self.page.get_attribute("#loss", "data-value"))

    @property
    def dense(self):
        return float(self.page.get_attribute("#dense", "data-value"))

    @property
    def command(self):
        return self.page.inner_text("#command")

    def shown(self, knob):
        return self.page.inner_text(f"#knob-{knob} output")

    def changes(self, act):
        """Do something that changes the command under the page, and wait for it."""
        before = self.command
        act()
        self.page.wait_for_function("was => document.querySelector('#command').textContent !== was", arg=before)

    def press(self, name):
        self.page.get_by_role("button", name=name).click()

    def choose(self, menu, option):
        self.page.get_by_label(menu).select_option(option)


@pytest.fixture
def opened(chromium, address):
    pages = []

    def see(query="", **options):
        pages.append(Page(chromium, address, query, **options))
        return pages[-1]

    yield see
    for one in pages:
        one.context.close()
        assert one.wrong == []
        assert one.elsewhere == [], "the page fetches something from elsewhere"


@pytest.fixture
def predicted(capsys):
    """Loss that a command prints."""

    def ask(command):
        program, *words = command.split()
        assert (program, main([*words, "--json"])) == ("moejax", 0)
        (answer,) = json.loads(capsys.readouterr().out)["predictions"]
        return answer["values"]["loss"]

    return ask


def test_it_starts_at_the_chapters_deepseek_with_the_loss_of_predict(opened, predicted):
    one = opened()
    assert math.isclose(one.loss, predicted(one.command), rel_tol=1e-9)
    assert one.page.inner_text("#loss") == f"{one.loss:.4f}"
    assert {"37B", "3.4e24", "15.3T"} == {one.shown(name) for name in ("params_active", "flops", "tokens")}


def test_every_slider_answers_to_the_keyboard_and_keeps_it(opened, predicted):
    one = opened("?law=five_factor:zhao-2025")
    read = {"params_active", "expansion", "active_experts", "shared_share", "flops", "tokens"}
    for name in KNOBS:
        slider = one.page.locator(f"#knob-{name} [role=slider]")
        slider.focus()
        # Without a limit is the last step of a slider that has it.
        for key in ("ArrowLeft", "ArrowLeft", "ArrowRight") if KNOBS[name].limit else TURNS:
            before, said = one.shown(name), one.command
            one.page.keyboard.press(key)
            one.page.wait_for_function(
                f"was => document.querySelector('#knob-{name} output').textContent !== was", arg=before
            )
            assert slider.evaluate("thumb => thumb.getRootNode().activeElement === thumb"), (
                "the slider lost the keyboard"
            )
            if name in read:
                assert one.command != said
        one.page.wait_for_function(
            f"""() => document.querySelector('#knob-{name} marimo-slider').shadowRoot.querySelector('[role=slider]')
            .getAttribute('aria-valuetext') === document.querySelector('#knob-{name} output').textContent"""
        )
        assert KNOBS[name].words in slider.get_attribute("aria-label")
        assert math.isclose(one.loss, predicted(one.command), rel_tol=1e-9)


def test_a_slider_is_dragged_and_what_hangs_on_it_follows(opened, predicted):
    one = opened()
    box = one.page.locator("#knob-flops [role=slider]").bounding_box()
    tokens = one.shown("tokens")

    def drag():
        one.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        one.page.mouse.down()
        one.page.mouse.move(box["x"] - 60, box["y"] + box["height"] / 2, steps=6)
        one.page.mouse.up()

    one.changes(drag)
    one.page.wait_for_timeout(500)
    assert one.shown("tokens") != tokens
    assert one.shown("params_active") == "37B"
    assert math.isclose(one.loss, predicted(one.command), rel_tol=1e-9)


def test_unique_tokens_are_limited_by_the_keyboard_and_the_link_keeps_it(opened, predicted):
    one = opened("?law=data_constrained:muennighoff-2023&params_active=7.03e9&flops=1e22&unique_tokens=25e9")
    assert one.shown("unique_tokens") == "25B"
    assert math.isclose(one.loss, predicted(one.command), rel_tol=1e-9)
    limited = one.loss
    one.page.locator("#knob-unique_tokens [role=slider]").focus()
    one.changes(lambda: one.page.keyboard.press("End"))
    assert one.shown("unique_tokens") == "no limit"
    assert one.page.locator("#repeats").count() == 0
    assert one.loss < limited
    one.changes(lambda: one.page.keyboard.press("Home"))
    one.page.wait_for_function("() => location.search.includes('unique_tokens=100000')")
    again = opened("?" + one.page.url.split("?")[1])
    again.page.wait_for_function("was => document.querySelector('#command').textContent === was", arg=one.command)
    assert math.isclose(again.loss, predicted(again.command), rel_tol=1e-9)


def test_every_preset_has_the_numbers_of_the_chapter(opened, predicted):
    one = opened("?params_active=1e9")
    for name in PRESETS:
        one.changes(lambda name=name: one.press(name))
        active, expansion, *_ = CONFIGURATIONS[name]
        asked = f"moejax predict --law chapter_002 --params-active {active} --params-total {active * expansion}"
        assert math.isclose(one.loss, predicted(f"{asked} --tokens {BUDGET / (6 * active)}"), rel_tol=1e-9)
        assert one.shown("params_active") == f"{active / 1e9:g}B"


def curves(one):
    """Paths of dense and mixture in the chapter's figure."""
    return one.page.eval_on_selector_all(
        "#panel-compute > svg > svg path[fill=none]", "paths => paths.map(path => path.getAttribute('d'))"
    )


def test_g_to_1_merges_the_curves_and_the_mixture_of_the_preset_lies_below(opened):
    one = opened()
    one.changes(lambda: one.press("G → 1"))
    dense, mixture = curves(one)
    assert dense == mixture
    assert one.loss == one.dense
    one.changes(lambda: one.press(list(PRESETS)[1]))
    dense, mixture = ([float(y) for y in re.findall(r" ([\d.]+)", path)] for path in curves(one))
    assert all(low > high for high, low in zip(dense, mixture, strict=True)), "down is larger in a drawing"


def test_laws_and_published_models_are_chosen_from_menus(opened, predicted):
    one = opened()
    one.changes(lambda: one.choose("law and coefficients", "five_factor, zhao-2025"))
    assert math.isclose(one.loss, predicted(one.command), rel_tol=1e-9)
    assert one.page.locator("#panel-active_experts").count() == 1
    one.changes(lambda: one.choose("published model", "deepseek-v3.1"))
    architecture = CATALOGUE["deepseek-v3.1"].architecture
    tokens = BUDGET / (6 * design_of(architecture, 1.0).params_active)
    asked = f"moejax predict --law zhao --arch deepseek-v3.1 --tokens {tokens}"
    assert math.isclose(one.loss, predicted(asked), rel_tol=1e-7)
    one.page.locator("#knob-expansion [role=slider]").focus()
    one.changes(lambda: one.page.keyboard.press("ArrowRight"))
    one.page.wait_for_function("() => location.search.includes('expansion')")
    assert "model" not in one.page.url


def test_the_best_size_is_gone_to(opened):
    one = opened("?params_active=7e9")
    one.changes(lambda: one.press("to the best size"))
    assert one.shown("params_active") == "41.2B"
    assert "41.2B" in one.page.inner_text("#range-params_active")


def test_the_address_follows_and_brings_all_of_it_back(opened):
    one = opened()
    one.page.locator("#knob-granularity [role=slider]").focus()
    one.page.keyboard.press("ArrowRight")
    one.page.wait_for_function("() => location.search.includes('granularity')")
    one.changes(lambda: one.choose("published model", "kimi-k2"))
    one.page.wait_for_function("() => location.search.includes('kimi-k2')")
    again = opened("?" + one.page.url.split("?")[1])
    assert again.command == one.command
    assert again.loss == one.loss
    assert again.page.get_by_label("published model").evaluate("menu => menu.selectedOptions[0].text") == "kimi-k2"


def test_a_link_that_cannot_be_is_said_and_the_page_is_there(opened):
    one = opened("?law=five_factor:zhao-2052")
    assert "five_factor:zhao-2025" in one.page.get_by_role("alert").first.inner_text()
    assert one.loss == opened().loss


def test_everything_is_reached_by_the_keyboard_alone(opened):
    one = opened()
    reached = []
    for _ in range(30):
        one.page.keyboard.press("Tab")
        reached.append(
            one.page.evaluate(
                """() => { let at = document.activeElement;
                while (at.shadowRoot && at.shadowRoot.activeElement) at = at.shadowRoot.activeElement;
                return at.getAttribute('aria-label') || at.textContent; }"""
            )
        )
        if list(PRESETS)[2] in reached[-1] and one.shown("params_active") == "37B":
            one.changes(lambda: one.page.keyboard.press("Enter"))
            assert one.shown("params_active") == "7B"
    for words in (*(knob.words for knob in KNOBS.values()), *PRESETS, "to the best size", "make config.py"):
        assert any(words in one for one in reached), words


def test_the_config_of_a_published_model_is_saved_and_read(opened, tmp_path, capsys):
    one = opened("?model=olmoe-1b-7b")
    one.press("make config.py")
    one.page.wait_for_selector("#config pre")
    with one.page.expect_download() as download:
        one.page.locator("#config marimo-download a").click()
    path = tmp_path / "config.py"
    download.value.save_as(path)
    assert main(["count", f"--config={path}", "--json"]) == 0
    counted = json.loads(capsys.readouterr().out)
    assert counted["params_active"] == design_of(CATALOGUE["olmoe-1b-7b"].architecture, 1.0).params_active


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1400])
def test_nothing_is_cut_off_or_unreadable(opened, width, scheme):
    one = opened("?law=five_factor:zhao-2025", viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert one.page.evaluate("document.documentElement.scrollWidth") <= width
    for panel in one.page.locator(".explorer figure").all():
        box = panel.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width + 1
    light = one.page.evaluate(
        """() => { const of = (e, what) => getComputedStyle(e)[what].match(/[\\d.]+/g).slice(0, 3).map(Number)
          .reduce((a, b) => a + b) / 765;
        return [of(document.querySelector('#loss'), 'color'), of(document.body, 'backgroundColor')]; }"""
    )
    assert abs(light[0] - light[1]) > 0.6
    assert (light[1] > 0.5) == (scheme == "light")

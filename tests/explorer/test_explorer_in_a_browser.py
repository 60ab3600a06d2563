"""The explorer in a real Chromium: every control, and numbers that equal those of `moejax predict`."""

import json
import math
import shlex
import shutil
from urllib.parse import quote

import pytest

from moejax.__main__ import main
from moejax.explorer.available import find_available
from moejax.explorer.knobs import KNOBS, PRESETS
from moejax.explorer.page import page
from moejax.laws import PUBLISHED
from moejax.laws.accounting import design_of
from moejax.laws.catalogue import CATALOGUE
from moejax.laws.law import coefficients
from moejax.papers.chapter_002.records import BUDGET, CONFIGURATIONS
from moejax.quantities import parse

pytestmark = pytest.mark.browser

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "explorer.html"
    path.write_text(page(find_available()), encoding="utf-8")
    return path.as_uri()


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
    """An open page, with its errors and its requests."""

    def __init__(self, chromium, address, link="", **options):
        self.context = chromium.new_context(**{"viewport": {"width": 1400, "height": 900}, **options})
        self.page = self.context.new_page()
        self.errors, self.requests = [], []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda said: said.type == "error" and self.errors.append(said.text))
        self.page.on("request", lambda asked: self.requests.append(asked.url))
        self.page.goto(address + link)
        self.page.wait_for_selector("#loss[data-value]")

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

    def after(self, act, what="#command"):
        """Do something that changes a text of the page, and wait for it."""
        before = self.page.inner_text(what)
        act()
        self.page.wait_for_function(f"was => document.querySelector('{what}').innerText !== was", arg=before)

    def press(self, name):
        self.page.get_by_role("button", name=name, exact=True).click()


@pytest.fixture
def opened(chromium, address):
    pages = []

    def see(link="", **options):
        pages.append(Page(chromium, address, link, **options))
        return pages[-1]

    yield see
    for one in pages:
        one.context.close()
        assert one.errors == []
        assert all(url.startswith(("file:", "data:", "blob:")) for url in one.requests), "the page fetches something"


@pytest.fixture
def predicted(capsys):
    """The loss that a command prints."""

    def ask(command):
        program, *words = shlex.split(command)
        assert (program, main([*words, "--json"])) == ("moejax", 0)
        (answer,) = json.loads(capsys.readouterr().out)["predictions"]
        return answer["values"]["loss"]

    return ask


def test_it_starts_at_the_chapters_deepseek_with_the_loss_of_predict(opened, predicted):
    one = opened()
    assert math.isclose(one.loss, predicted(one.command), rel_tol=1e-9)
    assert one.page.inner_text("#loss") == f"{one.loss:.4f}"
    assert {"37B", "3.4e24", "15.3T"} == {one.shown(name) for name in ("params_active", "flops", "tokens")}


def test_every_slider_answers_to_the_keyboard_and_the_loss_follows(opened, predicted):
    one = opened("#law=five_factor:zhao-2025")
    for knob in KNOBS:
        name = knob.coordinate.name
        slider = one.page.locator(f"#knob-{name} input")
        slider.focus()
        for key in ("ArrowLeft", "ArrowLeft", "ArrowRight"):
            one.after(lambda key=key: one.page.keyboard.press(key), f"#knob-{name} output")
        assert slider.evaluate("input => document.activeElement === input")
        assert slider.get_attribute("aria-valuetext") == one.shown(name)
        assert math.isclose(one.loss, predicted(one.command), rel_tol=1e-9)


def test_tokens_move_flops_and_the_size_moves_neither(opened):
    one = opened()
    one.page.locator("#knob-tokens input").focus()
    one.after(lambda: one.page.keyboard.press("ArrowRight"), "#knob-flops output")
    assert one.shown("params_active") == "37B"
    flops = one.shown("flops")
    one.page.locator("#knob-params_active input").focus()
    one.after(lambda: one.page.keyboard.press("ArrowRight"), "#knob-tokens output")
    assert one.shown("flops") == flops


def test_every_preset_has_the_numbers_of_the_chapter(opened, predicted):
    one = opened("#params_active=1e9")
    for name in PRESETS:
        one.after(lambda name=name: one.press(name))
        active, expansion, *_ = CONFIGURATIONS[name]
        asked = f"moejax predict --law chapter_002 --params-active {active} --params-total {active * expansion}"
        assert math.isclose(one.loss, predicted(f"{asked} --tokens {BUDGET / (6 * active)}"), rel_tol=1e-9)
    one.after(lambda: one.press("Make it dense"))
    assert one.loss == one.dense


def test_laws_and_published_models_are_chosen_from_menus(opened, predicted):
    one = opened()
    one.after(lambda: one.page.select_option("#law", "five_factor:zhao-2025"))
    assert math.isclose(one.loss, predicted(one.command), rel_tol=1e-9)
    assert one.page.locator("#chart-active_experts svg").count() > 0
    one.after(lambda: one.page.select_option("#model", "deepseek-v3.1"))
    architecture = CATALOGUE["deepseek-v3.1"].architecture
    tokens = BUDGET / (6 * design_of(architecture, 1.0).params_active)
    asked = f"moejax predict --law zhao --arch deepseek-v3.1 --tokens {tokens}"
    assert math.isclose(one.loss, predicted(asked), rel_tol=1e-7)
    one.page.locator("#knob-expansion input").focus()
    one.after(lambda: one.page.keyboard.press("ArrowRight"))
    assert "model" not in one.page.url


@pytest.mark.parametrize("law", ["five_factor:zhao-2025", "chinchilla:besiroglu-2024"])
def test_constants_and_fitted_ranges_of_the_chosen_law_are_tables(opened, law):
    name, _, constants = law.partition(":")
    known = PUBLISHED[name][constants]
    one = opened(f"#law={law}")
    for field, value in coefficients(known.law).items():
        symbol, _, shown, meaning = one.page.locator(f"#constant-{field} td").all_inner_texts()
        assert float(shown) == pytest.approx(float(value), rel=1e-8)
        assert symbol
        assert meaning
    assert one.page.locator("#constants tbody tr").count() == len(coefficients(known.law))
    assert one.page.locator("#fitted tbody tr").count() == len(known.fitted)
    for variable, (low, high) in known.fitted.items():
        cells = one.page.locator(f"#fitted-{variable} td").all_inner_texts()
        assert [parse(cell) for cell in cells[1:3]] == pytest.approx([low, high], rel=0.01)


def test_the_tour_moves_the_sliders_and_ends_where_it_began(opened):
    one = opened()
    one.press("Start the tour")
    said = [one.page.inner_text("#tour")]
    for _ in range(4):
        one.after(lambda: one.press("Next"), "#tour")
        said.append(one.page.inner_text("#tour"))
    assert [text[:6] for text in said] == [f"{step} of 5" for step in range(1, 6)]
    one.page.wait_for_function("() => document.querySelector('#knob-expansion output').innerText === '60'")
    one.press("End the tour")
    assert one.page.inner_text("#tour") == ""


def test_the_address_brings_all_of_it_back(opened):
    one = opened()
    one.after(lambda: one.page.select_option("#model", "kimi-k2"))
    one.page.locator("#knob-granularity input").focus()
    one.after(lambda: one.page.keyboard.press("ArrowRight"), "#knob-granularity output")
    one.press("Go to the best size")
    one.page.wait_for_timeout(200)
    again = opened("#" + one.page.url.split("#")[1])
    assert (again.command, again.loss) == (one.command, one.loss)


def test_a_refused_value_of_a_link_is_named_and_the_others_are_kept(opened):
    one = opened(f"#law={quote('five_factor:zhao-2052')}&model=constructor&params_active=7B&flops=many")
    said = one.page.inner_text("#alarm")
    assert "law=five_factor:zhao-2052" in said
    assert "flops=many" in said
    assert "model=constructor" in said
    assert one.shown("params_active") == "7B"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1400])
def test_nothing_is_cut_off_or_unreadable(opened, width, scheme):
    one = opened("#law=five_factor:zhao-2025", viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert one.page.evaluate("document.documentElement.scrollWidth") <= width
    for chart in one.page.locator("figure").all():
        box = chart.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width + 1
    ink, paper = one.page.evaluate(
        """() => { const of = (e, what) => getComputedStyle(e)[what].match(/[\\d.]+/g).slice(0, 3).map(Number)
          .reduce((a, b) => a + b) / 765;
        return [of(document.querySelector('#loss'), 'color'), of(document.body, 'backgroundColor')]; }"""
    )
    assert abs(ink - paper) > 0.6
    assert (paper > 0.5) == (scheme == "light")

"""The pages in a real browser: reports, the explorer, and a run that goes on. Without a Chromium there is nothing to
parametrise over."""

from __future__ import annotations

import json
import re
import signal
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import ROOT
from pages import BROWSERS, FLAGS, explorer, folder_of_run, held_run, started
from test_report import swept

from pri_rfed.data.download import DataFolders
from pri_rfed.experiment.config import load
from pri_rfed.experiment.folder import RunFolder
from pri_rfed.experiment.report import write_report
from pri_rfed.experiment.spending import Spending
from pri_rfed.simulation import State

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, LocatorAssertions, Page

QUICKSTART = ROOT / "configs" / "quickstart.toml"
SOON = 180_000
"""Milliseconds that a page may take on a machine that does much else."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=BROWSERS)
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=request.param, args=FLAGS)  # with a profile of its own
        yield launched
        launched.close()


@contextmanager
def opened(browser: Browser, address: str, **options: Any) -> Iterator[Page]:
    """A page that is watched: at its end nothing was said on the console, and nobody else was asked for anything."""
    context = browser.new_context(viewport={"width": 1300, "height": 900}, **options)
    context.set_default_timeout(SOON)
    page = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    yield page
    own = address.rstrip("/") if address.startswith("http") else address
    strangers = [url for url in asked if not url.startswith((own, "data:", "blob:"))]
    context.close()
    assert not said
    assert not strangers


def expect(locator: Locator) -> LocatorAssertions:
    from playwright.sync_api import expect as expect_

    expect_.set_options(timeout=SOON)
    return expect_(locator)


def rest(page: Page) -> None:
    """Wait until the exact figures are there."""
    expect(page.locator("#precision")).to_have_text(re.compile("^exact"))


def text_of(page: Page, id: str) -> str:
    return page.locator(f"#{id}").inner_text()


def expect_lines(page: Page, chart: str, number: int) -> None:
    """Wait until so many lines of a chart are drawn, with something to see."""
    expect(page.locator(f"{chart} .plot .scatterlayer .trace .js-line[d]")).to_have_count(number)


def expect_points(page: Page, chart: str, number: int) -> None:
    expect(page.locator(f"{chart} .plot .points .point")).to_have_count(number)


# Reports


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = folder_of_run(QUICKSTART, tmp_path_factory.mktemp("report") / "quick", "run.rounds=8")
    return write_report(folder).as_uri()


def test_a_report_draws_its_plots(browser: Browser, report: str) -> None:
    with opened(browser, report) as page:
        for chart in ("#chart-risk", "#chart-gradient", "#chart-distance"):
            expect_lines(page, chart, 1)
        expect_lines(page, "#chart-epsilon", 2)
        expect(page.locator("#chart-ledgers .plot .bars .point path")).to_have_count(10)
        # Toggles work from the keyboard, and say how they stand.
        ledger = page.get_by_role("button", name="after it: largest ledger")
        ledger.focus()
        page.keyboard.press("Enter")
        assert ledger.get_attribute("aria-pressed") == "false"
        expect_lines(page, "#chart-epsilon", 1)
        page.keyboard.press("Space")
        expect_lines(page, "#chart-epsilon", 2)
        log = page.locator("#chart-risk").get_by_role("button", name="log scale")
        before = page.locator("#chart-risk .ytick").all_text_contents()
        log.click()
        expect(page.locator("#chart-risk .ytick")).not_to_have_text(before)
        # Hovering names the point.
        box = page.locator("#chart-risk .plot .points .point").first.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 2, box["y"] + 2)
        expect(page.locator("#chart-risk .hoverlayer .hovertext").first).to_be_visible()
        # Zooming, and back.
        area = page.locator("#chart-risk .plot .nsewdrag").bounding_box()
        assert area is not None
        labels = page.locator("#chart-risk .xtick text")
        ticks = labels.all_text_contents()
        page.mouse.move(area["x"] + 50, area["y"] + 30)
        page.mouse.down()
        page.mouse.move(area["x"] + 150, area["y"] + 120, steps=4)
        page.mouse.up()
        expect(labels.first).not_to_have_text(ticks[0])
        page.locator("#chart-risk").get_by_role("button", name="reset zoom").click()
        expect(labels.first).to_have_text(ticks[0])
        # The same as a table, for those who do not see the plot.
        page.locator("#chart-epsilon summary").click()
        expect(page.locator("#chart-epsilon tbody tr").nth(8)).to_be_visible()
        assert "Excess risk" in (page.locator("#chart-risk .plot").get_attribute("aria-label") or "")


def test_a_report_on_paper_and_in_the_dark(browser: Browser, report: str) -> None:
    def ground(page: Page) -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    with opened(browser, report, color_scheme="light") as page:
        line = page.locator("#chart-risk .plot .js-line")
        expect(line).to_have_css("stroke", "rgb(0, 114, 178)")
        assert ground(page) == "rgb(255, 255, 255)"
        page.emulate_media(color_scheme="dark")
        expect(line).to_have_css("stroke", "rgb(86, 180, 233)")
        assert ground(page) == "rgb(19, 22, 26)"
        page.emulate_media(media="print", color_scheme="dark")
        assert ground(page) == "rgb(255, 255, 255)"
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert not page.locator(".reset").first.is_visible() and page.locator("#config").is_visible()
        expect(line).to_have_css("stroke", "rgb(0, 114, 178)")
        page.set_viewport_size({"width": 673, "height": 900})
        outside = "plots => plots.map(plot => plot.querySelector('.main-svg').clientWidth - plot.clientWidth)"
        assert max(page.locator(".plot").evaluate_all(outside)) <= 0, "plots fit the paper"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.locator("#config").evaluate("e => e.scrollHeight <= e.clientHeight + 1"), "nothing is cut off"


def test_the_configuration_of_a_report_is_copied(browser: Browser, report: str) -> None:
    with opened(browser, report, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.get_by_role("button", name="copy the configuration").press("Enter")
        expect(page.locator("button[data-copy=config]")).to_have_text("copied")
        copied = page.evaluate("navigator.clipboard.readText()")
        assert load(tomllib.loads(copied), DataFolders()).run.rounds == 8


def test_the_report_of_a_sweep(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, write_report(swept(tmp_path).path).as_uri()) as page:
        expect_lines(page, "#chart-epsilon", 2 + 4)  # two lines, and the edges of their bands
        expect(page.locator("#chart-map .plot .heatmaplayer image")).to_have_count(1)
        assert page.locator("#chart-pareto .plot .points .point").count() >= 4
        expect_lines(page, "#chart-convergence", 3 * 3)
        assert page.locator("script").count() == 4, "what the sweep's errors say is not run"


# The explorer


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with explorer() as serving:
        yield serving


def test_sliders_change_the_figures(browser: Browser, address: str) -> None:
    with opened(browser, address) as page:
        rest(page)
        assert 1.99 < float(text_of(page, "global")) <= 2
        assert float(text_of(page, "ledger")) > float(text_of(page, "local")) > 0
        assert float(text_of(page, "claimed")) > 10 and "not a guarantee" in text_of(page, "figures")
        expect(page.locator("#chart-rounds .plot .scatterlayer .trace")).to_have_count(2)

        # From the keyboard: the target, then fewer rounds for given noise, then larger samples.
        noise = float(text_of(page, "noise-found"))
        target = page.get_by_role("slider", name="ε, target, before the run")
        target.focus()
        for _ in range(6):
            page.keyboard.press("ArrowLeft")
        rest(page)
        assert float(text_of(page, "global")) < 1.5 and float(text_of(page, "noise-found")) > noise
        assert float(page.locator("#epsilon").input_value()) < 1.5

        page.get_by_label("as given").check()
        rest(page)
        before = {figure: float(text_of(page, figure)) for figure in ("global", "ledger", "local", "claimed")}
        found = float(text_of(page, "noise-found"))
        assert float(page.locator("#noise").input_value()) == pytest.approx(found, rel=1e-3)
        rounds = page.get_by_role("slider", name="T, rounds")
        rounds.focus()
        page.keyboard.press("Home")
        rest(page)
        assert rounds.get_attribute("aria-valuetext") == "1" and page.locator("#rounds").input_value() == "1"
        assert float(text_of(page, "global")) < before["global"] and float(text_of(page, "local")) == before["local"]
        page.get_by_role("spinbutton", name="K local steps in a round").fill("50")
        rest(page)
        assert float(text_of(page, "local")) > before["local"]
        assert "K" in page.locator("label[for=steps]").inner_text()
        assert re.search("Epsilon before the run .*, after it .*", text_of(page, "figures-said"))


def test_numbers_that_belong_together_stay_together(browser: Browser, address: str) -> None:
    with opened(browser, address) as page:
        rest(page)
        page.get_by_role("spinbutton", name="N agents").fill("4")
        expect(page.locator("#sampled")).to_have_value("4")
        page.get_by_role("spinbutton", name="n records of each agent").fill("1000")
        expect(page.locator("#batch")).to_have_value("1000")
        page.get_by_role("spinbutton", name="b records in a step").fill("10")
        page.get_by_role("spinbutton", name="n records of each agent").fill("50")
        expect(page.locator("#batch")).to_have_value("10")
        rest(page)
        config = tomllib.loads(text_of(page, "config"))
        assert config["run"]["sampled"] == 4 and config["trainer"]["batch"] == 10 and config["data"]["records"] == 200


def test_every_control_has_a_name(browser: Browser, address: str) -> None:
    with opened(browser, address) as page:
        rest(page)
        nameless = page.evaluate(
            """[...document.querySelectorAll("input, button, progress, select")]
               .filter((e) => !e.labels?.length && !e.getAttribute("aria-label") && !e.getAttribute("aria-labelledby")
                              && !e.textContent.trim()).map((e) => e.outerHTML)"""
        )
        assert nameless == []
        # What is reached by the keyboard alone: every slider and button that is shown and enabled.
        page.locator("body").click(position={"x": 1, "y": 1})
        reached = set()
        for _ in range(80):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
        sliders = {"agents", "sampled", "rounds", "records", "batch", "steps", "delta", "epsilon"}
        assert sliders | {f"{name}-slider" for name in sliders} | {"simulate", "mode-epsilon", "config"} <= reached


def test_a_mistake_is_said_and_forgotten(browser: Browser, address: str) -> None:
    with opened(browser, address) as page:
        rest(page)
        page.get_by_role("spinbutton", name="N agents").fill("2.5")
        expect(page.locator("#mistakes")).to_have_text("agents = 2.5: must be a whole number from 1 to 10000")
        assert page.locator("#agents").get_attribute("aria-invalid") == "true" and text_of(page, "global") == "–"
        page.get_by_role("spinbutton", name="N agents").fill("25")
        rest(page)
        assert text_of(page, "mistakes") == "" and page.locator("#agents").get_attribute("aria-invalid") is None


def test_the_setting_copies_out_as_a_configuration(browser: Browser, address: str) -> None:
    with opened(browser, address, permissions=["clipboard-read", "clipboard-write"]) as page:
        rest(page)
        page.get_by_role("spinbutton", name="N agents").fill("12")
        page.get_by_role("spinbutton", name="n records of each agent").fill("30")
        rest(page)
        page.get_by_role("button", name="copy the configuration").click()
        expect(page.locator("button[data-copy=config]")).to_have_text("copied")
        experiment = load(tomllib.loads(page.evaluate("navigator.clipboard.readText()")), DataFolders())
        assert experiment.agents.counts.tolist() == [30] * 12


def test_a_quick_simulation(browser: Browser, address: str) -> None:
    with opened(browser, address) as page:
        rest(page)
        page.get_by_role("button", name="simulate this setting").press("Enter")
        expect(page.locator("#trial-said")).to_have_text(re.compile("^excess risk .*not private"))
        expect(page.locator("#trials tbody tr")).to_have_count(1)
        expect_points(page, "#chart-utility", 1)
        # One of many minutes, so that it does not end before it is cancelled.
        for name, value in (("N agents", "20"), ("s of them in each round", "10"), ("n records of each agent", "10000"),
                            ("b records in a step", "5000"), ("T rounds", "10000"),
                            ("K local steps in a round", "20")):  # fmt: skip
            page.get_by_role("spinbutton", name=name).fill(value)
        page.get_by_role("button", name="simulate this setting").click()
        page.get_by_role("button", name="cancel").click()
        expect(page.locator("#trial-said")).to_have_text("cancelled")
        expect(page.locator("#trials tbody tr")).to_have_count(2)


def test_utility_is_drawn_from_a_sweep(browser: Browser, tmp_path: Path) -> None:
    with explorer(swept(tmp_path).path) as address, opened(browser, address) as page:
        rest(page)
        expect_points(page, "#chart-utility", 3 + 1)  # its points, the nearest one twice
        words = "excess risk 0.021, quartiles 0.0205 and 0.0215 over 2 seeds.* N 10,"
        expect(page.locator("#nearest")).to_have_text(re.compile(words))
        page.get_by_role("spinbutton", name="N agents").fill("40")
        expect(page.locator("#nearest")).to_have_text(re.compile("not private.* N 20,"))


def test_the_explorer_in_the_dark(browser: Browser, address: str) -> None:
    with opened(browser, address, color_scheme="dark") as page:
        rest(page)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(19, 22, 26)"
        line = page.locator("#chart-rounds .plot .js-line").first
        assert line.evaluate("line => getComputedStyle(line).stroke") == "rgb(86, 180, 233)"


def test_on_a_narrow_screen_nothing_is_cut_off(browser: Browser, address: str) -> None:
    with opened(browser, address) as page:
        page.set_viewport_size({"width": 390, "height": 800})
        rest(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


# A run that goes on

SOME = """
[run]
rounds = 6
sampled = 5
[problem]
name = "principal-eigenvector"
[data]
source = "synthetic-pca"
records = 2000
dimension = 40
[data.partition]
name = "iid"
agents = 20
[trainer]
name = "dp-rsgd"
noise = 5.0
noise_unit = "sensitivity"
steps = 5
"""
HELD = {"simulation": ("aggregated", []), "flower": ("drawn", ["--runtime", "flower", "--clients", "2"])}
"""Runtimes: at which point of a round a run is held, and the options for it."""


@pytest.fixture
def some(tmp_path: Path) -> Path:
    (tmp_path / "some.toml").write_text(SOME)
    return tmp_path / "some.toml"


def figures_of(page: Page) -> dict[str, float]:
    return {figure: float(text_of(page, f"live-{figure}")) for figure in ("global", "ledger", "risk")}


@pytest.mark.parametrize("runtime", HELD)
def test_a_run_is_followed_round_by_round(browser: Browser, tmp_path: Path, some: Path, runtime: str) -> None:
    """A run of processes of its own, too: a SuperLink and two clients."""
    point, options = HELD[runtime]
    out = tmp_path / "out"
    with held_run(point, some, out, *options) as run:
        run.go_to(2)
        with explorer(out) as address, opened(browser, address) as page:
            seen = []
            for done in (2, 3, 5):
                run.go_to(done)
                expect(page.locator("#live-done")).to_have_text(f"{done} / 6")
                assert text_of(page, "live-state") == "going on" and "left" in text_of(page, "live-left")
                for chart in ("#live-excess_risk", "#live-gradient_norm"):
                    expect_points(page, chart, done)
                    assert page.locator(f"{chart} .plot .ytick").count() >= 2
                seen.append(figures_of(page))
            assert 0 < seen[0]["global"] < seen[1]["global"] < seen[2]["global"]
            assert 0 < seen[0]["ledger"] <= seen[1]["ledger"] <= seen[2]["ledger"]
            assert len({figures["risk"] for figures in seen}) == 3
            rounds = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
            assert seen[2]["risk"] == pytest.approx(rounds[4]["excess_risk"], rel=1e-2)

            run.release(6)
            expect(page.locator("#live-state")).to_have_text("finished")
            summary, privacy = (json.loads((out / f"{name}.json").read_text()) for name in ("summary", "privacy"))
            assert summary["runtime"] == runtime
            assert text_of(page, "live-done") == "6 / 6"
            last = figures_of(page)
            assert last["global"] == pytest.approx(summary["epsilon_global"], rel=1e-3)
            assert last["ledger"] == pytest.approx(summary["epsilon_ledger_max"], rel=1e-3)
            assert last["risk"] == pytest.approx(summary["excess_risk"], rel=1e-2)
            curves = {name: dict(privacy["by_round"][name]) for name in ("global", "ledger")}
            for done, figures in zip((2, 3, 5), seen, strict=True):
                for name, curve in curves.items():
                    assert figures[name] == pytest.approx(curve[done], rel=1e-3)
            for chart in ("#live-excess_risk", "#live-gradient_norm"):
                expect_points(page, chart, 6)
            expect_lines(page, "#live-epsilon", 2)
            widths = "plots => plots.map(plot => plot.querySelector('.main-svg').clientWidth - plot.clientWidth)"
            assert page.locator("#live-charts .plot").evaluate_all(widths) == [0] * 3, "each in its own place"
            assert page.locator("#live-progress").evaluate("bar => bar.value === bar.max")
            assert text_of(page, "live-said") == "The run is finished."
            assert not page.locator("#live-stopped").is_visible()
        assert run.process.wait(SOON / 1000) == 0


@pytest.mark.parametrize("runtime", HELD)
def test_a_run_that_is_interrupted_says_so_and_is_followed_again(
    browser: Browser, tmp_path: Path, some: Path, runtime: str
) -> None:
    point, options = HELD[runtime]
    out = tmp_path / "out"
    with held_run(point, some, out, *options) as run:
        run.go_to(3)
        with explorer(out) as address, opened(browser, address) as page:
            expect(page.locator("#live-done")).to_have_text("3 / 6")
            before = figures_of(page)
            run.process.send_signal(signal.SIGINT)  # in the middle of the fourth round
            expect(page.locator("#live-state")).to_have_text("stopped")
            assert run.process.wait(SOON / 1000) == 130
            assert text_of(page, "live-why") == "The run was interrupted."
            assert text_of(page, "live-resume") == f"pri-rfed resume {out}"
            assert ("may have answered" in text_of(page, "live-drawn")) == (runtime == "flower")
            assert text_of(page, "live-done") == "3 / 6" and text_of(page, "live-left") == ""
            assert text_of(page, "live-said") == "The run has stopped; 3 of 6 rounds are done."
            after = figures_of(page)
            # Who was drawn for the fourth round may have answered already: what that spent is shown.
            state, spending = State.load(out / "checkpoint.npz"), Spending.of(RunFolder.open(out))
            assert state.round == 3 and len(state.failed) == (runtime == "flower") and spending is not None
            assert after["ledger"] == pytest.approx(spending.after(state.participations.tolist()), rel=1e-3)
            if runtime == "flower":
                assert after["global"] == pytest.approx(dict(spending.before())[4], rel=1e-3)
            else:
                assert after == before

            with started("resume", out, "--json") as again:
                expect(page.locator("#live-state")).to_have_text("finished")
                assert again.wait(SOON / 1000) == 0
            summary = json.loads((out / "summary.json").read_text())
            assert figures_of(page)["ledger"] == pytest.approx(summary["epsilon_ledger_max"], rel=1e-3)
            assert not page.locator("#live-stopped").is_visible() and text_of(page, "live-done") == "6 / 6"

"""The pages of a leaderboard in a browser: what a reader can do with them, and at what size."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_page import entry, rendered

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    Visit = Callable[..., Page]

pytestmark = pytest.mark.slow

DESK = {"width": 1360, "height": 900}
HAND = {"width": 360, "height": 740}
LONG = "W" * 80


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    if path is None or importlib.util.find_spec("playwright") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI must have chromium and playwright")
        pytest.skip("needs chromium and playwright")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three races: of twelve entries, of two private ones, of one; names that are not kind."""
    entries = [entry(i, rules=2) for i in (*range(7), 13)]
    entries += [entry(9, rules=2, name=LONG), entry(10), entry(12, name="<script>boo()</script>")]
    entries += [entry(14, rules=2, name="نظام قوي"), entry(7), entry(8)]
    entries += [entry(0, track="cifar10", division="open", ranking=None)]
    return rendered(tmp_path_factory.mktemp("site"), entries, versions=2)


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """Opens a page; fails in the end if any asked for something beyond its files, or complained."""
    pages: list[Page] = []
    wrong: list[str] = []

    def visit(path: Path, fragment: str = "", **options: Any) -> Page:
        page = browser.new_context(**({"viewport": DESK} | options)).new_page()
        page.set_default_timeout(10_000)
        page.on("request", lambda r: None if r.url.startswith("file:") else wrong.append(r.url))
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(dialog.message))
        page.goto(path.as_uri() + fragment)
        pages.append(page)
        return page

    yield visit
    for page in pages:
        page.context.close()
    assert wrong == []


@pytest.fixture
def index(visit: Visit, site: Path) -> Page:
    return visit(site / "index.html")


ROWS = "section.race:not([hidden]) section.view:not([hidden]) tbody tr:not([hidden])"


def column(page: Page, key: str) -> list[str]:
    found: list[str] = page.eval_on_selector_all(
        f"{ROWS} > .c-{key}", "cells => cells.map(cell => cell.dataset.value)"
    )
    return found


def head(page: Page, key: str) -> Any:
    return page.locator(f"section.view:visible thead th[data-key={key}]")


def ordered(values: list[str], descending: bool) -> list[str]:
    """As the page should: numbers as numbers, what is missing last."""
    there = [value for value in values if value]
    try:
        there.sort(key=float, reverse=descending)
    except ValueError:
        return []
    return there + [""] * (len(values) - len(there))


NUMBERS = ("rank", "worst", "clean", "up", "down", "epsilon", "pareto", "rules", "doubts")


@pytest.mark.parametrize("key", NUMBERS)
def test_a_click_sorts_numbers_and_a_second_one_turns_them_around(index: Page, key: str) -> None:
    index.get_by_label("Search").fill("")  # from the order of ranks
    if key == "rank":
        head(index, "name").get_by_role("button").click()
    seen = []
    for _ in range(2):
        head(index, key).get_by_role("button").click()
        order = head(index, key).get_attribute("aria-sort")
        assert column(index, key) == ordered(column(index, key), order == "descending")
        assert index.locator("section.view:visible th[aria-sort]").count() == 1
        seen.append(order)
    first = "descending" if key in ("worst", "clean", "pareto", "rules") else "ascending"
    assert seen[0] == first
    assert seen[1] != first
    assert len(column(index, key)) == 12


@pytest.mark.parametrize("key", ["name", "system", "status"])
def test_a_click_sorts_texts(index: Page, key: str) -> None:
    head(index, key).get_by_role("button").click()
    up = column(index, key)
    assert up == index.evaluate("texts => texts.sort((a, b) => a.localeCompare(b, 'en'))", up)
    assert up != column_before(index, key)
    head(index, key).get_by_role("button").click()
    assert column(index, key)[0] == up[-1]


def column_before(page: Page, key: str) -> list[str]:
    """The column in the order in which the page was written."""
    rows = page.eval_on_selector_all(
        f"{ROWS}",
        "(rows, key) => rows.sort((a, b) => a.dataset.place - b.dataset.place)"
        ".map(row => row.querySelector('.c-' + key).dataset.value)",
        key,
    )
    return list(rows)


def test_the_keyboard_sorts_filters_and_opens(visit: Visit, site: Path) -> None:
    page = visit(site / "index.html")

    def focused() -> str:
        return str(page.evaluate("document.activeElement.outerHTML.slice(0, 300)"))

    page.keyboard.press("Tab")
    assert "Skip to the content" in focused()
    assert page.locator(".skip").bounding_box()["x"] >= 0  # type: ignore[index]
    page.keyboard.press("Enter")
    assert 'id="main"' in focused()
    page.get_by_label("Search").focus()
    page.keyboard.type("fedavg")
    assert 0 < len(column(page, "name")) < 12
    texts = page.eval_on_selector_all(ROWS, "rows => rows.map(row => row.innerText)")
    assert all("fedavg" in text for text in texts)
    for _ in range(40):
        page.keyboard.press("Tab")
        if focused().startswith("<button") and "Clean" in focused():
            break
    assert "Clean" in focused()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    assert head(page, "clean").get_attribute("aria-sort") == "descending"
    page.keyboard.press("Space")
    assert head(page, "clean").get_attribute("aria-sort") == "ascending"
    for _ in range(40):
        page.keyboard.press("Tab")
        if focused().startswith("<a") and "entries/" in focused():
            break
    page.keyboard.press("Enter")
    page.wait_for_url("**/entries/fedavg-*.html")


def test_points_are_reached_by_tab_and_say_what_they_are(index: Page) -> None:
    points = index.locator("section.view:visible [data-bits]:visible .scatter.at-desk a.point")
    assert points.count() == 12
    points.first.focus()
    assert index.evaluate("document.activeElement.tagName") == "a"
    title = points.first.locator("title").text_content()
    assert title
    assert "in the worst case" in title
    assert index.get_by_role("link", name=title, exact=True).count() == 1


def test_a_name_without_room_is_seen_when_its_point_is_reached(visit: Visit, site: Path) -> None:
    page = visit(site / "index.html", viewport=HAND)
    point = page.locator("section.view:visible .at-hand a.point:has(.crowded)").first
    label = point.locator(".label")
    assert not label.is_visible()
    point.focus()
    assert label.is_visible()


def test_a_filter_shows_what_matches_says_how_many_and_can_be_linked(
    index: Page, visit: Visit, site: Path
) -> None:
    count = index.locator("#count")
    assert count.text_content() == "12 entries"
    assert count.get_attribute("aria-live") == "polite"
    index.get_by_label("Status").select_option("submitted")
    submitted = column(index, "status")
    assert submitted
    assert set(submitted) == {"submitted"}
    assert count.text_content() == f"{len(submitted)} of 12 entries"
    index.get_by_label("Search").fill("  MEDIAN ")
    names = column(index, "name")
    assert 0 < len(names) < len(submitted)
    drawn = "section.view:visible [data-bits]:visible .at-desk"
    dim = index.locator(f"{drawn} .point.out").count()
    assert dim == 12 - len(names)
    linked = visit(site / "index.html", index.evaluate("location.hash"))
    assert column(linked, "name") == names
    assert linked.get_by_label("Search").input_value() == "  MEDIAN "
    index.get_by_label("Search").fill("nothing is called this")
    assert index.locator("section.view:visible .none").is_visible()
    index.get_by_role("button", name="Clear").click()
    assert count.text_content() == "12 entries"
    assert index.get_by_role("button", name="Clear").count() == 0


def test_front_alphabet_and_defense_filter(index: Page) -> None:
    index.get_by_label("Pareto front only").check()
    assert set(column(index, "pareto")) == {"1"}
    index.get_by_label("Pareto front only").uncheck()
    index.get_by_label("Alphabet").select_option("Rankings")
    assert {text.partition(" ")[0] for text in column(index, "system")} == {"fsl"}
    index.get_by_label("Alphabet").select_option("")
    index.get_by_label("Defense").select_option("median")
    assert all(text.endswith("median") for text in column(index, "system"))


def test_equal_bits_is_another_order_that_can_be_linked_and_survives_a_visit_to_an_entry(
    index: Page, visit: Visit, site: Path
) -> None:
    rounds = column(index, "worst")
    index.get_by_text("equal bits", exact=True).click()
    bits = column(index, "worst")
    assert len(bits) == len(rounds)
    assert sorted(bits) != sorted(rounds)
    assert "bits per parameter" in index.locator("section.view:visible > .facts").inner_text()
    index.get_by_label("Search").fill("drive")
    before = column(index, "name")
    linked = visit(site / "index.html", index.evaluate("location.hash"))
    assert linked.get_by_role("radio", name="equal bits").is_checked()
    assert column(linked, "name") == before
    link = index.locator("section.view:visible tbody tr:visible .c-name a").first
    name = link.inner_text()
    link.click()
    index.wait_for_url("**/entries/*.html")
    assert index.locator("h1").inner_text() == name
    index.go_back()
    index.wait_for_url("**/index.html*")
    assert column(index, "name") == before
    assert index.get_by_role("radio", name="equal bits").is_checked()


def test_the_drawing_counts_all_bits_or_those_up(index: Page, visit: Visit, site: Path) -> None:
    shown = "section.view:visible figure [data-bits]:visible svg:visible"
    assert "up + down (log scale)" in index.locator(shown).inner_html()
    index.get_by_role("group", name="Draw bits").get_by_text("up", exact=True).click()
    drawing = index.locator(shown).inner_html()
    assert "per parameter, up (log scale)" in drawing
    assert "up + down (log scale)" not in drawing
    linked = visit(site / "index.html", index.evaluate("location.hash"))
    assert linked.locator(shown).inner_html() == drawing


def test_races_are_shown_one_at_a_time_and_can_be_linked(
    index: Page, visit: Visit, site: Path
) -> None:
    assert index.locator("section.race:visible h2").all_inner_texts() == [
        "digits, season 2026 closed division"
    ]
    index.get_by_role("link", name="cifar10").click()
    assert index.locator("section.race:visible h2").all_inner_texts() == ["cifar10 open division"]
    assert index.locator("#count").text_content() == "1 entry"
    assert index.get_by_role("link", name="cifar10").get_attribute("aria-current") == "true"
    linked = visit(site / "index.html", "#open-cifar10")
    assert linked.locator("section.race:visible").get_attribute("id") == "open-cifar10"


@pytest.mark.parametrize(
    "fragment", ["#race=nowhere&view=x&sort=y&order=z&status=gone", "#x", "#%"]
)
def test_a_foreign_fragment_is_as_none(visit: Visit, site: Path, fragment: str) -> None:
    page = visit(site / "index.html", fragment)
    assert len(column(page, "name")) == 12


def test_without_scripts_everything_is_there(visit: Visit, site: Path) -> None:
    page = visit(site / "index.html", java_script_enabled=False)
    assert page.locator("table.board:visible").count() == 2 * 4  # ε means two things here
    assert page.locator("table.board tbody tr:visible").count() == 2 * 15
    assert not page.locator("#controls").is_visible()
    assert page.get_by_role("button").count() == 0


def entries(site: Path) -> list[Path]:
    return sorted((site / "entries").glob("*.html"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, HAND, {"width": 1280, "height": 800}])
def test_nothing_is_wider_than_the_window(
    visit: Visit, site: Path, size: dict[str, int], scheme: str
) -> None:
    page = visit(site / "index.html", viewport=size, color_scheme=scheme)
    for path in [site / "index.html", *entries(site)[::4], *entries(site)[1:2]]:
        page.goto(path.as_uri())
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, (path.name, wide)
        beyond = "boxes => boxes.map(x => x.scrollWidth - x.clientWidth)"
        cut = page.eval_on_selector_all(".box", beyond)
        assert all(x <= 0 for x in cut), (path.name, cut)
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(21, 23, 26)")


@pytest.mark.parametrize(("size", "drawing"), [(DESK, "at-desk"), (HAND, "at-hand")])
def test_labels_that_are_shown_do_not_lie_on_each_other(
    visit: Visit, site: Path, size: dict[str, int], drawing: str
) -> None:
    page = visit(site / "index.html", viewport=size)
    boxes = page.eval_on_selector_all(
        f"section.view:not([hidden]) .{drawing} .label:not(.crowded)",
        "all => all.filter(x => x.checkVisibility()).map(x => x.getBoundingClientRect().toJSON())",
    )
    assert len(boxes) >= 4
    for i, one in enumerate(boxes):
        assert one["left"] >= 0
        assert one["right"] <= size["width"]
        for other in boxes[i + 1 :]:
            aside = one["right"] <= other["left"] or other["right"] <= one["left"]
            # The box of a line of text is higher than its letters.
            apart = one["bottom"] - 4 <= other["top"] or other["bottom"] - 4 <= one["top"]
            assert aside or apart, (one, other)


def test_a_phone_sorts_and_names_every_number(visit: Visit, site: Path) -> None:
    page = visit(site / "index.html", viewport=HAND, has_touch=True)
    button = head(page, "up").get_by_role("button")
    button.scroll_into_view_if_needed()
    button.tap()
    assert column(page, "up") == ordered(column(page, "up"), False)
    card = page.locator(ROWS).first.inner_text()
    for name in ("Rank", "Worst case", "Clean", "Bits up", "Bits down", "ε", "Pareto", "Doubts"):
        assert name in card


# What axe would ask: names, headings, heads of tables, language, ids that are there once.
CHECK = """() => {
  const wrong = [];
  const all = what => [...document.querySelectorAll(what)];
  const text = node => (node.getAttribute('aria-label') || node.textContent || '').trim();
  if (document.documentElement.lang !== 'en') wrong.push('lang');
  if (all('h1').length !== 1) wrong.push('h1');
  if (all('main').length !== 1) wrong.push('main');
  for (const node of all('button, a, h1, h2, h3, legend, option, title'))
    if (!text(node)) wrong.push('no name: ' + node.outerHTML);
  for (const node of all('input, select'))
    if (!node.labels.length || !text(node.labels[0])) wrong.push('no label: ' + node.outerHTML);
  for (const node of all('th')) if (!node.scope) wrong.push('no scope: ' + node.outerHTML);
  for (const node of all('svg'))
    if (!node.closest('[aria-hidden=true]') && !node.getAttribute('aria-label'))
      wrong.push('svg: ' + node.outerHTML.slice(0, 80));
  const ids = all('[id]').map(node => node.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) wrong.push('twice: ' + id);
  for (const node of all('[aria-labelledby]'))
    if (!document.getElementById(node.getAttribute('aria-labelledby'))) wrong.push('to nothing');
  let level = 0;
  for (const node of all('h1, h2, h3')) {
    const now = Number(node.tagName[1]);
    if (now > level + 1) wrong.push('level: ' + node.outerHTML);
    level = now;
  }
  return wrong;
}"""


def test_every_page_can_be_read_aloud(index: Page, site: Path) -> None:
    for path in [site / "index.html", *entries(site)]:
        index.goto(path.as_uri())
        assert index.evaluate(CHECK) == [], path.name


def test_the_command_is_copied_as_it_is(visit: Visit, site: Path) -> None:
    page = visit(entries(site)[0], permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy").click()
    page.get_by_role("button", name="Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.locator("#command").text_content()
    assert copied.startswith("fedbench attack --protocol ")
    assert "  " not in copied


def test_pictures_of_it_can_be_taken(visit: Visit, site: Path, tmp_path: Path) -> None:
    for name, path, options in (
        ("light", site / "index.html", {"color_scheme": "light"}),
        ("dark", site / "index.html", {"color_scheme": "dark"}),
        ("phone", site / "index.html", {"viewport": HAND}),
        ("entry", entries(site)[0], {}),
    ):
        page = visit(path, **options)
        picture = page.screenshot(path=tmp_path / f"{name}.png", full_page=True)
        assert len(picture) > 20_000

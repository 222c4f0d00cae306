"""A report's parts, on a terminal, in a notebook and on a page."""

from hypothesis import given
from hypothesis import strategies as st
from shown_html import cells, words

from dataporter.tools import report
from dataporter.tools.report import as_lines, as_notebook, as_page, as_text

EVIL = "<script>alert('$x$')</script> & more"

PARTS = [
    report.Headline(EVIL, "bad"),
    report.Words(["one", EVIL], "soft"),
    report.Rows([("epoch", "3"), ("texts", EVIL)], "About", {"texts": [EVIL] * 9}),
    report.Table(("stage", "mean", ""), [("fetch", "2 ms", EVIL)], "Stages", ends_with_text=True),
    report.Shares("ready", [("0", 0.25, "25 %"), ("1+", 0.75, "75 %")]),
    report.Advice("What to change", [("num_workers=4", EVIL)]),
    report.Images("image", EVIL, [("data:image/png;base64,", EVIL)]),
]


class Shown:
    def _repr_html_(self):
        return as_notebook(PARTS)


@given(
    st.lists(st.text(max_size=30), min_size=1, max_size=9).flatmap(
        lambda names: st.tuples(
            st.just(names),
            st.lists(st.lists(st.text(max_size=20), min_size=len(names), max_size=len(names))),
        )
    )
)
def test_a_table_that_drops_columns_fits(table):
    columns, rows = table
    lines = [line for line, _ in as_lines(report.Table(columns, rows, drops_columns=True))]
    assert len(lines) == len(rows) + 1
    assert all(len(line) <= 80 for line in lines)


def test_text_has_all_but_what_is_for_pages():
    text = as_text(PARTS)
    assert text.startswith("<script>")
    assert "fetch  2 ms" in text
    assert " 1. num_workers=4: <script>" in text
    assert "    and 5 more" in text
    assert f"{chr(0x2588) * 30}" in text


def test_another_table_shows_all_columns_however_wide():
    table = report.Table(("loader", "version", "of limit"), [("torch", "2" * 90, "43 %")])
    assert as_text([table]).endswith("2      43 %")


def test_rows_stand_out_by_their_style():
    table = report.Table(("", "result"), [("ids", "same"), ("loss", "differs")], styles={1: "bad"})
    assert [style for _, style in as_lines(table)] == ["", "", "bad"]


def test_a_long_table_is_cut_on_a_terminal_only():
    table = report.Table(("row",), [(number,) for number in range(20)], most=16)
    assert as_text([table]).splitlines()[-1] == "  and 4 more"
    assert as_page("show", "", [table]).count("<tr") == 21


def test_a_notebook_has_the_same_tables():
    found = cells(Shown())
    assert ["fetch", "2 ms", EVIL] in found
    assert ["1+", "75 %"] in found
    assert "num_workers=4:" in words(Shown())


def test_a_page_has_every_part_escaped():
    page = as_page("plan", EVIL, PARTS)
    assert page.startswith("<!doctype html>")
    assert "<script" not in page
    for kept in ("What to change", "75 %", "<meter", "Stages", 'class="bad"', "<pre>", "<img"):
        assert kept in page

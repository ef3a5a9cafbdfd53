"""Text is escaped wherever it goes in."""

from __future__ import annotations

from tests.report.made import HOSTILE, Page

from colonnade.report.html import Cell, Html, h, joined, table, text


def test_text_and_attributes_are_escaped_and_markup_is_not() -> None:
    made = h(
        "p", HOSTILE, h("b", "x"), title=HOSTILE, class_="a", data_key=None, hidden=True
    )
    assert "<img" not in made
    assert made.startswith('<p title="&lt;img')
    assert "<b>x</b>" in made
    assert made.endswith("</p>")
    assert 'class="a" hidden>' in made
    page = Page(made)
    assert HOSTILE in page.text
    assert page.values("title") == [HOSTILE]


def test_void_elements_numbers_lists_and_nothing() -> None:
    assert h("br") == "<br/>"
    assert h("td", None, 3, [1.5, "a"], ()) == "<td>31.5a</td>"
    assert text("<") == "&lt;"
    assert isinstance(text("a"), Html)


def test_a_long_name_may_go_on_in_a_new_line() -> None:
    name = "laboratory_north_of_the-river_with_a_name"
    made = table(
        "T",
        ("who",),
        [[name], ["short_name"], ["words with a short_name and much more"]],
    )
    assert "laboratory_<wbr/>north_<wbr/>of_<wbr/>the-<wbr/>river_" in made
    assert made.count("<wbr/>") == 7
    assert Page(made).tables["T"] == [
        ["who"],
        [name],
        ["short_name"],
        ["words with a short_name and much more"],
    ]


def test_a_list_in_words() -> None:
    assert joined(["a"]) == "a"
    assert joined(["a", "b", "<"]) == "a, b and &lt;"


def test_a_table_has_keys_to_sort_by_and_aligns_its_numbers() -> None:
    made = table(
        "Caption",
        ("who", "how much"),
        [["b", Cell("1.0 kB", 1000)], ["a", Cell("2 B", 2)]],
    )
    page = Page(made)
    assert page.tables["Caption"] == [
        ["who", "how much"],
        ["b", "1.0 kB"],
        ["a", "2 B"],
    ]
    assert page.keys(made, "Caption") == [["1000"], ["2"]]
    assert '<th scope="col" class="n">how much</th>' in made
    assert 'class="sortable"' in made
    assert 'class="sortable"' not in table("one row", ("a",), [["x"]])

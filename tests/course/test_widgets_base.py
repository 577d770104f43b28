"""A picture with controls: controls fit each other, every change draws anew, errors are drawn, all is deterministic."""

import sys
import xml.etree.ElementTree as ElementTree
from types import ModuleType

import pytest

from course.predicting import Buttons
from course.predictions import prediction_of
from course.widgets.base import Choice, Explorer, Press, Step
from course.widgets.card import Piece, Sheet, beside, card, error_sheet, paragraph, size_of, stack
from tinyshard.core.errors import ShardingError

SVG = "{http://www.w3.org/2000/svg}"


def words_of(svg):
    return [text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def explorer():
    """A colour, a shade that only red and green have, a number up to the length of the colour, a button."""
    shades = {"red": ["rose", "wine"], "green": ["moss", "wine"], "blue": []}
    return Explorer(
        "colours",
        [
            Choice("colour", "colour", [(name, name) for name in shades], start="green"),
            Choice("shade", "shade", lambda chosen: [(name, name) for name in shades[chosen["colour"]]]),
            Step("count", "count", lambda chosen: len(chosen["colour"]), start=5),
            Press("again", "again"),
        ],
        look=lambda **chosen: chosen,
        draw=lambda chosen: Sheet("shades", paragraph([f"{name} {value}" for name, value in chosen.items()])),
        describe=lambda chosen: " ".join(f"{name}={value}" for name, value in chosen.items()),
    )


def test_controls_start_where_they_are_told_or_at_the_first_of_their_list():
    assert explorer().text == "colour=green shade=moss count=5 again=0"


def test_a_later_control_keeps_its_value_where_an_earlier_change_still_allows_it():
    assert explorer().choose(shade="wine").choose(colour="red").text == "colour=red shade=wine count=3 again=0"
    assert explorer().choose(shade="moss").choose(colour="red").text == "colour=red shade=rose count=3 again=0"


def test_a_control_without_options_is_hidden_and_comes_back():
    found = explorer().choose(colour="blue")
    shade = found.panel.children[0].children[1]
    assert found.choices["shade"] is None
    assert shade.layout.display == "none"
    found.choose(colour="red")
    assert found.choices["shade"] == "rose"
    assert shade.layout.display is None


def test_a_choice_whose_value_is_none_shows_its_words():
    found = Explorer(
        "a result",
        [Choice("result", "result", [("as it comes", None), ("one", 1)])],
        look=lambda result: result,
        draw=lambda result: Sheet("a result", paragraph([str(result)])),
        describe=str,
    )
    dropdown = found.panel.children[0].children[0]
    assert (dropdown.label, found.text) == ("as it comes", "None")
    assert found.choose(result=1).text == "1"
    assert found.choose(result=None).text == "None"
    assert dropdown.label == "as it comes"


def test_moving_a_widget_as_a_hand_would_draws_anew():
    found = explorer()
    before = found.svg
    row, picture, _ = found.panel.children
    colour, _, count, button, _ = row.children
    colour.value = "red"
    assert "colour red" in words_of(found.svg)
    count.value = 1
    assert "count 1" in words_of(found.svg)
    button.click()
    assert "again 1" in words_of(found.svg)
    assert found.svg in picture.value != before


def test_every_control_changes_the_picture():
    pictures = [explorer().svg]
    pictures += [explorer().choose(**one).svg for one in ({"colour": "red"}, {"shade": "wine"}, {"count": 1})]
    pictures.append(explorer().choose(again=1).svg)
    assert len(set(pictures)) == 5


def test_a_control_or_a_value_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="no control named size; there are: colour, shade, count, again"):
        explorer().choose(size=1)
    with pytest.raises(ValueError, match="'pink' is not offered by colour"):
        explorer().choose(colour="pink")


def test_the_words_are_shown_on_request_and_follow_the_picture():
    found = explorer()
    row, _, words = found.panel.children
    assert words.layout.display == "none"
    row.children[-1].value = True
    assert words.layout.display is None
    found.choose(colour="blue")
    assert "colour=blue" in words.value
    row.children[-1].value = False
    assert words.layout.display == "none"


def test_the_lines_of_the_words_are_scrolled_not_broken():
    words = explorer().panel.children[2].value
    assert "overflow-x:auto" in words and 'white-space:pre"' in words


def test_a_notebook_gets_the_live_panel_the_picture_and_the_words():
    bundle = explorer()._repr_mimebundle_()
    assert bundle["text/plain"] == "colour=green shade=moss count=5 again=0"
    assert words_of(bundle["image/svg+xml"]) == ["colours", "colour green", "shade moss", "count 5", "again 0"]
    assert "model_id" in bundle["application/vnd.jupyter.widget-view+json"]


def test_colab_keeps_the_still_picture_and_the_letters_in_words(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    assert set(explorer()._repr_mimebundle_()) == {"image/svg+xml", "text/plain"}
    assert set(Buttons(prediction_of("05.a"))._repr_mimebundle_()) == {"text/plain"}


def test_a_picture_is_scrolled_where_it_would_become_too_small():
    width, _ = size_of(explorer().svg)
    _, picture, _ = explorer().panel.children
    assert f'min-width:{0.85 * width:.0f}px">' in picture.value


def test_two_explorers_of_a_kind_store_the_same():
    one, other = (found._repr_mimebundle_() for found in (explorer(), explorer()))
    assert {kind: one[kind] for kind in ("image/svg+xml", "text/plain")} == {
        kind: other[kind] for kind in ("image/svg+xml", "text/plain")
    }


def test_an_error_of_the_library_is_drawn_and_the_next_choice_draws_again():
    def look(count):
        if count == 1:
            raise ShardingError("it does not fit\n  got:  <1>\n  rule: not 1")
        return count

    found = Explorer("numbers", [Step("count", "count", 2)], look, lambda n: Sheet("n", paragraph([str(n)])), str)
    found.choose(count=1)
    assert found.text == "it does not fit\n  got:  <1>\n  rule: not 1"
    heading, said, *lines = words_of(found.svg)
    assert (heading, said, lines) == ("numbers", "The library refuses this:", found.text.splitlines())
    assert words_of(found.choose(count=2).svg) == ["numbers", "2"]


def test_any_other_error_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        Explorer(
            "numbers",
            [Step("count", "count", 2)],
            lambda count: 1 / count,
            lambda n: Sheet("n", paragraph([str(n)])),
            str,
        )


def test_pieces_take_the_room_that_they_say():
    a, b = Piece("<a/>", 10, 4), Piece("<b/>", 6, 8)
    assert (stack([a, b], gap=2).width, stack([a, b], gap=2).height) == (10, 14)
    assert (beside([a, b], gap=2).width, beside([a, b], gap=2).height) == (18, 8)
    assert size_of(card("", Sheet("both", beside([a, b], gap=2)))) == (42, 60)


def test_a_card_has_a_title_for_screen_readers_and_ink_and_paper_for_any_page():
    root = ElementTree.fromstring(card("heading", Sheet("a <title> & more", paragraph(["words"]))))
    assert (root.get("role"), root.get("aria-label")) == ("img", "a <title> & more")
    assert root.find(f"{SVG}title").text == "a <title> & more"
    assert "#1a1a1a" in root.get("style")
    assert "#ffffff" in root.find(f"{SVG}rect").get("style")


def test_a_long_line_of_an_error_is_folded_at_a_blank():
    line = "  try:  " + "word " * 30
    drawn = words_of(card("a picture", error_sheet("a picture", line)))[2:]
    assert max(map(len, drawn)) <= 92
    assert " ".join(" ".join(drawn).split()) == " ".join(line.split())

"""A picture with controls: what a notebook shows, stores and compares.

A picture is made in three steps, each a plain function that can be tested and called without any notebook:

    look(**choices) → data      what the library really says: a Layout, a Program, recorded traffic
    draw(data) → Sheet          the picture, and what it shows in one sentence
    describe(data) → words      the same in words, for screen readers, for a terminal, for the comparison by nbval

`Explorer` puts controls around them. In a running notebook they are ordinary ipywidgets, which the keyboard reaches
by Tab, arrows and Enter. What is stored is the picture for the present choices, as SVG and as text: a page that runs
no Python (GitHub, nbviewer) shows it too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Generic, TypeVar

import ipywidgets

from course.live import view_of
from course.widgets.card import Sheet, card, error_sheet, size_of
from tinyshard.core.errors import TinyshardError

__all__ = ["Choice", "Control", "Explorer", "Press", "Step"]

Data = TypeVar("Data")
Choices = Mapping[str, Any]
Options = Sequence[tuple[str, Any]]

_FIRST: Any = object()  # not None, which may be one of the values
_NONE: Any = object()  # represents the value None in a dropdown: for ipywidgets None means "nothing is chosen"
LEAST_SCALE = 0.85  # of a picture in a narrow window: its words have 11 px and more
_LABEL = {"description_width": "initial"}
# ipywidgets draws the arrow of a dropdown black in any theme: in JupyterLab's dark one it would not be seen
_ARROW = "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 18 18'><path fill='%23e0e0e0' d='M4 7h10l-5 5z'/></svg>"
_DARK = (
    f'<style>[data-jp-theme-light="false"]{{--jp-widgets-dropdown-arrow:url("data:image/svg+xml,{_ARROW}")}}</style>'
)


@dataclass(frozen=True)
class Choice:
    """One value out of a list: a dropdown.

    Args:
        name: the argument of `look` that it sets.
        label: the words before it.
        options: pairs (words, value), or a function from the choices of the controls before this one to such pairs.
            Where the list is empty, the control is hidden and its value is None.
        start: the value chosen at first, where the list has it; else the first value of the list.
    """

    name: str
    label: str
    options: Options | Callable[[Choices], Options]
    start: Any = _FIRST


@dataclass(frozen=True)
class Step:
    """A whole number from 0 to `most`: a slider.

    Args:
        name: the argument of `look` that it sets.
        label: the words before it.
        most: the largest number, or a function from the choices of the controls before this one to it. Where it is 0,
            the control is hidden.
        start: the number at first.
    """

    name: str
    label: str
    most: int | Callable[[Choices], int]
    start: int = 0


@dataclass(frozen=True)
class Press:
    """A button; its value is how often it was pressed. 0 must draw what is stored: something deterministic.

    Args:
        name: the argument of `look` that it sets.
        label: the words on it.
    """

    name: str
    label: str


Control = Choice | Step | Press


class Explorer(Generic[Data]):
    """A picture and the controls that change it.

    Args:
        heading: what it shows, in a few words; written in bold above the picture, whatever is chosen.
        controls: from left to right; a later one may depend on the earlier ones.
        look: from the choices, by name, to plain data. A TinyshardError that it raises is drawn instead.
        draw: from the data to the sheet that is put on a card.
        describe: from the data to the same in words.

    Communication: none by itself; `look` may run programs.

    Example:
        >>> from course.widgets.card import Piece, Sheet
        >>> square = Explorer(
        ...     "a square number",
        ...     [Step("side", "side", most=3, start=2)],
        ...     look=lambda side: side * side,
        ...     draw=lambda n: Sheet(f"{n} squares", Piece(f"<text>{n}</text>", 100, 20)),
        ...     describe=lambda n: f"{n} small squares",
        ... )
        >>> square
        4 small squares
        >>> square.choose(side=3)
        9 small squares
    """

    def __init__(
        self,
        heading: str,
        controls: Sequence[Control],
        look: Callable[..., Data],
        draw: Callable[[Data], Sheet],
        describe: Callable[[Data], str],
    ) -> None:
        self._heading = heading
        self._controls = tuple(controls)
        self._look, self._draw, self._describe = look, draw, describe
        self._is_changing = False
        self._presses = {control.name: 0 for control in controls if isinstance(control, Press)}
        self._widgets = {control.name: self._widget(control) for control in controls}
        self._picture = ipywidgets.HTML()
        self._words = ipywidgets.HTML(layout={"display": "none"})
        self._in_words = ipywidgets.ToggleButton(
            description="as text", tooltip="show the picture as text", layout={"width": "auto"}
        )
        self._in_words.observe(self._show_words, "value")
        row = ipywidgets.HBox(
            [*self._widgets.values(), self._in_words], layout={"flex_flow": "row wrap", "align_items": "center"}
        )
        self.panel = ipywidgets.VBox([row, self._picture, self._words])
        self.refresh()

    @property
    def choices(self) -> dict[str, Any]:
        """The present value of each control, by name."""
        return {control.name: self._value(control) for control in self._controls}

    def choose(self, **values: Any) -> Explorer[Data]:
        """Move controls, as a hand would, and give back the same explorer.

        Args:
            **values: a value for each control to set; a button is pressed that many times in all.

        Raises:
            ValueError: the control does not exist, or does not have this value.
        """
        unknown = values.keys() - self._widgets.keys()
        if unknown:
            raise ValueError(f"no control named {', '.join(sorted(unknown))}; there are: {', '.join(self._widgets)}")
        for control in self._controls:
            if control.name not in values:
                continue
            value = values[control.name]
            if isinstance(control, Press):
                self._presses[control.name] = value
                self.refresh()
            elif isinstance(control, Choice) and value not in [known for _, known in self._offered(control)]:
                raise ValueError(f"{value!r} is not offered by {control.name}")
            else:
                self._widgets[control.name].value = _in_widget(value)
        return self

    def refresh(self) -> None:
        """Bring the controls into line with each other, look again, and draw."""
        self._is_changing = True
        try:
            for control in self._controls:
                self._fit(control)
        finally:
            self._is_changing = False
        try:
            data = self._look(**self.choices)
        except TinyshardError as error:
            sheet, self.text = error_sheet(self._heading, str(error)), str(error)
        else:
            sheet, self.text = self._draw(data), self._describe(data)
        self.svg = card(self._heading, sheet)
        self._picture.value = _scrolled(self.svg)
        # a table whose lines are broken cannot be read: what has no room is scrolled
        words = f'<pre style="font-size:12px;line-height:1.2;white-space:pre">{escape(self.text)}</pre>'
        self._words.value = f"{_scroller(words)}{_DARK}"

    def __repr__(self) -> str:
        """The picture in words."""
        return self.text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """The live panel for a notebook that runs; picture and words for every other page, and for nbval."""
        return {**view_of(self.panel), "image/svg+xml": self.svg, "text/plain": self.text}

    def _widget(self, control: Control) -> Any:
        if isinstance(control, Press):
            button = ipywidgets.Button(description=control.label, layout={"width": "auto"})
            button.on_click(lambda _: self._press(control.name))
            return button
        if isinstance(control, Choice):
            widget = ipywidgets.Dropdown(
                description=control.label, style=_LABEL, layout={"width": "auto", "max_width": "calc(100% - 4px)"}
            )
        else:
            widget = ipywidgets.IntSlider(
                description=control.label, min=0, max=max(control.start, 1), value=control.start, style=_LABEL
            )
        widget.observe(self._changed, "value")
        return widget

    def _offered(self, control: Choice) -> list[tuple[str, Any]]:
        options = control.options(self._before(control)) if callable(control.options) else control.options
        return list(options)

    def _before(self, control: Control) -> dict[str, Any]:
        """The choices of the controls before this one."""
        earlier = self._controls[: self._controls.index(control)]
        return {one.name: self._value(one) for one in earlier}

    def _value(self, control: Control) -> Any:
        if isinstance(control, Press):
            return self._presses[control.name]
        value = self._widgets[control.name].value
        return None if value is _NONE else value

    def _fit(self, control: Control) -> None:
        """Offer what the choices before this control allow, keeping its value where that is still one of them."""
        widget = self._widgets[control.name]
        if isinstance(control, Choice):
            offered = [(words, _in_widget(value)) for words, value in self._offered(control)]
            if list(widget.options) != offered:
                is_first = not widget.options
                value = _in_widget(control.start) if is_first else widget.value
                values = [known for _, known in offered]
                widget.options = offered
                widget.value = value if value in values else values[0] if values else None
            widget.layout.display = None if offered else "none"
        elif isinstance(control, Step):
            most = control.most(self._before(control)) if callable(control.most) else control.most
            # a slider refuses a range that does not hold its value
            widget.value = min(widget.value, most)
            widget.max = max(most, 1)
            widget.layout.display = None if most else "none"

    def _changed(self, change: Any) -> None:
        if not self._is_changing:
            self.refresh()

    def _press(self, name: str) -> None:
        self._presses[name] += 1
        self.refresh()

    def _show_words(self, change: Any) -> None:
        self._words.layout.display = None if change["new"] else "none"


def _scrolled(svg: str) -> str:
    """A picture that becomes smaller where there is little room, but not too small to be read: then it is scrolled."""
    width, _ = size_of(svg)
    return _scroller(f'<div style="min-width:{LEAST_SCALE * width:.0f}px">{svg}</div>')


def _scroller(html: str) -> str:
    return f'<div style="overflow-x:auto;width:0;min-width:100%">{html}</div>'


def _in_widget(value: Any) -> Any:
    return _NONE if value is None else value

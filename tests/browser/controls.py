"""The controls of a visualizer, moved by mouse and keyboard as a learner would."""

from collections.abc import Callable, Iterator

from playwright.sync_api import ElementHandle

ANSWER_MS = 60_000
PICTURE = "Array.from(output.querySelectorAll('svg')).map(svg => svg.outerHTML).join()"

# Notes when the kernel was last done with something; the picture comes within moments of it, or not at all.
LISTEN = """() => {
    window.idleAt = undefined;
    const context = window.jupyterapp.shell.currentWidget.sessionContext;
    const note = (_, status) => { window.idleAt = status === 'idle' ? performance.now() : undefined; };
    if (window.noted) { window.noted(); }
    context.statusChanged.connect(note);
    window.noted = () => context.statusChanged.disconnect(note);
}"""
HAS_ANSWERED = f"""([output, before]) => {{
    const now = {PICTURE};
    return (now !== '' && now !== before) || performance.now() - window.idleAt > 1000;
}}"""

# Words in place of the picture are not a change of the picture.
IN_WORDS = "as text"


def moves(output: ElementHandle) -> Iterator[tuple[str, Callable[[], None]]]:
    """What can be moved in an output: a name for messages, and a function that moves it one step."""
    for select in output.query_selector_all("select"):
        if select.is_visible() and len(select.query_selector_all("option")) > 1:
            yield f"dropdown {label_of(select)!r}", lambda select=select: choose_another(select)
    for handle in output.query_selector_all(".noUi-handle, input[type=range]"):
        if handle.is_visible():
            yield f"slider {label_of(handle)!r}", lambda handle=handle: step(handle)
    for button in output.query_selector_all("button"):
        words = button.inner_text().strip()
        if button.is_visible() and button.is_enabled() and words != IN_WORDS:
            yield f"button {words!r}", button.click


def choose_another(select: ElementHandle) -> None:
    """The next of its options, or the one before where the last is chosen."""
    chosen = int(select.evaluate("select => select.selectedIndex"))
    count = len(select.query_selector_all("option"))
    select.select_option(index=chosen + 1 if chosen + 1 < count else chosen - 1)


def step(handle: ElementHandle) -> None:
    """One step by the keyboard: forward, or back from the end."""
    handle.focus()
    at, most = (handle.get_attribute(name) for name in ("aria-valuenow", "aria-valuemax"))
    handle.press("ArrowLeft" if at is not None and at == most else "ArrowRight")


def label_of(control: ElementHandle) -> str:
    """The words before a control."""
    return control.evaluate(
        "control => control.closest('.jupyter-widgets')?.querySelector('label')?.innerText.trim() ?? ''"
    )


def picture_of(output: ElementHandle) -> str:
    """The pictures in an output, as text."""
    return output.evaluate(f"output => {PICTURE}")


def changes(output: ElementHandle, move: Callable[[], None]) -> bool:
    """Whether the picture is another one after the move: it has changed, or the kernel has answered and it has not."""
    page = output.owner_frame()
    assert page is not None
    before = picture_of(output)
    page.evaluate(LISTEN)
    move()
    page.wait_for_function(HAS_ANSWERED, arg=[output, before], timeout=ANSWER_MS, polling=100)
    return picture_of(output) not in ("", before)

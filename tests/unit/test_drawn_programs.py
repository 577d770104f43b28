"""A program drawn: a table of its steps, with the layouts, the bytes and the memory of the text and the analyses."""

import html.parser
import re

import pytest
import torch

import tinyshard as ts
from tinyshard import P
from tinyshard.compile.compiled import Lowered
from tinyshard.compile.memory import memory_of_bodies
from tinyshard.core import page as shown
from tinyshard.core.page import STYLE, page, restyled
from tinyshard.draw import program as drawing
from tinyshard.draw.tables import MOST_ROWS, memory_html

LINE = ts.AbstractMesh((8,), ("model",))
GRID = ts.AbstractMesh((4, 2), ("data", "model"))
VOID = {"br", "use", "path", "rect", "circle"}


def described(shape: tuple[int, ...], mesh: ts.AbstractMesh, spec: P) -> ts.ShapeDtypeStruct:
    return ts.ShapeDtypeStruct(shape, torch.float32, sharding=ts.NamedSharding(mesh, spec))


def layer(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    h = torch.relu(x @ up)
    return h @ down


def lowered_layer() -> Lowered:
    up, down = described((32, 64), LINE, P(None, "model")), described((64, 32), LINE, P("model"))
    return ts.jit(layer).lower(described((16, 32), LINE, P()), up, down)


def looped(c: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    def body(c: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        c = torch.tanh(c + row)
        return c, c.sum()

    return ts.lax.scan(body, c, rows)


class Checked(html.parser.HTMLParser):
    """Every element is closed where it should be; what is read of it is kept."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.words.append(data)


def words_of(text: str) -> str:
    return re.sub(r"\s+", " ", " ".join(Checked(text).words))


def test_each_step_has_its_user_line_layouts_bytes_and_memory() -> None:
    compiled = lowered_layer().compile()
    shown = words_of(compiled._repr_html_())
    assert shown.index("h = torch.relu(x @ up)") < shown.index("mm") < shown.index("relu %3") < shown.index("return h")
    assert "%3 f32[16, 8] of f32[16, 64@model]" in shown
    assert "%5 f32[16, 32] part of a sum" in shown
    assert "all_reduce over model %5 op=sum %6 f32[16, 32] 3,584" in shown
    assert compiled.cost_analysis().nbytes == 3584
    peak = compiled.memory_analysis().peak_nbytes
    assert f"{peak / 1024:.2f}".rstrip("0").rstrip(".") + " KiB held by a device at the peak" in shown


def test_what_is_drawn_of_each_value_is_its_whole_tensor() -> None:
    a, b = described((8, 16), GRID, P("data", "model")), described((16, 24), GRID, P("model"))
    program = ts.jit(lambda a, b: ((a @ b).relu().sum(1), a.T + 1)).lower(a, b).compile().program
    wholes = {"aten.mm.default": (8, 24), "aten.relu.default": (8, 24), "aten.sum.dim_IntList": (8,)}
    wholes |= {"aten.permute.default": (16, 8), "aten.t.default": (16, 8), "aten.add.Tensor": (16, 8)}
    seen = set()
    for step in program.steps:
        cut, meta = program.cuts[step.results[0]], program.metas[step.results[0]]
        assert cut is not None and meta is not None
        sizes = [n * [1, 4, 2][1 + max(axes, default=-1)] for n, axes in zip(meta.shape, cut[0], strict=True)]
        if step.op in wholes:
            seen.add(step.op)
            assert tuple(sizes) == wholes[step.op]
    assert {"aten.mm.default", "aten.relu.default", "aten.add.Tensor"} <= seen


def test_a_loop_shows_its_body_as_a_table_within() -> None:
    c, rows = described((8, 16), GRID, P("data")), described((5, 8, 16), GRID, P(None, "data"))
    lowered = ts.jit(looped).lower(c, rows)
    for text in (lowered._repr_html_(), lowered.compile()._repr_html_()):
        outer, _, inner = text.partition("<details")
        assert "scan" in words_of(outer + "".join(f"</{tag}>" for tag in ("td", "tr", "tbody", "table", "div", "div")))
        assert "tanh" not in outer
        assert "tanh" in inner
        Checked(text)
    assert "a round of the scan, of 5" in text
    assert "carry, at first %0" in text


def test_a_lowered_function_is_drawn_on_whole_tensors() -> None:
    shown = words_of(lowered_layer()._repr_html_())
    assert "layer on whole tensors" in shown
    assert "%3 f32[16, 64]" in shown
    assert "bytes sent" not in shown


def test_of_many_steps_the_middle_is_folded_and_the_rest_left_to_the_text() -> None:
    def long(x: torch.Tensor) -> torch.Tensor:
        for _ in range(drawing.MOST_FOLDED + drawing.FIRST + drawing.LAST + 50):
            x = torch.sin(x)
        return x

    text = ts.jit(long).lower(described((8,), LINE, P("model"))).compile()._repr_html_()
    assert "50 more steps stand in the text" in words_of(text)
    assert text.count("<tr title") == drawing.MOST_FOLDED + drawing.FIRST + drawing.LAST


def test_it_is_the_same_each_time_needs_no_script_and_prints_as_the_text() -> None:
    lowered = lowered_layer()
    compiled, again = lowered.compile(), lowered_layer().compile()
    assert compiled._repr_html_() == again._repr_html_()
    assert "<script" not in compiled._repr_html_()
    assert (str(compiled), str(lowered)) == (compiled.as_text(), lowered.as_text())


def test_values_of_a_mapped_function_are_each_devices_own() -> None:
    def total(x: torch.Tensor) -> torch.Tensor:
        return ts.lax.psum(x.sin(), "model")

    mapped = ts.jit(ts.shard_map(total, mesh=LINE, in_specs=P("model"), out_specs=P()))
    compiled = mapped.lower(described((8, 4), LINE, P("model"))).compile()
    program = compiled.program
    sine = next(step for step in program.steps if "sin" in step.op)
    assert program.cuts[sine.results[0]] is None
    assert program.cuts[program.outputs[0]] == (((), ()), ())
    Checked(compiled._repr_html_())


def outermost(rules: str) -> list[str]:
    """The selectors of rules, without those of rules within them; what a `@container` encloses is not within one."""
    found, depth, within = [], 0, 0
    for before, brace in re.findall(r"([^{}]*)([{}])", rules):
        if brace == "}":
            depth -= 1
            within = min(within, depth)
        elif before.startswith("@container"):
            depth, within = depth + 1, depth + 1
        else:
            found += [before] if depth == within else []
            depth += 1
    return found


@pytest.mark.parametrize("name", STYLE)
def test_a_page_has_the_rules_of_its_classes(name: str) -> None:
    text = page(f"{name}>" if name[0] == "<" else f'<p class="ts-{name}"></p>')
    assert STYLE[name] in text
    assert len(text) < 3000
    selectors = outermost(STYLE[name])
    assert selectors and all(each.startswith(".ts-") for each in selectors), "it reaches nothing else of the page"
    assert "prefers-color-scheme" not in text, "JupyterLab's theme need not be the system's"


class Shell:
    """A notebook's shell, as far as what is shown reaches it."""

    kernel = object()

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []
        self.display_pub = self

    def publish(self, data: dict[str, str]) -> None:
        self.shown.append(data)


def test_a_notebook_draws_what_a_terminal_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ts.NamedSharding(LINE, P("model"))
    ts.debug.visualize_sharding((8, 4), rows)
    printed, shell = capsys.readouterr().out, Shell()
    monkeypatch.setattr(shown, "ipython_shell", lambda: shell)
    ts.debug.visualize_sharding((8, 4), rows)
    [data] = shell.shown
    assert data["text/plain"] == printed.rstrip("\n")
    assert data["text/html"].count("<title>") == 9, "the picture has a title, and each block"
    assert capsys.readouterr().out == ""


def test_analyses_are_tables_of_what_they_print() -> None:
    compiled = lowered_layer().compile()
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
    assert "all_reduce model 1 3,584" in words_of(ts.collectives_in(compiled)._repr_html_())
    assert words_of(cost._repr_html_()).startswith(str(cost).splitlines()[0])
    drawn = words_of(memory._repr_html_())
    assert drawn.startswith(str(memory).splitlines()[0])
    assert all(f"{step.nbytes:,}" in drawn for step in memory.steps)
    assert drawn.count("peak") == 1 + sum(step.nbytes == memory.peak_nbytes for step in memory.steps)
    assert words_of(type(cost.traffic)()._repr_html_()) == "no collectives"
    rule = ts.debug.rule(torch.mm, torch.ones(2, 3), torch.ones(3, 4))
    assert "k cut along an axis, each device has a part of the sum" in words_of(rule._repr_html_())


def test_of_many_steps_memory_shows_those_around_the_peak() -> None:
    steps = [("aten.sin.default", f"%{k}", False, 1000 - abs(k - 300)) for k in range(500)]
    drawn = words_of(memory_html("", steps))
    assert "%300 1,000 peak" in drawn and "%100 " not in drawn
    assert f"{500 - MOST_ROWS} more stand in the text" in drawn


def test_an_error_is_a_card_of_its_parts() -> None:
    with pytest.raises(ts.ShardingError) as caught:
        ts.NamedSharding(LINE, P("model")).shard_shape((10,))
    drawn = caught.value._repr_html_()
    assert re.sub(r"\s+", " ", words_of(drawn)) == re.sub(
        r"\s+", " ", re.sub(r"(got|rule|try):", r"\1", str(caught.value))
    )
    assert drawn.count("<dt>") == 3
    several = ts.errors.TinyshardError("one\ntwo", got="a\nb", try_="`x < 1`")._repr_html_()
    assert "<pre>two</pre>" in several and "<dd>a\nb</dd>" in several and "<code>x &lt; 1</code>" in several


def test_ipython_prints_an_error_that_is_displayed() -> None:
    pretty = pytest.importorskip("IPython.lib.pretty")
    assert pretty.pretty(ts.ShardingError("odd", got="3")) == "odd\n  got:  3"


def test_a_graph_in_text_is_drawn_as_what_was_lowered() -> None:
    shown = ts.make_graph(layer)(torch.ones(2, 3), torch.ones(3, 4), torch.ones(4, 3))
    lowered = ts.jit(layer).lower(torch.ones(2, 3), torch.ones(3, 4), torch.ones(4, 3))
    assert (shown, shown._repr_html_()) == (lowered.as_text(), lowered._repr_html_())


def test_stored_pages_get_the_rules_of_today() -> None:
    table = page('<p class="ts-soft">1</p>')
    assert restyled(table.replace("opacity", "color")) == table
    assert restyled("<b>no page</b>") == "<b>no page</b>"


def test_a_round_of_a_loop_frees_its_carry_so_it_never_holds_more_than_the_program() -> None:
    """x, the carry and its double of 1,024 bytes each, and the counter of 8; then the sum in place of the carry."""
    compiled = ts.jit(lambda x: ts.lax.fori_loop(0, 3, lambda i, c: c * 2 + x, x)).lower(torch.ones(256)).compile()
    (loop,) = [step for step in compiled.program.steps if step.bodies]
    (inside,) = memory_of_bodies(loop)
    assert [step.nbytes for step in inside.steps] == [3080, 3080]
    assert inside.peak_nbytes <= compiled.memory_analysis().peak_nbytes
    assert ">3.01 KiB</span>" in compiled._repr_html_()

"""SVG and HTML pictures: well-formed, the same every time, every id shown, no two cells on one another."""

import itertools
import math
import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyshard.core.layout import Layout, replicated
from tinyshard.draw import array_html, mesh_html, mesh_svg, sharding_html, sharding_svg
from tinyshard.draw.colours import OKABE_ITO, device_colour, ink
from tinyshard.draw.html import human_bytes
from tinyshard.draw.label import CHARACTER_WIDTH, fitted

SVG = "{http://www.w3.org/2000/svg}"
GRID = Layout((0, 1, 2, 3, 6, 7, 4, 5), (4, 2), ((0,), (1,)))


def cells(svg):
    """The <g> of each cell: its tip, its border and its words."""
    found = []
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        border = [rect for rect in group.iter(f"{SVG}rect") if rect.get("stroke")]
        words = "".join(text.text for text in group.iter(f"{SVG}text"))
        found.append((group.find(f"{SVG}title").text, border[0], words))
    return found


def test_a_grid_has_a_cell_for_each_block_with_its_slices_and_its_device():
    assert [(tip, words) for tip, _, words in cells(sharding_svg(GRID, (8, 4)))] == [
        ("x[0:2, 0:2] on CPU 0", "CPU 0"),
        ("x[0:2, 2:4] on CPU 1", "CPU 1"),
        ("x[2:4, 0:2] on CPU 2", "CPU 2"),
        ("x[2:4, 2:4] on CPU 3", "CPU 3"),
        ("x[4:6, 0:2] on CPU 6", "CPU 6"),
        ("x[4:6, 2:4] on CPU 7", "CPU 7"),
        ("x[6:8, 0:2] on CPU 4", "CPU 4"),
        ("x[6:8, 2:4] on CPU 5", "CPU 5"),
    ]


def test_copies_are_stripes_of_equal_area_in_the_colours_of_their_devices():
    svg = sharding_svg(Layout(tuple(range(8)), (4, 2), ((), (1,))), (30, 10))
    polygons = list(ElementTree.fromstring(svg).iter(f"{SVG}polygon"))
    assert [p.get("fill") for p in polygons] == [device_colour(d) for d in (0, 2, 4, 6, 1, 3, 5, 7)]
    areas = []
    for polygon in polygons:
        corners = [tuple(map(float, point.split(","))) for point in polygon.get("points").split()]
        pairs = itertools.pairwise([*corners, corners[0]])
        areas.append(abs(sum(a[0] * b[1] - a[1] * b[0] for a, b in pairs)) / 2)
    _, border, _ = cells(svg)[0]
    assert areas == pytest.approx([float(border.get("width")) * float(border.get("height")) / 4] * 8, rel=0.01)


def test_the_title_says_shape_blocks_devices_and_copies():
    root = ElementTree.fromstring(sharding_svg(Layout((0, 1, 2, 3), (2, 2), ((0,),)), (8,)))
    expected = "array of shape (8,) in 2 blocks on 4 CPU devices, copies of each block: 2"
    assert root.get("aria-label") == root.find(f"{SVG}title").text == expected
    assert root.get("role") == "img"


def test_rank_3_has_a_captioned_panel_for_each_leading_block():
    svg = sharding_svg(Layout(tuple(range(8)), (2, 2, 2), ((0,), (1,), (2,))), (8, 4, 4))
    assert ">x[0:4, ...]<" in svg and ">x[4:8, ...]<" in svg
    assert [words for _, _, words in cells(svg)] == [f"CPU {i}" for i in range(8)]


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (5, 0, 2), (2, 0, 1, 3)])
def test_numbers_and_empty_arrays_are_drawn(shape):
    assert len(cells(sharding_svg(replicated((0, 1), ndim=len(shape)), shape))) == 1


def test_a_sharding_without_an_array_shows_block_numbers():
    assert cells(sharding_svg(GRID, None))[3][0] == "x[2 of 4, 2 of 2] on CPU 3"


def test_thousands_of_devices_make_a_small_picture_with_readable_ids():
    svg = sharding_svg(Layout(tuple(range(4096)), (64, 64), ((0,), (1,))), (4096, 4096))
    assert len(svg) < 60_000
    assert {"0", "4095"} <= {words for _, _, words in cells(svg)}
    assert len(sharding_svg(replicated(range(4096), 2), (8, 8))) < 5_000


def test_a_mesh_shows_axis_names_sizes_and_places():
    svg = mesh_svg((2, 3), (5, 4, 3, 2, 1, 0), ("data", "<model>"), "gpu")
    assert ">data: 2<" in svg and ">&lt;model&gt;: 3<" in svg
    assert cells(svg)[1][0] == "GPU 4 at data=0, <model>=1"
    assert [words for _, _, words in cells(svg)] == [f"GPU {i}" for i in (5, 4, 3, 2, 1, 0)]


def test_a_mesh_of_three_axes_has_a_panel_for_each_place_on_the_first():
    svg = mesh_svg((2, 2, 2), range(8), ("stage", "data", "model"), "cpu")
    assert ">stage=0<" in svg and ">stage=1<" in svg
    assert len(cells(svg)) == 8


@pytest.mark.parametrize("shape", [(1,), (2, 2), (2, 2, 2), (1, 8, 1)])
def test_long_axis_names_are_inside_the_picture_and_not_on_one_another(shape):
    names = ("pipeline_stages_of_the_model", "data_parallel_replicas_of_it", "tensor_parallel_columns_of_it")[
        -len(shape) :
    ]
    root = ElementTree.fromstring(mesh_svg(shape, range(math.prod(shape)), names, "cpu"))
    width, height = float(root.get("width")), float(root.get("height"))
    boxes = []
    for text in root.iter(f"{SVG}text"):
        if "parallel" in text.text:
            x, y, half = float(text.get("x")), float(text.get("y")), len(text.text) * CHARACTER_WIDTH * 11 / 2
            if text.get("transform"):
                boxes.append((x - 8, y - half - 4, x, y + half - 4))
            else:
                boxes.append((x - half, y - 8, x + half, y))
    assert len(boxes) == (8 // 4 if len(shape) == 3 and shape[0] == 2 else 1) * min(len(shape), 2)
    for left, top, right, bottom in boxes:
        assert left >= 0 and top >= 0 and right <= width and bottom <= height
    for (a, b, c, d), (e, f, g, h) in itertools.combinations(boxes, 2):
        assert c <= e or g <= a or d <= f or h <= b


def test_neighbouring_devices_differ_in_colour_up_to_32():
    assert len({device_colour(d) for d in range(32)}) == 32
    assert [device_colour(d) for d in range(8)] == list(OKABE_ITO)


def test_ink_on_every_colour_reaches_the_contrast_that_wcag_asks_for():
    def luminance(colour):
        channels = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(fill):
        dark, light = sorted([luminance(fill), luminance(ink(fill))])
        return (light + 0.05) / (dark + 0.05)

    found = {device: contrast(device_colour(device)) for device in range(32)}
    assert {device: by for device, by in found.items() if by < 4.5} == {}


@given(st.integers(1, 300), st.integers(1, 200), st.integers(1, 40), st.integers(0, 5000))
def test_names_stay_inside_their_cell(width, height, count, first):
    labels = fitted([tuple(range(first, first + count))], "cpu", width, height)
    (lines,) = labels.lines.values()
    assert all(len(line) * CHARACTER_WIDTH * labels.size <= width for line in lines)
    assert len(lines) * labels.size <= height


@st.composite
def layouts(draw):
    axes = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    ndim = draw(st.integers(0, 4))
    devices = tuple(draw(st.permutations(range(math.prod(axes)))))
    cut = [draw(st.integers(-1, ndim - 1)) for _ in axes] if ndim else []
    layout = Layout(devices, axes, tuple(tuple(a for a, x in enumerate(cut) if x == d) for d in range(ndim)))
    return layout, tuple(parts * draw(st.integers(0, 3000)) for parts in layout.parts)


@settings(deadline=None)
@given(layouts())
def test_cells_never_overlap_and_stay_inside_a_picture_of_modest_size(drawn):
    layout, shape = drawn
    svg = sharding_svg(layout, shape)
    assert svg == sharding_svg(layout, shape)
    root = ElementTree.fromstring(svg)
    width, height = float(root.get("width")), float(root.get("height"))
    boxes = []
    for tip, border, _ in cells(svg):
        x, y, w, h = (float(border.get(name)) for name in ("x", "y", "width", "height"))
        assert w >= 19.9 and h >= 19.9 and "CPU" in tip
        assert x >= 0 and y >= 0 and x + w <= width and y + h <= height
        boxes.append((x, y, x + w, y + h))
    assert width <= 480
    for (a, b, c, d), (p, q, r, s) in itertools.combinations(boxes[:100], 2):
        assert c <= p + 0.05 or r <= a + 0.05 or d <= q + 0.05 or s <= b + 0.05
    if math.prod(layout.parts[:-2]) <= 9 and len(layout.devices) <= 16:
        tips = " ".join(tip for tip, _, _ in cells(svg))
        shown = {int(i) for ids in re.findall(r"CPU ([\d,]+)", tips) for i in ids.split(",")}
        assert shown == set(layout.devices)


def test_array_html_names_types_shapes_bytes_sharding_and_copies():
    layout = Layout(tuple(range(8)), (4, 2), ((0,), ()))
    html = array_html(layout, (8192, 784), "float32", 8192 * 784 * 4, 8192 * 784, "P('a', None) <m>", True)
    root = ElementTree.fromstring(html)
    words = " ".join("".join(cell.itertext()) for row in root.iter("tr") for cell in row)
    assert words == (
        "Array float32[8192, 784] 24.5 MiB "
        "Shard float32[2048, 784] 6.12 MiB per device "
        "Devices 8 CPU: 0,1,2,3,4,5,6,7 2 copies of each block "
        "Sharding P('a', None) <m> "
        "Committed yes"
    )
    assert len(list(root.iter(f"{SVG}svg"))) == 1


def test_html_of_a_sharding_and_a_mesh_is_well_formed():
    sharding = ElementTree.fromstring(sharding_html(GRID, "P('a', 'b')"))
    assert "4 × 2" in "".join(sharding.itertext())
    assert sharding_html(GRID, "P('a', 'b')", (8, 8)) != sharding_html(GRID, "P('a', 'b')")
    mesh = ElementTree.fromstring(mesh_html((2, 2), (0, 1, 3, 2), ("a", "b"), "cpu"))
    assert "4 CPU: 0,1,3,2" in "".join(mesh.itertext())


@pytest.mark.parametrize("html", [sharding_html(GRID, "s"), mesh_html((2,), (0, 1), ("a",), "cpu")])
def test_pictures_hold_nothing_that_reaches_beyond_them(html):
    assert not re.search(r"\sid=|<script|url\(|href", html)


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (268435456, "256 MiB"), (3 * 2**40, "3 TiB")],
)
def test_bytes_are_given_in_the_unit_that_keeps_them_short(nbytes, words):
    assert human_bytes(nbytes) == words

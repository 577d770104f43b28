"""Pictures of layouts: boxes in plain text, SVG, and tables and programs in HTML.

Every picture is drawn from plain data (a `Layout`, a shape, a few strings): no torch, no processes, no
IPython. The same input always gives the same picture.

    blocks  which blocks a picture shows, and where blocks are left out
    text    the boxes of `visualize_array_sharding`
    colours one colour per device, distinct for all kinds of colour vision
    label   the names inside an SVG cell, and the font size that fits
    cell    one cell of an SVG: a stripe for each owner, and the name
    picture arranges panels of cells in one SVG
    svg     the blocks of an array, and the devices of a mesh
    small   small pictures of layouts, for tables
    tables  costs, memory, live Arrays, rules
    program a program as a table of steps
    html    what a notebook shows: a small table beside the SVG
"""

from tinyshard.draw.html import array_html, mesh_html, sharding_html
from tinyshard.draw.svg import mesh_svg, sharding_svg
from tinyshard.draw.text import sharding_text

__all__ = ["array_html", "mesh_html", "mesh_svg", "sharding_html", "sharding_svg", "sharding_text"]

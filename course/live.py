"""What a widget gives a notebook that runs: its view, where the notebook's page can draw it."""

import sys
from typing import Any

__all__ = ["view_of"]


def view_of(panel: Any) -> dict[str, Any]:
    """The view of a widget; nothing in Colab, which does not draw those of ipywidgets 8: the still picture stays."""
    return {} if "google.colab" in sys.modules else panel._repr_mimebundle_() or {}

"""The commands of `python -m course`, a file each; `course/__main__.py` is the table of them."""

"""The commands of `tinyshard`, a file each; `course/__main__.py` is the table of them."""

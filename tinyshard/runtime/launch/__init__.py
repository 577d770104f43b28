"""Starting worker processes: on this machine, and on others."""

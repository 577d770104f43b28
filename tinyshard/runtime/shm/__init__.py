"""Memory that the processes of one host share, and synchronization in it."""

"""Memory that the processes of one host share, and waiting for each other in it."""

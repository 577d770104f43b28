"""Records what ran on each device and in the controller, when, and from which line.

trace        `with ts.profiler.trace() as trace:` records what runs inside
events       the records as plain data: steps, calls, exchanges and waits
joining      from the rows that devices record to events, with names, lines and costs from the programs
summary      tables: time by device, op, collective and line, measured beside modelled
timeline     the picture: a row for each device, and one for the controller
script       the script that zooms the picture in a browser
perfetto     a file that Perfetto opens
"""

from tinyshard.profiler.trace import Trace, trace

__all__ = ["Trace", "trace"]

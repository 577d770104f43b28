"""What ran, on each device and in the controller, when, and on whose line.

trace        `with ts.profiler.trace() as trace:` records what runs inside
events       the records as plain data: steps, calls, and what was exchanged and waited for
joining      from the rows that devices record to events: programs give their names, lines and costs
summary      tables: time by device, op, collective and line, measured beside modelled
timeline     the picture: a row for each device, and one for the controller
script       what makes the picture zoom, in a browser
perfetto     a file that Perfetto opens
"""

from tinyshard.profiler.trace import Trace, trace

__all__ = ["Trace", "trace"]

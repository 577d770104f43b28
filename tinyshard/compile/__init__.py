"""From a Python function to an executable: signature, trace, program, call.

signature        what decides whether a trace fits a call
tracing          a function on tensors becomes a graph of aten ops on whole tensors
capture          the trace in progress: what happens to each op before it is recorded; closed-over tensors become inputs
trace_errors     errors of a trace that an op raises outside of one too
python_numbers   a Python number among the arguments has no dtype, as in eager torch
zero_tangents    tangents of zero, whose products with infinity are zero
outlived         traced values that outlive their trace: in an object that is returned, or elsewhere
closure          the tensors that a function closes over, and how to look them up again
modes            whether the modules that it uses are training, their hooks and parts
intercept        the user's function in a trace or a transformation: its calls of torch are replaced
traced_views     views by traced numbers, that can be written to as in torch
cond             torch.cond, and torch's other control flow, on Arrays
spmd             a graph on whole tensors becomes an Executable: each node in order is partitioned
look_ahead       a partial sum is combined once, where several ops ahead need it
simplify         a program without the steps that compute nothing new
join_products    small products of 16 bits that share an operand become one
combine          collectives, and small ops, that do not wait for each other become one step of several operands
donation         arguments whose memory a call may use again
executable       a Program with the layouts of its inputs and results, and the call of it
trace_cache      the traces of a function, and the executables made from each
replay           a graph run again as a function, to be differentiated or vmapped
compiled         Lowered and Compiled: a traced function, and the program of one signature, to be read and called
text             the text of a graph and of a program
drawn            a graph and a program as records, of which `draw.program` makes a table
memory           what a device holds during each step, counted from a program's steps
cost             floating-point operations and bytes, counted from a program's steps
explain          why a jitted function is traced again; which op gathers an operand, on which line, and why
"""

"""Lesson 18: the rungs of the puzzle ladder, judged on values, means, and what the program of an answer uses."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from course.exercises.exercise import Exercise, Verdict, differs
from course.held import held_during
from course.ladder import RUNGS, score_of
from course.ladder.rung import Answer, Rung
from course.ladder.scoring import Score

__all__ = ["EXERCISES"]

MOST_HELD = 3  # lines of a message

SAID = {
    "flops": "a device does {:,} operations",
    "nbytes": "a device sends {:,} bytes",
    "rounds": "there are {:,} rounds of exchanges, each of which waits for the one before",
    "peak_nbytes": "a device holds {:,} bytes at its peak",
}
TABLES = (
    "Eight rows too many are held there. Writing into a table makes another table: keep rows in a list, "
    "stack them once, and put them in order by an index."
)
FORM = (
    "How many values does the task ask of one device, and with how many dimensions each? A shape named above is that "
    "of the results of all devices, joined."
)
BY_THE_LIBRARY = "The library has this collective. Here it is made of single messages: `ts.lax.ppermute` alone."


@dataclass(frozen=True)
class Hints:
    """What is said of the answers to a rung.

    Attributes:
        ladder: the exercise's hints.
        why: why the solution is right.
        values: of wrong values. Where it depends on which result is wrong: hints with what the message begins with,
            the one for all others, "", last.
        over: of a count that is above par, by its name; what is not in it climbs the ladder. Where it depends on how
            far above: hints with the most that each is not for, the largest first.
        overflow: of values that are infinite or not numbers.
    """

    ladder: tuple[str, ...]
    why: str
    values: str | tuple[tuple[str, str], ...]
    over: dict[str, str | tuple[tuple[int, str], ...]] = field(default_factory=dict)
    overflow: str = ""


def judge_of(rung: Rung, hints: Hints) -> Callable[[Answer], Verdict]:
    """The judge of a rung: values first, then the means, then each count in turn."""
    return functools.partial(_judge, rung, hints)


def _judge(rung: Rung, hints: Hints, answer: Answer) -> Verdict:
    score = score_of(rung, answer)
    if score.wrong:
        is_overflow = hints.overflow and ("nan" in score.wrong or "inf" in score.wrong)
        by_value = hints.overflow if is_overflow else _hint_on_values(hints, score.wrong)
        return differs(score.wrong, FORM if _is_of_another_form(score.wrong) else by_value)
    if score.unwanted:
        return differs(f"the values are right, but {score.unwanted} is in the program", BY_THE_LIBRARY)
    used = {name: (getattr(score.counts, name), most) for name, most in vars(rung.par).items() if most is not None}
    over = set(rung.over_par(score.counts))
    for name in [name for name in SAID if name in over]:
        got, most = used[name]
        peak = _at_the_peak(score) if name == "peak_nbytes" else ""
        reported = f"the values are right, but {SAID[name].format(got)}; par is {most:,}{peak}"
        return Verdict(is_passed=False, difference=reported, hint=_hint_on(hints, name, got), used=used)
    return Verdict(is_passed=True, used=used)


def _is_of_another_form(wrong: str) -> bool:
    """Whether the number of results or of dimensions differs, so that no value could be compared."""
    shapes = re.findall(r"\(([\d, ]*)\)", wrong) if "has the shape" in wrong else []
    return wrong.startswith("it returns") or len({len(re.findall(r"\d+", shape)) for shape in shapes}) > 1


def _hint_on_values(hints: Hints, wrong: str) -> str:
    said = hints.values
    return said if isinstance(said, str) else next(hint for start, hint in said if wrong.startswith(start))


def _hint_on(hints: Hints, name: str, got: int) -> str:
    said = hints.over.get(name, "")
    return said if isinstance(said, str) else next(hint for most, hint in said if got > most)


def _at_the_peak(score: Score) -> str:
    """The step of the peak, and the largest values that are held there."""
    line = score.compiled.memory_analysis()
    step = line.steps[line.peak_step]
    held = held_during(score.compiled.program, line.peak_step)
    return "\n".join(
        [
            f"\n  the peak is in step {line.peak_step}, {step.op}, which makes {step.result}; the largest there:",
            *(f"    {each.count} x {each.type} from {each.op}: {each.nbytes:,} bytes" for each in held[:MOST_HELD]),
        ]
    )


HINTS = {
    "18.1": Hints(
        (
            "After one move you have the row of the device before you, and after two?",
            "Keep every row that comes by, and pass on only the newest one: `ts.lax.ppermute(newest, 'd', ring)`.",
            "Row i has travelled (me - i) % 8 moves. An index made of `ts.lax.axis_index` and `torch.arange(8)` puts "
            "the stacked rows in order.",
        ),
        why="Seven other rows must come in at each device, so no program sends fewer bytes. A ring takes seven rounds "
        "and uses neighbours alone. A row sent straight to all others takes one, below par: fast inside a box, where "
        "every pair of GPUs has a path.",
        values="On every device your own row comes first. All devices must have the same order: which row arrived "
        "after k moves? If a row is all zeros, nobody sent it: device 7 sends to device 0.",
        over={
            "nbytes": "A row that has come in is passed on once, alone, and not with all that came before it.",
            "peak_nbytes": TABLES,
        },
    ),
    "18.2": Hints(
        (
            "Let a sum travel, not the rows: in each round a device adds its own part of it.",
            "The sum that ends on device d is started by device d + 1, and is complete after seven moves.",
            "Start with row (me - 1) % 8. After k moves a device holds the sum of row (me - 1 - k) % 8: add its own.",
        ),
        why="A device sends seven messages of one row. Around a ring they are sums that grow on their way; sent "
        "straight to their devices in one round, they are rows, and the receiver adds them up. This is how FSDP adds "
        "up gradients: each device gets those of its own shard, and has no room for more.",
        values="Follow one sum: where does it start, and on which device does it end after seven moves? "
        "It must be that device's row.",
        over={
            "nbytes": "Do not send rows of which the receiver needs one sum alone. Add first, then send the sum.",
            "peak_nbytes": "Beside x one row is enough, the sum so far. Add each row to it as soon as it is there: do "
            "not keep rows for the end, and do not put x in another order first.",
        },
    ),
    "18.3": Hints(
        (
            "You have both halves already.",
            "After a reduce-scatter each device has one row of the sums. What brings all rows to all devices?",
            "Two calls: what the first one returns is what the second one is given.",
        ),
        why="Twice seven messages of one row: 14/8 of the array, and nearly the same for any number of devices. A ring "
        "needs 14 rounds for them, and 1,000 devices need 1,998: the next rung has fewer. Data-parallel training adds "
        "up its gradients in this way, and FSDP does the two halves at different times.",
        values="The sums may be right and out of order: row i of the result is row i on every device.",
        over={
            "nbytes": "There all rows go round the ring. First complete each sum on one device, then pass on sums.",
            "peak_nbytes": TABLES,
        },
    ),
    "18.4": Hints(
        (
            "Which device differs from yours in one bit of its number? `me ^ 4`, then `me ^ 2`, then `me ^ 1`.",
            "Halving: keep the half that your bit asks for, send the other one, and add what comes. Doubling is the "
            "same, backwards.",
            "The bit of a distance is `me // distance % 2`. Where it is 1, keep the upper half; and while doubling, "
            "put what comes below what you have.",
        ),
        why="4 + 2 + 1 rows to reduce and 1 + 2 + 4 to gather are the bytes of the ring, in six rounds and not "
        "fourteen. Seven messages at once, there and back, take two rounds, as libraries do inside a box. Where far "
        "links are slow the ring still wins: it uses neighbours alone.",
        values="In the second half the order matters: does what your partner has belong above yours or below it?",
        over={
            "rounds": "A ring of eight needs 14 rounds. Exchange with a device 4 away, then 2, then 1.",
            "nbytes": "Three rounds of everything are more bytes. Halve before you send: a device needs one half only.",
            "peak_nbytes": "Eight rows are joined there in both orders, or written into a table, and each write makes "
            "another table. Choose which half is the lower one, then join both once.",
        },
    ),
    "18.5": Hints(
        (
            "A permutation may send farther than to the next device.",
            "Seven messages, one for each distance: row (me + far) % 8 goes to the device that is that far away.",
            "What comes from distance far is of device (me - far) % 8. Put it in order as in 18.1.",
        ),
        why="Each row travels once, straight to its device, and no message waits for another. A ring would carry "
        "rows through devices that do not need them. Every layer of experts sends its tokens in this way, there and "
        "back.",
        values="Over the distance far you send the row that is for device (me + far) % 8. What arrives over it is of "
        "device (me - far) % 8: it belongs in that row.",
        over={
            "nbytes": "Rows travel through devices that do not need them. Send each one straight to its device.",
            "peak_nbytes": "Eight rows too many are held there: x in another order, or a table, since each write makes "
            "another table. Take each row from x when it is sent, and stack what has arrived once.",
        },
    ),
    "18.6": Hints(
        (
            "Which rows of the result can you compute before anything has arrived?",
            "In each round multiply the block of x that is here, and pass the block on.",
            "Keep eight products, not eight blocks; at the end put them in order as in 18.1, and join them by "
            "`flatten(0, 1)`.",
        ),
        why="Only one block of x is held at a time. And a round's product does not need what the round sends: a "
        "device with two queues does both at once. So tensor parallelism on a cluster hides an all-gather behind its "
        "products.",
        values="The first product is of your own rows: where do they belong in the result?",
        over={"peak_nbytes": "There all of x is on one device. Multiply each block when it comes, and let it go."},
    ),
    "18.7": Hints(
        (
            "What does a device have to know of the other blocks of a row? Two numbers.",
            "The mean of the row is the mean of eight means. And the variance is a mean, of what?",
            "Subtract the mean of the whole row first, by one `ts.lax.pmean`; a second one has the squares of what "
            "is left.",
        ),
        why="Two numbers a row are sent, and not 1,024. A variance from sums of squares loses digits where the mean is "
        "large, so the mean comes first, which costs a round. One round is enough where it is known beforehand what to "
        "subtract, such as 300 here, or where every device gathers the means and variances of all blocks, as in "
        "PyTorch's SyncBatchNorm: that is four times the bytes.",
        values="Mean and variance are those of whole rows of 1,024, not of a block. And the mean is 300: do not "
        "subtract its square from a mean of squares, and do not leave out how far apart the means of blocks are. The "
        "variance is a mean, over 1,024: `torch.var` divides by one less.",
        over={
            "nbytes": "Send what is known of a row, not the row, and let it be added up: gathered, the numbers of all "
            "eight devices come to each."
        },
    ),
    "18.8": Hints(
        (
            "The loss of a token is log(sum of exp(logits)) minus the target's logit. What can a device say of its 128 "
            "logits in one number, so that eight such numbers give the sum of all 1,024?",
            "`torch.logsumexp` subtracts the largest logit first, and adds it again at the end. And the logsumexp of "
            "eight logsumexps is that of all 1,024 logits.",
            "Send two numbers a token: the logsumexp, and the target's logit or 0. The target's column is "
            "targets - 128 * me, if that is in the block. A tiled `ts.lax.all_to_all` of 64 rows brings 8 tokens to "
            "each device, from all eight: finish these, and share the losses by `ts.lax.all_gather`.",
        ),
        why="Two numbers a token go to the device that finishes it, and one comes back: half of what three all-reduces "
        "send. The logits of 128,000 words are the largest activations of a language model; where the vocabulary is "
        "cut, no GPU ever has all of them. Megatron-LM sends three all-reduces; beside the logits that is little too.",
        values="Only one device has the target's logit. What do the other seven add?",
        overflow="exp of a large logit overflows. Subtract the largest logit of the row first, as `torch.logsumexp` "
        "does.",
        over={
            "nbytes": (
                (
                    7168,
                    "The logits are as long as the vocabulary. Reduce the 128 that are here to a number for each "
                    "token, and send that.",
                ),
                (
                    896,
                    "Every device finishes every token there, so that what is known of a token must reach all of them. "
                    "Let each device finish the losses of 8 tokens: `ts.lax.all_to_all` brings it what the others "
                    "know of these. Then only losses have to reach all.",
                ),
                (
                    0,
                    "The largest logit and the sum of exponentials need not both travel: one number says both, "
                    "largest + log(sum), which is what `torch.logsumexp` returns.",
                ),
            ),
            "rounds": "The target's logit is known at once: send it beside the other number, not after it.",
            "peak_nbytes": "Each number of `one_hot` has 8 bytes, of a mask of floats 4. Compare the targets with "
            "the 128 columns that are here: that makes 1 byte for each. Or pick the one logit.",
        },
    ),
    "18.9": Hints(
        (
            "In which lines is a matrix whole, and how long does something still need it?",
            "Forward keep relu(x) of each layer, not its matrix. Backward gather the matrix again, unless it is still "
            "there, or not needed.",
            "Backward, from the last layer: scatter the gradient of the matrix as soon as it is made; then take `grad` "
            "through the matrix, and go on to the layer before. Gather again from `shard.clone()`, since equal steps "
            "are done once.",
        ),
        why="A matrix is whole for one product, a gradient for one reduce-scatter. Two more all-gathers buy that. The "
        "last layer is not gathered again, since it is needed again at once: in PyTorch, too, the last block is "
        "often given `reshard_after_forward=False`.",
        values=(
            ("result 1 ", "In every layer relu comes first, then the product. The outputs are of your own examples."),
            (
                "",
                "Each device has the gradient of its own examples. Which collective adds them up and cuts? And where "
                "relu(x) is 0, no gradient goes on to the layer before.",
            ),
        ),
        over={
            "nbytes": (
                (
                    688_128,
                    "No device needs a whole gradient: each one updates its own rows. Which collective adds up and "
                    "cuts?",
                ),
                (
                    0,
                    "Two layers need no second gathering. The backward pass begins with the last layer, right after "
                    "its product: its matrix is still there. And behind the first layer no gradient is asked for.",
                ),
            ),
            "peak_nbytes": (
                (
                    327_680,
                    "Whole matrices or whole gradients wait there. Scatter each gradient as soon as it is made. Gather "
                    "again from `shard.clone()`: gathering the same shard twice is one step, whose result is kept.",
                ),
                (
                    0,
                    "One whole matrix and one whole gradient are enough. Of x and relu(x) keep one: relu(x), which the "
                    "gradient of the matrix needs, and which is positive where x is. Or take `grad` through the matrix "
                    "first, so that the matrix is gone before its own gradient is made; a `vjp` makes both together.",
                ),
            ),
        },
    ),
    "18.10": Hints(
        (
            "Write the two products for whole matrices, then ask of each value: is it whole, cut, or a part of a sum?",
            "y is a sum over all devices, and so is the gradient of x. The gradients of up and down are whole "
            "columns and rows already.",
            "of_hidden is the gradient times down's transpose where hidden is positive; that times up's transpose is "
            "one device's part of the gradient of x.",
        ),
        why="The hidden layer stays cut forward and backward. One all-reduce each way is all that Megatron sends.",
        values=(
            ("result 1 ", "A product over your 32 rows of `down` is a part of y, and the parts are to be added."),
            (
                "result 2 ",
                "Each device has a part of the gradient of x, and they are to be added. Where x @ up is not positive, "
                "relu lets no gradient through. If you used vjp through a psum: without check_vma its gradient adds "
                "up what all eight devices pass back, eight times too much.",
            ),
            (
                "",
                "The gradients of up and down are those of your own columns and rows: nothing is to be added. Where "
                "x @ up is not positive, relu lets no gradient through.",
            ),
        ),
        over={
            "nbytes": "Which of these values must every device have as a whole? Not a matrix.",
            "rounds": "`grad` is given: the gradient of x needs nothing that an exchange of the forward pass brings.",
        },
    ),
    "18.11": Hints(
        (
            "Start with one block: what would you have to remember of it, so that a second block can be added later?",
            "For each row remember three things: the largest score so far, the sum of the weights, the weighted sum of "
            "the values.",
            "When a larger score comes, multiply both sums by exp(old largest - new largest). At the end divide one "
            "by the other. Keys and values move together, in one ppermute of the pair.",
        ),
        why="Of each block three things are remembered: the largest score, the sum of weights, the weighted sum. So "
        "one block of keys and values at a time is enough, and seven moves bring them all. A text may be as long as "
        "all devices together have room for.",
        values="The softmax of a row is over all its scores, `q @ k.T / 4`. Do not divide before the last block "
        "has been seen, but shrink both sums whenever a larger score comes. Keys and values move together.",
        overflow="exp of a large score overflows. Subtract the largest score of each row that you have seen so far, "
        "and shrink what you had added up before by exp(old - new).",
        over={
            "nbytes": "Eight blocks come by, and your own is there already: how many moves is that?",
            "peak_nbytes": "Keys and values of all devices are held there at once. Hold one block of each, and let it "
            "go after its turn.",
        },
    ),
    "18.12": Hints(
        (
            "Call your chunks a, in the front half of the text, and b, in the back half. Which of the four pairs of "
            "chunks are hidden when the keys come from a device before yours? And from one after yours?",
            "b looks at every front chunk, always. Of the second pair there are two cases: a at the front chunk, if "
            "it comes from before; else b at the back chunk.",
            "Choose queries, keys, values and the state of the second pair by `torch.where(me >= far, ...)`, compute "
            "one block, and choose again where the new state goes.",
        ),
        why="Every device computes two of four blocks in each round, whichever device the keys come from: 17 blocks "
        "and not 32, and no device waits for another.",
        values="The first 32 rows of device d are chunk d of the text, the last 32 are chunk 15 - d. A chunk needs a "
        "mask only where it meets its own keys, and there each word sees itself too.",
        over={
            "flops": (
                (
                    1_179_648,
                    "Half of the scores are computed and then hidden. Which pairs of chunks are hidden as a whole?",
                ),
                (0, "With its own keys a device needs three pairs of chunks, not four: chunk 15 - d comes after d."),
            ),
            "peak_nbytes": "Hold one block of keys and values, and let it go after its turn. Add what it gives to the "
            "state at once: fourteen results that wait for the end take more than the rest.",
        },
    ),
    "18.13": Hints(
        (
            "Draw a table: a row for each stage, a column for each tick. Which micro-batch is where?",
            "In tick t stage s works on micro-batch t - s. There are 8 + 8 - 1 ticks.",
            "In each tick stage 0 takes batches[min(tick, 7)], the others what they received: "
            "torch.where(me == 0, ...). From tick 7 on, keep what comes out.",
        ),
        why="8 micro-batches and a bubble of 7 ticks: 15 products, and 14 moves: the last tick sends nothing. Cut into "
        "more, smaller micro-batches, the same batch has a smaller bubble and stays below par; on a GPU the limit is "
        "that small products are slow.",
        values="Eight results leave the last stage: the first one in tick 7, the last one in tick 14.",
        over={
            "flops": "While stage 1 works on micro-batch 0, what keeps stage 0 from starting on micro-batch 1?",
            "nbytes": "What is computed in the last tick stays where it is.",
            "peak_nbytes": "What the last stage computes before tick 7 is not a result: do not keep it for the end. "
            "And do not make a longer copy of the micro-batches.",
        },
    ),
    "18.14": Hints(
        (
            "Forward as in 18.13: micro-batch t - s in tick t. The last stage, 3, can go backward in the same tick.",
            "Stage s goes backward with micro-batch t - 6 + s in tick t: 6 - 2s ticks after it went forward.",
            "Keep the last seven inputs; the one that stage s needs is number 2s of them: stack every second one, and "
            'index by the stage. At the end one `ts.lax.psum` over "data".',
        ),
        why="An input waits 6 ticks at most, so seven are held, however many micro-batches there are: so a large "
        "model can have many of them, and a small bubble. The products and the bytes are those of GPipe.",
        values="Mostly it is one of six things: the gradient meets an input that is not its own, the last stage starts "
        "from targets of another micro-batch, relu lets a gradient through where its operand is not positive, a stage "
        "adds up what it computed in its bubble, the last gradient is not back on stage 0 yet, or the two pipelines "
        "are not added up.",
        over={
            "flops": "One micro-batch at a time leaves three of four stages idle. What may stage 0 do meanwhile?",
            "nbytes": "Messages of the last tick, or of an idle one, are sent for nothing.",
            "peak_nbytes": "There the inputs of all micro-batches wait for the backward pass. Let micro-batch 0 go "
            "backward as soon as it has reached the last stage.",
        },
    ),
}

EXERCISES = tuple(Exercise(id, judge_of(RUNGS[id], hints), hints.ladder, why=hints.why) for id, hints in HINTS.items())

"""Lesson 10: predictions."""

from course.predictions.prediction import Choice, Prediction

__all__ = ["PREDICTIONS"]

PREDICTIONS = (
    Prediction(
        "10.a",
        question="uniform(key, (3,)) gave 0.4887, 0.6798, 0.6163. What are the first three of six?",
        choices=(
            Choice(
                "the next three after these",
                misconception="a key is a generator: it moves on with each draw",
                answer="Nothing about the key changed, and nothing else remembers that it was used.",
            ),
            Choice("the same three"),
            Choice(
                "three others, because the shape differs",
                misconception="all numbers of a draw depend on its size",
                answer="Number i is made from the key and i alone. (JAX's older way depended on the size: section 9.)",
            ),
        ),
        why="Number i is made from the key and from i, its counter. The first counters are 0, 1, 2 in both draws.",
    ),
    Prediction(
        "10.b",
        question="Step i draws from fold_in(base, i). What must be saved to go on with step 3 the next day?",
        choices=(
            Choice("the seed 42 and the number of the step"),
            Choice(
                "the state of the generator after step 2",
                misconception="random numbers always have a state",
                answer="There is no generator and no state: the key of step 3 is made from base and 3.",
            ),
            Choice(
                "the keys of steps 0, 1 and 2",
                misconception="the key of a step is made from the key of the step before",
                answer="Each step's key is made from base, not from the step before: none of them is needed.",
            ),
            Choice(
                "nothing: step 3 cannot be repeated",
                misconception="random means not repeatable",
                answer="The same key gives the same numbers, in another process as well.",
            ),
        ),
        why="fold_in(base, 3) needs base and 3. The step's number is saved in any case.",
    ),
    Prediction(
        "10.c",
        question="Is split(base, 4)[3] the same key as fold_in(base, 3)?",
        choices=(
            Choice(
                "no: they are two functions for two purposes",
                misconception="two functions, two families of keys",
                answer="Both mix the key with a number, and both use the same numbers 0, 1, 2, …",
            ),
            Choice(
                "no: a split key cannot be used again",
                misconception="split changes the old key",
                answer="The rule says that you should not. The key is a value, and works as before.",
            ),
            Choice("yes"),
        ),
        why="Key i of a split is made of the key and i, and so is fold_in(key, i). A program that does both has the "
        "same keys twice.",
    ),
    Prediction(
        "10.d",
        question="Device 2 has the numbers 6, 7 and 8 of 24. What does it need to draw them?",
        choices=(
            Choice(
                "the last state of device 1",
                misconception="numbers are drawn one after the other",
                answer="Number 6 is made from the key and 6, without number 5.",
            ),
            Choice(
                "all 24 numbers, of which it keeps three",
                misconception="a draw makes the whole array",
                answer="It could, but the program has draw(…, [24], [8], …): only its own block is made.",
            ),
            Choice(
                "a key of its own, made from its number",
                misconception="every device has its own generator",
                answer="Then the numbers would depend on how many devices there are. All have the same key.",
            ),
            Choice("the key and its own number, 2"),
        ),
        why="Its number tells it the counters 6, 7 and 8. The key is on every device, so nothing is sent.",
    ),
    Prediction(
        "10.e",
        question="8 x 3 numbers, each device folds its own number into the key. How many rows are equal on 2 and on 8 "
        "devices?",
        choices=(
            Choice(
                "8: the key is the same",
                misconception="keys alone make numbers independent of the mesh",
                answer="The key is the same, but row 1 is drawn by device 0 of two, and by device 1 of eight.",
            ),
            Choice("1"),
            Choice(
                "0: other devices, other numbers",
                misconception="another mesh changes everything",
                answer="Row 0 is the first row of device 0 on both meshes: key fold_in(key, 0), counters 0, 1, 2.",
            ),
            Choice(
                "4: those of device 0 of two",
                misconception="device 0 draws the same on both meshes",
                answer="Device 0 of eight has one row. Rows 1 to 3 are drawn there by devices 1 to 3.",
            ),
        ),
        why="Only row 0 has the same key and the same counters on both. Row 1 is the second row of device 0, or the "
        "first of device 1.",
    ),
)

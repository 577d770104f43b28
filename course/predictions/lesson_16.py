"""Lesson 16: predictions."""

from course.predictions.prediction import Choice, Prediction

__all__ = ["PREDICTIONS"]

PREDICTIONS = (
    Prediction(
        "16.a",
        question="417,344 parameters in float32 are 1.6 MiB. A device may hold 5 MiB. One device begins to train with "
        "AdamW. What happens?",
        choices=(
            Choice(
                "it trains: 1.6 MiB fit",
                misconception="a model that fits can be trained",
                answer="Training holds four numbers for each parameter, and activations too.",
            ),
            Choice(
                "it trains slowly, and moves what does not fit to the disk",
                misconception="memory that is full becomes slow memory",
                answer="A device has no other memory behind its own. What does not fit is an error.",
            ),
            Choice("it fails: parameters, gradients and AdamW's two moments alone are 6.4 MiB"),
            Choice(
                "it fails only when the text is longer",
                misconception="the data fill the memory",
                answer="A step sees 16 pieces of 33 characters, however long the text is.",
            ),
        ),
        why="A parameter, its gradient and two moments are 4 x 4 = 16 bytes; 417,344 of them are 6.4 MiB.",
    ),
    Prediction(
        "16.b",
        question="Heads and hidden values of a layer are shared by four devices. How many all-reduces does one layer "
        "need in the forward pass?",
        choices=(
            Choice(
                "none: each device has its own heads",
                misconception="heads that work apart never meet",
                answer="Their results are added up by `o`, and the next layer needs the sum.",
            ),
            Choice("2: one after the attention, one after the dense layers"),
            Choice(
                "6: one for each matrix",
                misconception="a matrix in parts means an exchange",
                answer="`q`, `k`, `v` and `up` make parts of a result, whole numbers each. Nothing is added up there.",
            ),
        ),
        why="The first matrices of each half are cut by outputs, the last one by inputs: only its results are partial "
        "sums.",
    ),
    Prediction(
        "16.c",
        question="CPU 5 is slowed down. In the profile, which devices spend most of their time waiting?",
        choices=(
            Choice(
                "CPU 5",
                misconception="a slow device has the long wait",
                answer="When CPU 5 arrives, all others are there already: it waits for nobody.",
            ),
            Choice(
                "CPU 4, 6 and 7: those of its row of the mesh",
                misconception="a late device delays only its own group",
                answer="Its row waits in the layers, and the other row waits for its row when gradients are added up.",
            ),
            Choice(
                "none of them: each has its own queue",
                misconception="asynchronous means independent",
                answer="Queues let the controller go on. A collective still needs all of its devices.",
            ),
            Choice("all but CPU 5"),
        ),
        why="A collective ends when its last device has come. The last one waits least, so the straggler is the one "
        "that does not wait.",
    ),
    Prediction(
        "16.d",
        question="What must be in the files, so that the losses after the last checkpoint (step 40, if you are alone) "
        "can be repeated?",
        choices=(
            Choice("the parameters, AdamW's moments and counters, and the number of the step"),
            Choice(
                "the parameters: all that was learned is in them",
                misconception="the optimizer forgets from step to step",
                answer="AdamW's moments are means over many steps, and its counter drives the learning rate.",
            ),
            Choice(
                "the parameters and AdamW's moments and counters",
                misconception="the state of the devices is the state of the training",
                answer="The text belongs to the training too: which pieces come next? The number of the step says it.",
            ),
            Choice(
                "that, and the activations and gradients of the step before it",
                misconception="a step continues the one before",
                answer="A step makes its activations and gradients, uses them, and drops them.",
            ),
        ),
        why="A step is a function of parameters, AdamW's state, and the pieces that its number names.",
    ),
    Prediction(
        "16.e",
        question="The steps after the last checkpoint (40 to 46, if you are alone) have run on 2 x 4 devices. They are "
        "repeated from the files on four. Are the losses the same?",
        choices=(
            Choice(
                "to the last digit",
                misconception="the same numbers are added up, so the sums are the same",
                answer="They are added up in another order, and float32 rounds each partial sum.",
            ),
            Choice("up to rounding"),
            Choice(
                "no: each device now has twice as many pieces of the text",
                misconception="the batch belongs to the mesh",
                answer="The step's number names 16 pieces. How they are shared does not change their mean.",
            ),
        ),
        why="The layout decides where and in which order numbers are added up, and nothing else.",
    ),
)

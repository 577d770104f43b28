"""For each exercise its solution, and wrong answers for common misconceptions; CI checks all of them.

`lesson_NN.py` holds those of lesson NN as `ANSWERS`: exercise id → `Answers` (answers.py).
"""

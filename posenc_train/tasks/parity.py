"""Parity: whether the number of x so far is even (0) or odd (1); modular counting with the modulus 2.

running: true asks after each, running: false once, as for modular counting; 6 of them:

    fed      x 1 . 1 x 0 x 1 . 1 x 0          x . x x . x = 0
    targets  1 _ 1 _ 0 _ 1 _ 1 _ 0 _          _ _ _ _ _ _ 0 _
"""

from posenc_train.tasks.modular_counting import ModularCounting


class Parity(ModularCounting):
    """As ModularCounting."""

    name = "parity"

    def __init__(self, running: bool = True, examples: int = 128, longest: int | None = None, eval_seed: int = 0):
        super().__init__(2, running, examples, longest, eval_seed)

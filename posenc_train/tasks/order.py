"""Who chases whom: a sentence at some place among fillers, whose words in another order say the opposite.

    fed      . , cat3 chases2 : ; , . mouse5 .      answer: the cat (0)
    partner  . , mouse5 chases2 : ; , . cat3 .      answer: the mouse (1)

    direction=true, here of 10 tokens; the sentence comes once in every 16:
    fed      . , cat3 chases2 mouse5 : ; , . .      answer: the cat (0)
    partner  . . , ; : mouse5 chases2 cat3 , .      answer: the mouse (1)

For bidirectional models (model.causal=false), whose answer comes from the mean over all tokens. Every sequence has a
partner of the same tokens and the other answer, in training with the same chance, in evaluation always: a model that
knows no positions cannot tell them apart and is right in exactly half. A model with a causal mask can, without any
position scheme: what a token sees tells it what comes first.

The one who chases stands right before the verb, the other one a quarter of the sequence behind it or more: a bias on
|i - j| alone is enough to tell. With `direction` it is not: they stand on both sides of the verb, and a sequence read
backwards has the same distances and is the partner, so that such a bias is right in exactly half, and only a scheme
that tells left from right is better. A longer sequence has more fillers, with `direction` also more of the sentences,
all of the same two, of which one alone was not learned in 1,000 steps.
"""

import numpy as np
from jaxtyping import Int

from posenc_train.config import UserError
from posenc_train.tasks.base import digest
from posenc_train.tasks.draw import Draw
from posenc_train.tasks.judged import Judged
from posenc_train.tasks.symbols import letters

APART = 16  # with direction, one sentence in so many tokens


class Order(Judged):
    """animals: number of cats, and of mice; verbs, fillers: numbers of those. direction: see above.

    Ids from 2 on, in this order: cats, mice, verbs, fillers. examples: an even number.
    """

    name = "order"
    shortest = 4

    def __init__(
        self,
        direction: bool = False,
        animals: int = 8,
        verbs: int = 4,
        fillers: int = 16,
        examples: int = 512,
        longest: int | None = None,
        eval_seed: int = 0,
    ):
        super().__init__(examples, longest, eval_seed)
        if min(animals, verbs, fillers) < 1 or examples < 2 or examples % 2:
            raise UserError(
                f"task.examples={examples}: must be an even number of at least 2; task.animals={animals}, "
                f"task.verbs={verbs}, task.fillers={fillers}: at least 1"
            )
        self.direction, self.animals, self.verbs, self.fillers = direction, animals, verbs, fillers
        self.cat, self.mouse, self.verb = self.vocab, self.vocab + animals, self.vocab + 2 * animals
        self.filler, self.marks = self.verb + verbs, 2 * animals + verbs + fillers
        animal = [f"{kind}{n}" for kind in ("cat", "mouse") for n in range(animals)]
        chases = [f"chases{n}" for n in range(verbs)]
        self.symbols = ["cat!", "mouse!", *animal, *chases, *letters(fillers)]
        self.fingerprint = digest("order", direction, animals, verbs, fillers)

    def write(self, draw: Draw, length: int) -> tuple[Int[np.ndarray, "b n"], Int[np.ndarray, "b"]]:
        ids = self.filler + draw.integers(self.fillers, length)
        answers = draw.integers(2)
        pair = np.stack([self.cat + draw.integers(self.animals), self.mouse + draw.integers(self.animals)])
        row = np.arange(len(ids))[:, None]
        if self.direction:  # every way to place so many sentences is as likely, and so is the one read backwards
            times = max(1, length // APART)
            first = np.sort(draw.distinct(times, length - 2 * times), axis=1) + 2 * np.arange(times)
            away = 1
        else:
            nearest = max(2, length // 4)
            first = draw.integers(length - 1 - nearest, 1)
            away = nearest + (draw.uniform(1) * (length - 1 - nearest - first)).astype(np.int64)
        ids[row, first] = pair[answers, row.T].T
        ids[row, first + 1] = self.verb + draw.integers(self.verbs, first.shape[1])
        ids[row, first + 1 + away] = pair[1 - answers, row.T].T
        return ids, answers

    def partners(self, ids: Int[np.ndarray, "b n"]) -> Int[np.ndarray, "b n"]:
        if self.direction:
            return ids[:, ::-1]
        animal = (self.cat <= ids) & (ids < self.verb)
        return np.where(animal, ids[animal].reshape(-1, 2).sum(1, keepdims=True) - ids, ids)

    def report(self, length: int, longest: int) -> dict:
        blind = "nope and every bias on |i - j|" if self.direction else "nope"
        return super().report(length, longest) | {
            "chance": f"0.5 for {blind}, with model.causal=false; a causal mask tells order by itself"
        }

"""Several needles in real text, each with a key and a number; at the end all of the keys, one after another.

Of the keys AB and XY first XY is asked for, then AB; _ is no target. 42 tokens, 16 of them text, the needles at the
slots 5 and 12:

    fed      d e f _ m ‹ A B 1 2 3 › a i n ( a r g ‹ X Y 7 8 9 › s ) : \\ ⁇ X Y 7 8 9 ⁇ A B 1 2 3
    targets  _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ 7 8 9 _ _ _ 1 2 3 _

As `multi_key`, without needles that nobody asks for.
"""

from posenc_train.tasks.multi_key import MultiKey


class MultiQuery(MultiKey):
    """queries: how many needles, all asked for; letters: of the alphabet of keys; digits: of a number. Where the text
    comes from: see Haystack."""

    name = "multi_query"

    def __init__(self, queries: int = 2, letters: int = 10, digits: int = 3, **source):
        super().__init__([queries], queries, letters, digits, **source)

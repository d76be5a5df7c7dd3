"""A row: one measurement as a sum and a count, with the coordinates that say what was measured.

Rows are the only thing that leaves evaluation. One is one JSON object on one line of `rows.jsonl`:

    {"study":"quickstart","cell":"rope-text-tiny-L128-s0-1a2b3c4d","scheme":"rope",…,"length":1024,…,
     "protocol":"same_targets(k=64)","slice":{},"metric":"nll","total":9876.5,"count":4096,"unit":"byte",…}

`total` of nll is in nats: perplexity = exp(total / count), bits = total / count / ln 2. Nobody divides here.
"""

import json
import math
from dataclasses import asdict, dataclass, fields
from typing import Any

VERSION = 1
STATUSES = ("ok", "beyond reach", "out of memory", "not finite")
FAULTS = ("out of memory", "not finite")  # statuses that nobody planned
ALONG = "step@"  # how the label of a checkpoint begins that is measured along the training and not kept
_INTEGERS = ("seed", "train_length", "length", "tokens_seen", "count", "version")
_NOT_KEY = ("total", "count", "status")


@dataclass(frozen=True)
class Row:
    """One measurement. `length` is tokens fed; `slice` names a part of it ({} = all of it), for instance
    {"position": [64, 71]} (0-based indices of fed tokens, both included) or {"size": 24}.

    With a status other than ok there is no number: `total` is None and `count` 0. Raises ValueError for
    anything else, so that a number which is not one cannot reach a table.
    """

    study: str
    cell: str
    scheme: str
    extension: str
    sampling: str
    task: str
    model: str
    seed: int
    train_length: int
    length: int
    tokens_seen: int
    protocol: str
    slice: dict[str, Any]
    metric: str
    total: float | int | None
    count: int
    unit: str
    eval_hash: str
    checkpoint: str
    code: str
    data: str
    status: str = "ok"
    version: int = VERSION

    def __post_init__(self):
        for name in _INTEGERS:
            value = getattr(self, name)
            if isinstance(value, bool) or int(value) != value:
                raise ValueError(f"{name} must be a whole number, not {value!r}")
            object.__setattr__(self, name, int(value))  # numpy's integers are no JSON
        for name in FIELDS:
            if name not in (*_INTEGERS, "slice", "total") and not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} must be text, not {getattr(self, name)!r}")
        if not isinstance(self.slice, dict):
            raise ValueError(f"slice must be an object, not {self.slice!r}")
        if self.version != VERSION:
            raise ValueError(f"version {self.version} rows cannot be read; this program reads version {VERSION}")
        if self.status not in STATUSES:
            raise ValueError(f"status must be one of {', '.join(STATUSES)}, not {self.status!r}")
        if self.status != "ok":
            if self.total is not None or self.count != 0:
                raise ValueError(f"status {self.status!r} needs total null and count 0")
        elif self.total is None or not math.isfinite(self.total) or self.count < 1:
            raise ValueError(f"status 'ok' needs a finite total and a count, not {self.total!r} and {self.count!r}")
        else:
            object.__setattr__(self, "total", float(self.total))

    def key(self) -> str:
        """The row's coordinates: every field but total, count, status. Equal keys: the same measurement."""
        return _dump({k: v for k, v in asdict(self).items() if k not in _NOT_KEY}, sort_keys=True)

    def json(self) -> str:
        """The row as one line, without the line's end."""
        return _dump(asdict(self))

    @classmethod
    def parse(cls, line: str) -> "Row":
        """The row of one line. Raises ValueError in words for anything that is not exactly a row."""
        values = json.loads(line)
        if not isinstance(values, dict):
            raise ValueError("not a JSON object")
        missing = [name for name in FIELDS if name not in values]
        unknown = [name for name in values if name not in FIELDS]
        if missing or unknown:
            raise ValueError(
                "; ".join(
                    f"{what} {', '.join(names)}"
                    for what, names in (("missing", missing), ("unknown", unknown))
                    if names
                )
            )
        try:
            return cls(**values)
        except TypeError as error:  # a null or a list where a number belongs
            raise ValueError(str(error)) from error


FIELDS: tuple[str, ...] = tuple(field.name for field in fields(Row))


def _dump(values: dict, sort_keys: bool = False) -> str:
    return json.dumps(values, ensure_ascii=False, allow_nan=False, sort_keys=sort_keys, separators=(",", ":"))

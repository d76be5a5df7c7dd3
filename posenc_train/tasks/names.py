"""Names made of contents. Without torch, so that data can be asked for before torch is imported."""

import hashlib

import numpy as np


def digest(*parts: str | int | bytes | np.ndarray) -> str:
    """16 hex digits that name the parts: their types, shapes, contents and order."""
    whole = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            head, content = f"{part.dtype.str}{part.shape}", np.ascontiguousarray(part).tobytes()
        else:
            head = type(part).__name__
            content = part if isinstance(part, bytes) else str(part).encode(errors="surrogateescape")
        whole.update(f"{head}:{len(content)}:".encode() + content)
    return whole.hexdigest()[:16]

"""Log-n attention on a trained model (Su 2021, https://kexue.fm/archives/8823; bojone/rerope), over any scheme."""

from posenc_train.positions.base import Dims, PositionScheme
from posenc_train.positions.logn import Logn
from posenc_train.positions.stack import Stack


def logn(scheme: PositionScheme, dims: Dims, scale: float) -> PositionScheme:
    """Queries that see n > L keys are multiplied by ln n / ln L, L being the trained length; nothing else changes.

    Raises ValueError for a scheme that does so already."""
    if any(isinstance(part, Logn) for part in scheme.modules()):
        raise ValueError("extension=logn: the position has log-n scaling already; choose none")
    return Stack({"scheme": scheme, "logn": Logn(dims)})

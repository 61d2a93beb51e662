"""What a wrong call raises: Python's own kinds, and torch's `RuntimeError` too, so that both `except`s work."""


class ShapeError(ValueError, RuntimeError):
    """Shapes that do not fit together."""


class DtypeError(TypeError, RuntimeError):
    """dtypes that differ, or that are not supported here."""


class DeviceError(ValueError, RuntimeError):
    """Tensors that are not all on one device."""


class CaptureError(RuntimeError):
    """A product that cannot become part of the CUDA graph that is being captured."""


class OverlapError(ValueError, RuntimeError):
    """An output that shares memory with itself or with an operand."""


def first_line(error: BaseException) -> str:
    """What an exception says, in a line; its name where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

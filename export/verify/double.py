"""A model in f64, without a copy of it: each weight is converted when it is read, large ones some rows at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

ROWS = 2**22  # elements of a weight that are converted at once
AS_THEY_ARE = (Tensor.__getitem__, Tensor.chunk)  # parts of a weight stay f32 until they are computed with


class Double(TorchFunctionMode):
    """Inside, whatever torch computes from f32 is f64: `with Double(): logits = model(source, target)`"""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in AS_THEY_ARE or getattr(func, "__name__", "") == "__get__":
            return func(*args, **kwargs)
        if func is F.embedding:
            return func(*args, **kwargs).double()
        if func is F.linear:
            return _linear(*args, **kwargs)
        return func(*tree_map(_double, args), **tree_map(_double, kwargs))


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rows = max(1, ROWS // weight.shape[1])
    y = torch.cat([x.double() @ part.double().T for part in weight.split(rows)], -1)
    return y if bias is None else y + bias.double()


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.dtype == torch.float32 else value

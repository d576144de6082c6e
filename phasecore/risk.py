"""The empirical risk and the test error of finite-size weights, on the CPU or on CUDA.

The risk of weights W of shape (d, R) is

    R(W) = sum_mu |y - f_W(x)|_F^2 / (2 d) + (1/2) sum_j lam_j |W_j|^2,   f_W(x) = S(z) (x + p)

with fields ``z_l = W^T (x_l + p_l) / sqrt(d)`` and ``y = T x``. Since
``y - f = -(S - T)(x + p) - T p``, it needs the data only through the fields and two small
matrices per sentence, ``(x+p)(x+p)^T`` and ``T p (x+p)^T``; y is never formed, and no small
difference of large numbers is taken. The gradient is torch's, on the small fields, followed by one
product with the data: on purpose it shares no derivative with the theory.

This module and ``training`` are the ones that import torch.
Source of the risk: Cui, Behrens, Krzakala, Zdeborova, arXiv 2402.03902, section 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch

from phasecore.checks import choice
from phasecore.sampling import Draw

DTYPES = {"float64": torch.float64, "float32": torch.float32}


class EmpiricalRisk:
    """The risk of one training set, as a function of NumPy weights (d, R).

    Parameters
    ----------
    draw : Draw
    device : "cpu", "cuda", "cuda:1", ... or None for CUDA when there is one.
    dtype : "float64" or "float32", for the large product with the data and the fields.

    Memory: ``x + p`` (n L d numbers), about 2 L^2 numbers per sentence, and 50 MB of buffers.
    """

    def __init__(self, draw: Draw, device: str | None = None, dtype: str = "float64") -> None:
        self.draw = draw
        self.device, self.dtype = (
            resolve_device(device),
            DTYPES[choice("dtype", dtype, tuple(DTYPES))],
        )
        L, n = draw.problem.length, draw.n
        new = partial(torch.empty, device=self.device, dtype=self.dtype)
        self._data = new((L, n, draw.d))
        self._gram, self._linear, self._target = (new((L, L, n)) for _ in range(3))
        self._offset = 0.0
        self._ridge = torch.tensor(draw.problem.ridge, device=self.device, dtype=self.dtype)
        start = 0
        with one_thread():
            for x in draw.train_chunks():
                part = slice(start, start + len(x))
                y, gram, linear, constant, target = _sufficient(draw, x, self.device)
                self._data[:, part] = y.transpose(0, 1)
                self._gram[:, :, part], self._linear[:, :, part] = gram, linear
                self._target[:, :, part] = target
                self._offset += float(constant.sum())
                start += len(x)

    def value(self, weights: np.ndarray) -> float:
        """R(W) of weights (d, R)."""
        return self.value_and_gradient(weights)[0]

    def value_and_gradient(self, weights: np.ndarray) -> tuple[float, np.ndarray]:
        """R(W) and its gradient, of the shape of the weights (d, R)."""
        with one_thread():
            return to_host(self.evaluate(weights), weights.shape)

    def attention(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Student and target attention on the training sentences, two (L, L, n) arrays."""
        with one_thread(), torch.no_grad():
            student = self.draw.problem.student.value(self._fields(self._weights(weights)), torch)
        return student.cpu().numpy(), self._target.cpu().numpy()

    def _weights(self, weights: np.ndarray) -> torch.Tensor:
        return torch.tensor(weights, device=self.device, dtype=self.dtype)

    def _fields(self, weights: torch.Tensor) -> torch.Tensor:
        return (self._data @ weights).transpose(1, 2).contiguous() / np.sqrt(self.draw.d)

    def evaluate(self, weights: np.ndarray) -> torch.Tensor:
        """(1 + d R,) value and gradient, left on the device so that a batch can be queued."""
        W = self._weights(weights)
        z = self._fields(W).requires_grad_()
        excess = self.draw.problem.student.value(z, torch) - self._target
        loss = _excess_loss(excess, self._gram, self._linear, self.draw.d).sum()
        (slope,) = torch.autograd.grad(loss, z)
        L, R, n = slope.shape
        rows = slope.transpose(1, 2).reshape(L * n, R)
        gradient = self._data.view(L * n, -1).T @ rows / np.sqrt(self.draw.d) + self._ridge * W
        value = loss.detach() + self._offset + (self._ridge * W * W).sum() / 2
        return torch.cat([value[None], gradient.flatten()])


def estimate_test_mse(
    draw: Draw, weights: np.ndarray, n_test: int, device: str | None = None
) -> float:
    """``E|y - f|^2 / (d L)`` of weights (d, R), a mean over ``n_test`` fresh sentences."""
    place = resolve_device(device)
    total = 0.0
    with one_thread(), torch.no_grad():
        W = torch.tensor(weights, device=place, dtype=torch.float64) / np.sqrt(draw.d)
        for x in draw.test_chunks(n_test):
            y, gram, linear, constant, target = _sufficient(draw, x, place)
            excess = draw.problem.student.value((y @ W).permute(1, 2, 0), torch) - target
            loss = _excess_loss(excess, gram, linear, draw.d) + constant
            total += float(loss.sum())
    return 2 * total / (n_test * draw.problem.length)


def _sufficient(draw: Draw, x: np.ndarray, device: torch.device) -> tuple[torch.Tensor, ...]:
    """What the loss needs of sentences x (c, L, d), in float64.

    ``x + p`` (c, L, d), ``(x+p)(x+p)^T`` and ``T p (x+p)^T`` (L, L, c), ``|T p|^2/(2d)`` (c,) and
    the target attention T (L, L, c).
    """
    as_tensor = partial(torch.tensor, device=device, dtype=torch.float64)
    y = as_tensor(x)
    fields = (y @ as_tensor(draw.teacher)).permute(1, 2, 0) / np.sqrt(draw.d)
    target = as_tensor(draw.problem.target(fields.cpu().numpy()))
    p = as_tensor(draw.encodings)
    y += p
    gram = (y @ y.transpose(1, 2)).permute(1, 2, 0)
    linear = torch.einsum("lkn,kjn->ljn", target, (y @ p.T).permute(2, 1, 0))
    constant = torch.einsum("lkn,kj,ljn->n", target, p @ p.T, target) / (2 * draw.d)
    return y, gram, linear, constant, target


def _excess_loss(
    excess: torch.Tensor, gram: torch.Tensor, linear: torch.Tensor, d: int
) -> torch.Tensor:
    """(N,) loss ``|y - f|^2/(2d)`` less its constant ``|T p|^2/(2d)``, with ``excess = S - T``."""
    inside = torch.einsum("lkn,kjn->ljn", excess, gram) / 2 + linear
    return (excess * inside).sum((0, 1)) / d


def to_host(reply: torch.Tensor, shape: tuple[int, ...]) -> tuple[float, np.ndarray]:
    numbers = reply.cpu().numpy().astype(np.float64)
    return float(numbers[0]), numbers[1:].reshape(shape)


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread inside: sums then have one order, and parallel workers do not compete."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def resolve_device(device: str | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not isinstance(device, str):
        raise TypeError(f"device: {device!r}, expected None, 'cpu' or 'cuda'")
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
        raise ValueError(f"device: {device!r}, expected None, 'cpu', 'cuda' or 'cuda:<index>'")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device: {device!r}, but torch sees {torch.cuda.device_count()} of them")
    return torch.device(device)

"""Slow state-evolution map, written from the equations of the model, one node at a time.

It judges the fast solver and shares nothing with it but the plain data of ``Problem``. Each node
of the expectation costs several calls of ``scipy.optimize.minimize``.

Fields and overlaps, any L, r, t, tied (R = r) or untied (R = 2r), independent or correlated tokens:

    x = (w - m, h) ~ N(0, C),   C = [[q, theta], [theta^T, rho (x) I_t]]
    M(w, h) = min_z  (1/2)(z-w)^T V^{-1} (z-w) + (1/2) Tr[(S(z)-T(h)) rho (S(z)-T(h))^T]
    g = V^{-1}(z* - w)

Conjugates are the derivatives of alpha E[M], with derivatives moved off g by Stein's lemma,
E[dg/dx] = E[g (C^{-1}x)^T], which counts the jumps of z*:

    m_hat_l      =  alpha E g_l                      q_hat_lk     = alpha E g_l g_k^T
    V_hat_lk     = -alpha E g_l (C^{-1}x)_{w,k}^T    theta_hat_lk = alpha E g_l (C^{-1}x)_{h,k}^T

Every (l, k) block is returned, both orders of a pair included, and a contraction sums over both.
For independent tokens C is block diagonal and only the l = k blocks are ever contracted.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import ndtri, softmax
from scipy.stats import qmc

from phasecore.problem import Problem


class Overlaps(NamedTuple):
    """m (L, R), q (L, R, L, R), V (L, R, L, R), theta (L, R, L, t)."""

    m: np.ndarray
    q: np.ndarray
    V: np.ndarray
    theta: np.ndarray


class Hats(NamedTuple):
    """Conjugates, with the shapes of the overlaps they multiply."""

    m: np.ndarray
    q: np.ndarray
    V: np.ndarray
    theta: np.ndarray


class Channel(NamedTuple):
    """Averages over the nodes; ``stderr`` and ``*_stderr`` hold for independent nodes.

    ``loss`` is E[(1/2) Tr (S(z*)-T) rho (S(z*)-T)^T], ``envelope`` is E[M], ``test_mse`` is eps_g,
    ``z`` (N, L, R) are the minimisers.
    """

    hats: Hats
    stderr: Hats
    loss: float
    loss_stderr: float
    envelope: float
    envelope_stderr: float
    test_mse: float
    test_mse_stderr: float
    z: np.ndarray


def monte_carlo_nodes(n: int, dim: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """n independent standard normal vectors and their equal weights."""
    return np.random.default_rng(seed).standard_normal((n, dim)), np.full(n, 1 / n)


def sobol_nodes(n: int, dim: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """n = 2^k scrambled Sobol points mapped to standard normals, and their equal weights."""
    rng = np.random.default_rng(seed)
    try:
        sampler = qmc.Sobol(dim, rng=rng)
    except TypeError:  # SciPy before 1.15
        sampler = qmc.Sobol(dim, seed=rng)
    uniform = sampler.random_base2(int(np.log2(n)))
    if len(uniform) != n:
        raise ValueError(f"n: {n}, expected a power of two")
    return ndtri(uniform + 2.0**-31), np.full(n, 1 / n)


def gauss_hermite_nodes(n: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Tensor product of the n-point Gauss-Hermite rule for N(0, 1): n^dim nodes and weights."""
    x, w = np.polynomial.hermite_e.hermegauss(n)
    nodes = np.array(list(product(x, repeat=dim)))
    weights = np.array(list(product(w / w.sum(), repeat=dim))).prod(1)
    return nodes, weights


def score_form(problem: Problem) -> np.ndarray:
    """(R, R) matrix B of the student's score beta z B z^T: identity, or query times key."""
    eye = np.eye(problem.rank)
    pairing = [[1.0]] if problem.tied else [[0.0, 1.0], [0.0, 0.0]]
    return problem.beta * np.kron(pairing, eye)


def ridge_matrix(problem: Problem) -> np.ndarray:
    """(R, R) diagonal matrix of the ridge: lam, or (lam_Q, lam_K) each repeated r times."""
    parts = np.atleast_1d(problem.lam) if problem.tied else np.broadcast_to(problem.lam, 2)
    return np.diag(np.repeat(parts, problem.rank))


def loss_and_gradient(
    z: np.ndarray, T: np.ndarray, B: np.ndarray, rho: np.ndarray
) -> tuple[float, np.ndarray]:
    """(1/2) Tr[(S-T) rho (S-T)^T] with S = softmax(z B z^T), and its gradient in z (L, R).

    With U = (S-T) rho, the slope in the scores is D_lk = S_lk (U_lk - sum_j S_lj U_lj) and the
    gradient D z B^T + D^T z B.
    """
    S = softmax(z @ B @ z.T, axis=1)
    U = (S - T) @ rho
    D = S * (U - (S * U).sum(1, keepdims=True))
    return 0.5 * float(np.sum(U * (S - T))), D @ z @ B.T + D.T @ z @ B


def starts(w: np.ndarray, scale: np.ndarray) -> Iterator[np.ndarray]:
    """w, 0, -w, and w shifted by one standard deviation (L, R) with every sign of the tokens."""
    yield w
    yield np.zeros_like(w)
    yield -w
    for signs in product((1.0, -1.0), repeat=len(w)):
        yield w + np.array(signs)[:, None] * scale


def prox(
    w: np.ndarray,
    V_inv: np.ndarray,
    T: np.ndarray,
    B: np.ndarray,
    rho: np.ndarray,
    candidates: list[np.ndarray],
) -> tuple[np.ndarray, float]:
    """Best of the minima reached by BFGS from each candidate: z* (L, R) and M."""

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        shift = flat - w.ravel()
        loss, slope = loss_and_gradient(flat.reshape(w.shape), T, B, rho)
        return loss + 0.5 * float(shift @ V_inv @ shift), slope.ravel() + V_inv @ shift

    options = {"gtol": 1e-9}
    runs = [minimize(objective, c.ravel(), jac=True, options=options) for c in candidates]
    best = min(runs, key=lambda run: run.fun)
    if np.abs(best.jac).max() > 1e-5:
        raise RuntimeError(f"prox: BFGS stopped at gradient {best.jac} for w = {w.tolist()}")
    return best.x.reshape(w.shape), float(best.fun)


def _root(matrix: np.ndarray) -> np.ndarray:
    """Symmetric square root of a positive definite matrix."""
    values, vectors = np.linalg.eigh(matrix)
    if values[0] <= 0:
        raise ValueError(f"matrix is not positive definite, smallest eigenvalue {values[0]:.3g}")
    return vectors * np.sqrt(values) @ vectors.T


def slow_channel(
    problem: Problem,
    alpha: float,
    m: np.ndarray,
    q: np.ndarray,
    V: np.ndarray,
    theta: np.ndarray,
    nodes: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    warm: np.ndarray | None = None,
    multistart: bool = True,
) -> Channel:
    """Conjugates, losses and test error at given overlaps.

    Parameters
    ----------
    m, q, V, theta : (L, R), (L, R, L, R), (L, R, L, R), (L, R, L, t); zero off-diagonal token
        blocks for independent tokens.
    nodes : (N, L(R+t)) standard normals: xi, then eta, in
        ``w = m + q^{1/2} xi``,
        ``h = theta^T q^{-1/2} xi + (rho - theta^T q^{-1} theta)^{1/2} eta``.
    weights : (N,), equal by default.
    warm : (N, L, R) one more starting point for each node; the only one if not ``multistart``.
    """
    if problem.attention != "softmax":
        raise ValueError(f"attention: {problem.attention!r}, the reference knows only 'softmax'")
    L, R = m.shape
    t = theta.shape[-1]
    q2, V2, theta2 = q.reshape(L * R, L * R), V.reshape(L * R, L * R), theta.reshape(L * R, L * t)
    rho = np.einsum("a,alk->lk", problem.tokens.weights, problem.tokens.covariances)
    rho_h = np.kron(rho, np.eye(t))
    C = np.block([[q2, theta2], [theta2.T, rho_h]])
    B = score_form(problem)
    V_inv = np.linalg.inv(V2)
    root_q = _root(q2)
    theta_q = np.linalg.solve(root_q, theta2).T
    root_h = _root(rho_h - theta_q @ theta_q.T)
    scale = np.sqrt(np.diag(q2)).reshape(L, R)

    z_all = np.empty((len(nodes), L, R))
    samples = []
    for i, node in enumerate(nodes):
        xi, eta = node[: L * R], node[L * R :]
        x_w = root_q @ xi
        h = theta_q @ xi + root_h @ eta
        w = m + x_w.reshape(L, R)
        fields = h.reshape(L, t)
        T = (1 - problem.omega) * softmax(fields @ fields.T, axis=1) + problem.omega * problem.A

        candidates = list(starts(w, scale)) if multistart else []
        if warm is not None:
            candidates.append(warm[i])
        z_all[i], envelope = prox(w, V_inv, T, B, rho, candidates)

        g = V_inv @ (z_all[i] - w).ravel()
        y = np.linalg.solve(C, np.concatenate([x_w, h]))  # C^{-1} x
        response = -np.outer(g, y[: L * R])
        samples.append(
            (
                g.reshape(L, R),
                np.outer(g, g).reshape(q.shape),
                0.5 * (response + response.T).reshape(V.shape),
                np.outer(g, y[L * R :]).reshape(theta.shape),
                loss_and_gradient(z_all[i], T, B, rho)[0],
                envelope,
                2 * loss_and_gradient(w, T, B, rho)[0] / L,
            )
        )

    weights = np.full(len(nodes), 1 / len(nodes)) if weights is None else weights
    averages = [_average(np.array(s), weights) for s in zip(*samples, strict=True)]
    means, errors = zip(*averages, strict=True)
    scalars = [float(v) for pair in zip(means[4:], errors[4:], strict=True) for v in pair]
    return Channel(
        Hats(*(alpha * v for v in means[:4])),
        Hats(*(alpha * v for v in errors[:4])),
        *scalars,
        z_all,
    )


def _average(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weighted mean over the nodes and its standard error for independent nodes."""
    mean = np.tensordot(weights, values, 1)
    return mean, np.sqrt(np.tensordot(weights**2, (values - mean) ** 2, 1))


class _Atom(NamedTuple):
    """One direction class of the spectrum: gamma (L, L), G, u and the integrand of q / gamma."""

    weight: float
    gamma: np.ndarray
    G: np.ndarray
    u: np.ndarray
    second_moment: np.ndarray


def _atoms(problem: Problem, hats: Hats) -> Iterator[_Atom]:
    """For each spectral atom, with P_lk = p_l . p_k the Gram matrix of the encodings,

    G = (Lambda + sum gamma_lk V_hat_lk)^{-1},   u = sum gamma_lk theta_hat_lk,
    second_moment = sum gamma_lk q_hat_lk + sum P_lk m_hat_l m_hat_k^T + u u^T
    (the last two are the mean of b b^T over the Gaussian tau and pi).
    """
    tokens = problem.tokens
    P = tokens.positions @ tokens.positions.T
    for weight, gamma in zip(tokens.weights, tokens.covariances, strict=True):
        precision = ridge_matrix(problem) + np.einsum("lk,lakb->ab", gamma, hats.V)
        u = np.einsum("lk,lakt->at", gamma, hats.theta)
        second = np.einsum("lk,lakb->ab", gamma, hats.q)
        second += np.einsum("lk,la,kb->ab", P, hats.m, hats.m) + u @ u.T
        yield _Atom(float(weight), gamma, np.linalg.inv(precision), u, second)


def overlaps_from_hats(problem: Problem, hats: Hats) -> Overlaps:
    """Prior map, an average over the spectral atoms:

    q_lk = gamma_lk G (second_moment) G,  V_lk = gamma_lk G,
    m_l = sum_k P_lk G m_hat_k,           theta_lk = gamma_lk G u.
    """
    P = problem.tokens.positions @ problem.tokens.positions.T
    m, q, V, theta = (np.zeros_like(hat) for hat in hats)
    for weight, gamma, G, u, second in _atoms(problem, hats):
        q += weight * np.einsum("lk,ab->lakb", gamma, G @ second @ G)
        V += weight * np.einsum("lk,ab->lakb", gamma, G)
        m += weight * P @ hats.m @ G
        theta += weight * np.einsum("lk,at->lakt", gamma, G @ u)
    return Overlaps(m, q, V, theta)


def train_loss(problem: Problem, alpha: float, channel: Channel) -> float:
    """eps_t = alpha E[loss] + (1/2) E Tr[Lambda G (second_moment) G], valid at a fixed point."""
    ridge = ridge_matrix(problem)
    penalty = sum(
        a.weight * np.trace(ridge @ a.G @ a.second_moment @ a.G)
        for a in _atoms(problem, channel.hats)
    )
    return alpha * channel.loss + 0.5 * float(penalty)


def free_energy(problem: Problem, alpha: float, overlaps: Overlaps, channel: Channel) -> float:
    """Variational form of eps_t, stationary in overlaps and hats at a fixed point:

    alpha E[M] + (1/2) q_hat.V - (1/2) V_hat.q + m_hat.m + theta_hat.theta
    - (1/2) E Tr[G (second_moment)],   where a dot sums over all blocks, both orders.
    """
    hats = channel.hats
    coupling = 0.5 * np.sum(hats.q * overlaps.V) - 0.5 * np.sum(hats.V * overlaps.q)
    coupling += np.sum(hats.m * overlaps.m) + np.sum(hats.theta * overlaps.theta)
    weight_space = sum(a.weight * np.trace(a.G @ a.second_moment) for a in _atoms(problem, hats))
    return alpha * channel.envelope + float(coupling) - 0.5 * float(weight_space)

"""Formulas broken on purpose, one at a time: the tests must notice every one of them.

    python tests/mutations.py                break each formula in a copy of the repository
    python tests/mutations.py V_hat m_hat    only those whose names contain one of these

Each mutation is tried on the fast tests of the modules it concerns, in a temporary copy of the
repository. The exit status is not zero if a mutation survives, or if these tests fail unbroken.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("phasecore", "tests", "pyproject.toml")


class Mutation(NamedTuple):
    """In ``phasecore/<file>.py`` the text ``old``, which occurs once, becomes ``new``."""

    name: str
    file: str
    tests: str  # ``tests/test_<tests>.py`` must notice
    old: str
    new: str

    @property
    def path(self) -> str:
        return f"phasecore/{self.file}.py"

    def apply(self, source: str) -> str:
        """The broken source. Raises ValueError unless ``old`` occurs exactly once."""
        if source.count(self.old) != 1:
            raise ValueError(f"{self.name}: {source.count(self.old)} times in {self.path}")
        return source.replace(self.old, self.new)


# (module, tests): {what is wrong: (text that occurs once, what it becomes)}
CHANGES = {
    ("problem", "attention"): {
        "target keeps weight one beside A": (
            "(1 - self.omega) * self.teacher.value",
            "self.teacher.value",
        ),
    },
    ("attention", "attention"): {
        "rho_S left out of the loss": (
            "return 0.5 * (E * (rho @ E)).sum((0, 1))",
            "return 0.5 * (E * E).sum((0, 1))",
        ),
        "rho_S left out of the gradient": (
            "E = S - T\n        u = rho @ E",
            "E = S - T\n        u = 1.0 * E",
        ),
        "token as key left out of the gradient": (
            "slope[:, k] * right[k, a] + slope[k] * left[k, a]",
            "slope[:, k] * right[k, a]",
        ),
        "query form for the key form": ("left = self.form.T @ z", "left = self.form @ z"),
        "curvature of softmax without its diagonal": (
            "curvature[:, k, k] += slope[:, k]",
            "curvature[:, k, k] += 0 * slope[:, k]",
        ),
    },
    ("proximal", "proximal"): {
        "quadratic term of the prox doubled": (
            "energy = loss + 0.5 * (shift * force).sum(0)",
            "energy = loss + (shift * force).sum(0)",
        ),
        "prox blind to other wells": (
            "lower = rival_energy < energy[nodes] - WELL_TOL * energy.mean()",
            "lower = rival_energy < -np.abs(energy[nodes])",
        ),
    },
    ("channel", "channel"): {
        "sign in V_hat": ("V_hat=-alpha *", "V_hat=alpha *"),
        "alpha left out of m_hat": ("m_hat=alpha * weighted", "m_hat=weighted"),
        "g for g g^T in q_hat": ("(weighted @ g.T)", "(weighted @ np.sign(g).T)"),
        "C for C^T in Stein's lemma": ("lower=True, trans=1,", "lower=True,"),
    },
    ("channel", "reference"): {
        "test error at the prox": ("for x in (z, fields.w)", "for x in (z, z)"),
    },
    ("prior", "reference"): {
        "gamma left out of theta_hat": (
            '"alk,likt->ait", gammas, hats',
            '"alk,likt->ait", np.ones_like(gammas), hats',
        ),
        "gamma left out of V": (
            '"alk,aij->likj", weighted, self.response',
            '"alk,aij->likj", weighted / tokens.covariances.max(), self.response',
        ),
        "theta^2 for theta": (
            "teacher=G @ self.field_teacher",
            "teacher=(G @ self.field_teacher) ** 2",
        ),
        "one response for two in q": ("noise=G @ self.variance @ G", "noise=G @ self.variance"),
        "ridge left out of the response": ("np.diag(problem.ridge) + (precision", "(precision"),
        "factor 1/2 in the ridge's cost": ("return 0.5 * float(problem", "return float(problem"),
    },
    ("observables", "baseline"): {
        "factor 1/2 in eps_g": ("return 2 * mean_loss / length", "return mean_loss / length"),
    },
    ("observables", "reference"): {
        "alpha left out of eps_t": ("alpha * mean_loss + ridge_cost", "mean_loss + ridge_cost"),
    },
    ("overlaps", "reference"): {
        "sum for mean over tokens": (".sum((1, 2))).mean()", ".sum((1, 2))).sum()"),
    },
    ("solution", "reference"): {
        "square root left out of the error bar": ("ddof=1) / math.sqrt(n)", "ddof=1) / n"),
    },
    ("baseline", "baseline"): {
        "baseline does not subtract its prediction": ("excess = T - W[:, :, None]", "excess = T"),
        "baseline with sigma^2 for sigma": (
            "h = np.linalg.cholesky(np.kron(rho, np.eye(t)))",
            "h = np.kron(rho, np.eye(t))",
        ),
    },
    ("sampling", "sampling"): {
        "sigma^2 for sigma in the data": (
            "np.stack([triangular_root(g) for g in",
            "np.stack([g for g in",
        ),
    },
    ("risk", "training"): {
        "d for sqrt(d) in the fields": (
            ".contiguous() / np.sqrt(self.draw.d)",
            ".contiguous() / self.draw.d",
        ),
        "factor 1/2 in the ridge of the risk": (
            "(self._ridge * W * W).sum() / 2",
            "(self._ridge * W * W).sum()",
        ),
        "ridge left out of the gradient of the risk": ("+ self._ridge * W\n", "\n"),
        "factor 1/2 in the quadratic part of the risk": (
            "excess, gram) / 2 + linear",
            "excess, gram) + linear",
        ),
        "factor 2 in the measured test error": ("return 2 * total /", "return total /"),
    },
    ("measurement", "measurement"): {
        "sqrt(d) left out of m": (
            "m = draw.encodings @ weights / np.sqrt(d)",
            "m = draw.encodings @ weights / d",
        ),
        "sigma for sigma^2 in theta": (
            '"li,ir->lri", draw.variances,',
            '"li,ir->lri", np.sqrt(draw.variances),',
        ),
    },
    ("statistics", "statistics"): {
        "biased variance": ("values.std(ddof=1)", "values.std(ddof=0)"),
        "error of the theory left out": (
            "stderr**2 + theory_stderr**2",
            "stderr**2 + 0 * theory_stderr",
        ),
        "number of tests left out": ("np.minimum(1.0, p * len(table))", "np.minimum(1.0, p)"),
    },
}
MUTATIONS = [
    Mutation(name, file, tests, *texts)
    for (file, tests), changes in CHANGES.items()
    for name, texts in changes.items()
]


def noticed(copy: Path, modules: set[str]) -> tuple[bool, str]:
    """Whether a test of these modules fails in the copy, and which one was the first."""
    files = [f"tests/test_{name}.py" for name in sorted(modules)]
    command = [sys.executable, "-m", "pytest", "-qx", "-m", "not slow", "-p", "no:cacheprovider"]
    path = os.pathsep.join(str(copy / part) for part in (".", "tests", "notebooks"))
    environment = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run(
        [*command, *files], cwd=copy, env=environment, capture_output=True, text=True
    )
    if run.returncode not in (0, 1):
        raise RuntimeError(f"pytest ended with {run.returncode}\n{run.stdout}{run.stderr}")
    failures = [line for line in run.stdout.splitlines() if line.startswith("FAILED")]
    first = failures[0].split("::")[-1].split(" - ")[0] if failures else ""
    return run.returncode == 1, first


def main() -> None:
    """Try the mutations and print what became of each."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("words", nargs="*", default=[""])
    words = parser.parse_args().words
    chosen = [mutation for mutation in MUTATIONS if any(word in mutation.name for word in words)]
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for part in COPIED:
            source = ROOT / part
            (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / part)
        broken, first = noticed(copy, {mutation.tests for mutation in chosen})
        if broken:
            sys.exit(f"The tests fail before anything is broken: {first}")
        for mutation in chosen:
            began, file = time.perf_counter(), copy / mutation.path
            source = file.read_text()
            file.write_text(mutation.apply(source))
            killed, first = noticed(copy, {mutation.tests})
            file.write_text(source)
            outcome = f"killed by {first}" if killed else "SURVIVED"
            seconds = time.perf_counter() - began
            print(f"{mutation.file:12} {mutation.name:48} {seconds:4.0f} s  {outcome}", flush=True)
            survivors += [] if killed else [mutation.name]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutations noticed")
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main()

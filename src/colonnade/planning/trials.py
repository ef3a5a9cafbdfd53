"""Small real uses of what an installation has; each says in words what it did, and raises where the result is wrong."""

from __future__ import annotations

import io
import math

TOLERANCE = 1e-3


def gpus() -> list[str]:
    """The devices besides the CPU that torch knows."""
    import torch

    return [f"cuda:{number}" for number in range(torch.cuda.device_count())] if torch.cuda.is_available() else []


def training_step(device: str) -> str:
    """One gradient step of least squares, against the one computed by hand."""
    import torch

    x, y = torch.tensor([[1.0], [2.0]], device=device), torch.tensor([[3.0], [5.0]], device=device)
    w = torch.zeros(1, 1, device=device, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)
    torch.autograd.backward((x @ w - y).square().mean())
    optimizer.step()
    _same(w.item(), 0.1 * 2 * (3 + 10) / 2, "a training step")
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else f"torch {torch.__version__}"
    return f"{name}, a training step is right"


def federation() -> str:
    """Two parties train a batch and send frames of bytes."""
    import numpy as np
    import pandas as pd

    from colonnade.federation import Federation

    x = np.random.default_rng(0).normal(size=(40, 2))
    frames = {
        "one": pd.DataFrame({"id": range(40), "a": x[:, 0], "y": (x.sum(1) > 0).astype(int)}),
        "two": pd.DataFrame({"id": range(40), "b": x[:, 1]}),
    }
    settings = {"model": {"name": "linear", "width": 2}, "federation": {"device": "cpu", "through_bytes": True}}
    trained = Federation.from_frames(frames, id="id", label="y", settings=settings)
    step = next(iter(trained.train()))
    sent = sum(book.total("out") for book in trained.ledgers.values())
    if not math.isfinite(step.loss) or not sent:
        raise ArithmeticError(f"loss {step.loss}, {sent} bytes sent")
    return f"two parties trained a batch and sent {sent:,} bytes"


def cryptography() -> str:
    """Ciphertexts of both schemes added and decrypted, masks agreed on, and two sets of ids intersected."""
    import torch

    from colonnade.alignment import Ids, align_here
    from colonnade.encryption import make_keys

    x = torch.tensor([1.5, -2.25])
    for scheme in ("ckks", "bfv"):
        secret = make_keys(scheme, use="sums", limit=16.0)
        one = secret.public.encrypt(x, owner="doctor")
        for found, right in zip(secret.decrypt(secret.public.add(one, one)).tolist(), (2 * x).tolist(), strict=True):
            _same(found, right, f"{scheme}'s sum")
    _masks()
    ids = {"one": Ids.of("one", [["a", "b"]]), "two": Ids.of("two", [["b", "c"]])}
    common = align_here(ids).found.common
    if common != 1:
        raise ArithmeticError(f"two sets of ids have 1 in common, and {common} were found")
    return "sums under encryption, key agreement and private set intersection are right"


def _masks() -> None:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    a, b = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    if a.exchange(b.public_key()) != b.exchange(a.public_key()):
        raise ArithmeticError("two parties agreed on different keys")


def accounting() -> str:
    """Epsilon of a Gaussian whose mean moves by one deviation, held to the formula it solves (Balle and Wang, 2018)."""
    from colonnade.privacy.accounting import gaussian_epsilon

    delta = 1e-5
    epsilon = gaussian_epsilon(1.0, delta)
    _same(_below(0.5 - epsilon) - math.exp(epsilon) * _below(-0.5 - epsilon), delta, "delta", TOLERANCE * delta)
    return f"epsilon of a known case is right ({epsilon:.4f})"


def _below(z: float) -> float:
    return math.erfc(-z / math.sqrt(2)) / 2


def flare() -> str:
    import nvflare.collab  # noqa: F401

    return "importable"


def drawing() -> str:
    from matplotlib.figure import Figure

    picture = io.BytesIO()
    figure = Figure(figsize=(1, 1))
    figure.subplots().plot([0, 1])
    figure.savefig(picture, format="svg")
    if b"</svg>" not in picture.getvalue():
        raise ValueError("the picture is cut off")
    return "a picture was drawn"


def _same(found: float, right: float, what: str, tolerance: float = TOLERANCE) -> None:
    if not abs(found - right) <= tolerance:
        raise ArithmeticError(f"{what} should be {right:g} and is {found:g}")

"""Fit the predictor: a small network, calibrated.

It takes seconds; the same drafts and seed give the same weights, bit for bit. Other classifiers are no better, see
`others` (`--compare`).
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from adapters_training.predictor.drafts import Drafts
from speculation.predictor import FEATURES, Layer, Predictor
from speculation.progress import progress

Rows = npt.NDArray[np.float64]
HIDDEN = (32, 16)
"""Widths of the MLP."""
LEARNING_RATE, WEIGHT_DECAY, BATCH = 3e-3, 1e-4, 256
EPOCHS, PATIENCE = 100, 12
"""The fit ends so many epochs after the best one."""


def fit(training: Drafts, validation: Drafts, seed: int) -> Predictor:
    """Return the calibrated network. Raises ValueError where the drafts have only accepted or only rejected tokens."""
    for what, drafts in (("training", training), ("validation", validation)):
        if len(np.unique(drafts.labelled()[1])) < 2:
            raise ValueError(
                f"the {what} drafts were all accepted or all rejected: decode more frames, or those of another pair"
            )
    rows, _ = training.labelled()
    mean, spread = rows.mean(axis=0), rows.std(axis=0)
    scale = np.where(spread > 0.0, spread, 1.0)
    layers, header = _network(training, validation, mean, scale, seed), training.header
    raw = Predictor(header["draft"], header["target"], mean, scale, layers, 0.5, int(header["gamma"]))
    return _calibrated(raw, validation)


def others(training: Drafts, seed: int) -> dict[str, Callable[[Rows], Rows]]:
    """Return what the network is compared with (WISP, Table 4), fitted: features [n, 5] in, chances [n] out.

    Needs scikit-learn, which training itself does not; XGBoost is among them where it is installed. The confidence
    alone is what a draft has without any predictor.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier

    models: dict[str, Any] = {
        "random forest": RandomForestClassifier(200, min_samples_leaf=20, random_state=seed),
        "histogram boosting": HistGradientBoostingClassifier(
            learning_rate=0.05, max_leaf_nodes=7, early_stopping=True, random_state=seed
        ),
    }
    if importlib.util.find_spec("xgboost"):
        from xgboost import XGBClassifier

        models["XGBoost"] = XGBClassifier(
            n_estimators=100, max_depth=3, learning_rate=0.05, random_state=seed, n_jobs=1
        )
    rows, labels = training.labelled()
    for model in models.values():
        model.fit(rows, labels)
    found = {name: partial(_chances_of, model) for name, model in models.items()}
    return {"confidence alone": lambda rows: rows[:, 0], **found}


def _chances_of(model: Any, rows: Rows) -> Rows:
    return np.asarray(model.predict_proba(rows)[:, 1], dtype=np.float64)


def _network(training: Drafts, validation: Drafts, mean: Rows, scale: Rows, seed: int) -> tuple[Layer, ...]:
    """Adam on binary cross-entropy (WISP, Appendix B); the epoch with the least validation loss is kept."""
    (rows, labels), (other_rows, other_labels) = _tensors(training, mean, scale), _tensors(validation, mean, scale)
    network = _build(seed)
    optimiser = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    loss_of = nn.BCEWithLogitsLoss()
    best, best_loss, since = _weights(network), math.inf, 0
    bar = progress(range(EPOCHS), unit="epoch", desc="predictor", mininterval=2.0)
    for epoch in bar:
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
        for chosen in torch.split(order, BATCH):
            optimiser.zero_grad(set_to_none=True)
            loss_of(network(rows[chosen])[:, 0], labels[chosen]).backward()
            optimiser.step()
        with torch.no_grad():
            loss = float(loss_of(network(other_rows)[:, 0], other_labels))
        bar.set_postfix(validation=f"{loss:.4f}")
        since += 1
        if loss < best_loss:
            best, best_loss, since = _weights(network), loss, 0
        if since >= PATIENCE:
            break
    bar.close()
    return best


def _build(seed: int) -> nn.Sequential:
    generator = torch.Generator().manual_seed(seed)
    parts: list[nn.Module] = []
    width = len(FEATURES)
    for out in (*HIDDEN, 1):
        layer = nn.Linear(width, out)
        with torch.no_grad():
            nn.init.uniform_(layer.weight, -(width**-0.5), width**-0.5, generator=generator)
            nn.init.zeros_(layer.bias)
        parts += [layer, nn.ReLU()]
        width = out
    return nn.Sequential(*parts[:-1])


def _weights(network: nn.Sequential) -> tuple[Layer, ...]:
    linear = [part for part in network if isinstance(part, nn.Linear)]
    return tuple((part.weight.detach().numpy().T.copy(), part.bias.detach().numpy().copy()) for part in linear)


def _tensors(drafts: Drafts, mean: Rows, scale: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    rows, labels = drafts.labelled()
    return torch.from_numpy(((rows - mean) / scale).astype(np.float32)), torch.from_numpy(labels.astype(np.float32))


def _calibrated(predictor: Predictor, validation: Drafts) -> Predictor:
    """Return the predictor with its score s replaced by a s + b, the a, b likeliest on validation drafts (Platt)."""
    rows, labels = validation.labelled()
    chances = np.clip(predictor.probabilities(rows), 1e-9, 1 - 1e-9)
    score = torch.from_numpy(np.log(chances / (1 - chances)))
    truth = torch.from_numpy(labels)
    line = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([line], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        value = nn.functional.binary_cross_entropy_with_logits(line[0] * score + line[1], truth)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    slope, shift = line.detach().tolist()
    *others, (weight, bias) = predictor.layers
    last = ((weight * slope).astype(np.float32), (bias * slope + shift).astype(np.float32))
    return Predictor(predictor.draft, predictor.target, predictor.mean, predictor.scale, (*others, last),
                     predictor.threshold, predictor.max_depth)  # fmt: skip

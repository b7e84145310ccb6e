"""Two processes that share a model take the step that one process takes on both their batches."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import torch
from torch import multiprocessing, nn

from adapters_training.replicas import Replicas

BATCHES = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))


def losses(model: nn.Linear, rows: torch.Tensor) -> torch.Tensor:
    return model(rows).square().mean()


def model() -> nn.Linear:
    torch.manual_seed(1)
    layer = nn.Linear(4, 2)
    layer.register_parameter("unused", nn.Parameter(torch.ones(1)))
    return layer


def replica(rank: int, port: int, out: Path) -> None:
    # a host's own name may resolve to an address that nothing listens on
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    replicas, layer = Replicas(), model()
    losses(layer, BATCHES[rank]).backward()
    replicas.average(list(layer.parameters()))
    torch.save([layer.weight.grad, layer.unused.grad, replicas.mean(float(rank))], out / f"{rank}.pt")
    replicas.close()


def test_gradients_are_those_of_both_batches_in_one(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    multiprocessing.spawn(replica, (port, tmp_path), nprocs=2)
    alone = model()
    losses(alone, BATCHES.flatten(0, 1)).backward()
    for rank in range(2):
        weight, unused, mean = torch.load(tmp_path / f"{rank}.pt")
        torch.testing.assert_close(weight, alone.weight.grad)
        assert unused is None and mean == 0.5


def test_a_single_process_changes_nothing() -> None:
    replicas, layer = Replicas(), model()
    losses(layer, BATCHES[0]).backward()
    before = layer.weight.grad.clone()
    replicas.average(list(layer.parameters()))
    assert replicas.size == 1 and torch.equal(before, layer.weight.grad) and replicas.mean(2.5) == 2.5
